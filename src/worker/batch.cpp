// Batches of flat jobs: the decision, the report, and one round.
#include "echomq/batch.hpp"

#include <fmt/format.h>

#include <array>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "events/event_text.hpp"
#include "events/publisher.hpp"
#include "queue/exchange.hpp"
#include "queue/start.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using Kind = Outcome::Kind;

/// What the handler said of all, whatever it did.
[[nodiscard]] std::vector<std::optional<Outcome>> ask(const BatchRoundHandler& handler,
                                                      const std::vector<ClaimedJob>& jobs) {
  std::vector<std::optional<Outcome>> outcomes;
  try {
    outcomes = handler(jobs);
    outcomes.resize(jobs.size());
  } catch (const std::exception& error) {
    outcomes.assign(jobs.size(), Retry(error.what()));
  } catch (...) {
    outcomes.assign(jobs.size(), Retry("an exception that is not a std::exception"));
  }
  return outcomes;
}

/// Settlements of one call: about a millisecond of the server's time.
constexpr std::size_t kMostOfACall = 100;
constexpr std::size_t kMostBytesOfACall = std::size_t{1} << 20;

[[nodiscard]] queue::Settlement settlement_of(const ClaimedJob& job, const Outcome& outcome,
                                              const BatchOptions& options) {
  queue::Settlement one{.id = job.id, .token = job.token};
  switch (outcome.kind) {
    case Kind::done:
      if (outcome.has_result)
        one.text = outcome.text;
      return one;
    case Kind::retry:
      one.kind = queue::SettleKind::retry;
      one.wait = outcome.after.value_or(options.retry_delay);
      one.max_attempts = options.max_attempts;
      break;
    case Kind::dead: one.kind = queue::SettleKind::dead; break;
    case Kind::delay:
      one.kind = queue::SettleKind::delay;
      one.wait = outcome.after.value_or(Milliseconds(0));
      return one;
    case Kind::hand_back: one.kind = queue::SettleKind::hand_back; return one;
  }
  one.text = outcome.text;
  return one;
}

/// `maybe_done`: an earlier try may have been carried out.
[[nodiscard]] BatchSettled settled_as(queue::Settled verdict, Kind kind, bool maybe_done) {
  switch (verdict) {
    case queue::Settled::scheduled: return BatchSettled::scheduled;
    case queue::Settled::dead: return BatchSettled::dead;
    case queue::Settled::gone:  // a dead job keeps its row
      if (!maybe_done || kind == Kind::dead)
        return BatchSettled::refused;
      return kind == Kind::retry ? BatchSettled::scheduled : BatchSettled::accepted;
    case queue::Settled::stale:
      return maybe_done && kind == Kind::hand_back ? BatchSettled::accepted : BatchSettled::refused;
    default: return BatchSettled::accepted;
  }
}

/// Settles all members, by few calls that are all on their way at once.
class Settling {
 public:
  struct Fallen {
    JobId parent;
    std::size_t by = 0;  ///< the member that was its child
  };

  Settling(const Queue& queue, std::span<const ClaimedJob> jobs, std::span<const std::optional<Outcome>> outcomes,
           const BatchOptions& options)
      : queue_(queue), outcomes_(outcomes), settled_(jobs.size(), BatchSettled::refused) {
    std::size_t bytes = 0;
    std::size_t first = 0;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const std::size_t size = outcomes[i]->text.size();
      if (i > first && (i - first == kMostOfACall || bytes + size > kMostBytesOfACall)) {
        send(first, i);
        first = i;
        bytes = 0;
      }
      bytes += size;
      settlements_.push_back(settlement_of(jobs[i], *outcomes[i], options));
    }
    send(first, jobs.size());
  }

  void finish() {
    for (Call& call : std::exchange(calls_, {})) {
      const auto answer = call.reply.get();
      if (answer) {
        heard(call, *answer);
        continue;
      }
      // It may be refused for one of them: then each goes by itself.
      const bool maybe_done = answer.error().is(Errc::outcome_unknown) || answer.error().is(Errc::timeout);
      for (std::size_t i = call.first; call.last - call.first > 1 && i < call.last; ++i)
        send(i, i + 1, maybe_done);
    }
    for (Call& call : calls_) {
      if (const auto answer = call.reply.get())
        heard(call, *answer);
    }
  }

  [[nodiscard]] BatchSettled of(std::size_t member) const { return settled_[member]; }
  [[nodiscard]] const std::vector<Fallen>& fallen() const { return fallen_; }

 private:
  struct Call {
    std::size_t first = 0;
    std::size_t last = 0;  ///< the one behind
    bool maybe_done = false;
    Reply<queue::Exchanged> reply;
  };

  void send(std::size_t first, std::size_t last, bool maybe_done = false) {
    const auto some = std::span<const queue::Settlement>(settlements_).subspan(first, last - first);
    calls_.push_back({first, last, maybe_done, queue::exchange(queue_, some, std::nullopt)});
  }
  void heard(const Call& call, const queue::Exchanged& answer) {
    for (std::size_t i = call.first; i < call.last; ++i)
      settled_[i] = settled_as(answer.settled[i - call.first], outcomes_[i]->kind, call.maybe_done || answer.resent);
    for (const queue::Fallen& one : answer.fallen)
      fallen_.push_back({one.parent, call.first + one.by});
  }

  const Queue& queue_;
  const std::span<const std::optional<Outcome>> outcomes_;
  std::vector<queue::Settlement> settlements_;
  std::vector<Call> calls_;
  std::vector<BatchSettled> settled_;
  std::vector<Fallen> fallen_;
};

/// Announces what was accepted, as a worker does.
class Teller {
 public:
  Teller(const Queue& queue, const BatchOptions& options)
      : queue_(queue),
        sample_(queue.internal().core, queue.name(),
                {.mode = options.events == WorkerEvents::nothing   ? events::Publishing::off
                         : options.events == WorkerEvents::sampled ? events::Publishing::sampled
                                                                   : events::Publishing::on,
                 .rate = options.event_rate}) {}

  void tell(JobId id, const Outcome& outcome, BatchSettled settled) {
    if (settled == BatchSettled::refused || !sample_.wants(id))
      return;
    switch (outcome.kind) {
      case Kind::done: return publish("completed", id);
      case Kind::delay: return publish("delayed", id);
      case Kind::hand_back: return;
      case Kind::retry:
      case Kind::dead: break;
    }
    tell_failed(id, outcome.text, settled == BatchSettled::scheduled);
  }
  /// A flow parent that died of a child.
  void tell_death(JobId id, std::string_view error) {
    if (sample_.wants(id))
      tell_failed(id, error, false);
  }
  /// Waits until all of it is sent; at most once, by contract.
  void finish() {
    for (Reply<std::int64_t>& one : replies_) [[maybe_unused]]
      const auto published = one.get();
  }

 private:
  void tell_failed(JobId id, std::string_view error, bool again) {
    const std::array<events::Extra, 2> extra = {{{"error", events::cut_text(error)}, {"retry", std::string_view("1")}}};
    const std::size_t first = error.empty() ? 1 : 0;
    publish("failed", id, std::span(extra).subspan(first, (again ? 2U : 1U) - first));
    if (!again)
      publish("dead", id);
  }
  void publish(std::string_view event, JobId id, std::span<const events::Extra> extra = {}) {
    replies_.push_back(queue_.publish(event, id, extra));
  }

  const Queue& queue_;
  const events::EventPublisher sample_;  // says which jobs are told of
  std::vector<Reply<std::int64_t>> replies_;
};

}  // namespace

Result<void> BatchShape::check() const {
  ECHOMQ_CHECK(queue::check_limit("min_size", min_size));
  return queue::check_period("timeout", timeout);
}

std::optional<std::uint64_t> BatchShape::decide(std::uint64_t depth, Milliseconds elapsed) const noexcept {
  if (depth >= min_size || (depth > 0 && elapsed >= timeout))
    return depth;
  return std::nullopt;
}

BatchReport partition_batch(std::span<const BatchMember> members) {
  BatchReport report;
  for (const BatchMember& member : members) {
    const bool accepted = member.settled == BatchSettled::accepted;
    if (member.verdict == Kind::done && accepted) {
      report.completed.push_back(member.id);
    } else if (member.verdict == Kind::delay && accepted) {
      report.delayed.push_back(member.id);
    } else if (member.settled == BatchSettled::dead) {
      report.dead.push_back(member.id);
    } else {
      report.retried.push_back(member.id);
    }
  }
  return report;
}

Result<BatchReport> run_batch(const Queue& queue, const BatchRoundHandler& handler, const BatchOptions& options) {
  if (!handler)
    return fail(Errc::invalid_argument, "handler must not be empty");
  ECHOMQ_CHECK(queue::check_wait("retry_delay", options.retry_delay));
  ECHOMQ_CHECK(queue::check_limit("max_attempts", options.max_attempts));
  if (!(options.event_rate >= 0 && options.event_rate <= 1))
    return fail(Errc::invalid_argument, fmt::format("event_rate must be 0 to 1, got {}", options.event_rate));
  ECHOMQ_TRY(const std::vector<ClaimedJob> jobs,
             queue.claim_batch({.size = options.size, .lease = options.lease}).get());
  if (jobs.empty())
    return BatchReport();

  std::vector<std::optional<Outcome>> outcomes = ask(handler, jobs);
  std::vector<BatchMember> members;
  members.reserve(jobs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    std::optional<Outcome>& outcome = outcomes[i];
    BatchMember& member = members.emplace_back(BatchMember{.id = jobs[i].id, .verdict = std::nullopt});
    if (outcome) {
      member.verdict = outcome->kind;
    } else {
      outcome = Retry("missing verdict");
    }
  }
  Settling settling(queue, jobs, outcomes, options);
  settling.finish();

  Teller teller(queue, options);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    members[i].settled = settling.of(i);
    teller.tell(jobs[i].id, *outcomes[i], members[i].settled);
  }
  for (const Settling::Fallen& one : settling.fallen())
    teller.tell_death(one.parent, outcomes[one.by]->text);
  teller.finish();
  return partition_batch(members);
}

}  // namespace v1
}  // namespace echomq
