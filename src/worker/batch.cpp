// Batches of flat jobs: the decision, the report, and one round.
#include "echomq/batch.hpp"

#include <fmt/format.h>

#include <array>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "events/event_text.hpp"
#include "events/publisher.hpp"
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

/// `retry` with a maximum that every job has reached.
[[nodiscard]] Reply<Retried> kill(const Queue& queue, const ClaimedJob& job, std::string_view error) {
  const Queue::State& state = queue.internal();
  const keyspace::QueueKeys& keys = state.keys;
  const keyspace::KeyText row = keys.job(job.id);
  const queue::Decimal token(job.token);
  return state.core->eval<Retried>(
      state.scripts.retry, queue::views(keys.active(), keys.schedule(), keys.dead(), row),
      queue::views(job.id.text(), token, std::string_view("0"), std::string_view("0"), error, keys.base()),
      queue::settings(Repeat::safe), [](const wire::Answer& answer) -> Result<Retried> {
        // One that this token has settled before is what it became then.
        const auto text = answer.view.as_text();
        if (text == "dead")
          return Retried::dead;
        if (text == "scheduled")
          return Retried::scheduled;
        return queue::unexpected_reply("retry", answer.view);
      });
}

/// `delay`, counted: the claim is no failure.
[[nodiscard]] Reply<void> put_off(const Queue& queue, const ClaimedJob& job, Milliseconds wait) {
  const Queue::State& state = queue.internal();
  const keyspace::QueueKeys& keys = state.keys;
  ECHOMQ_CHECK(queue::check_wait("wait", wait));
  const keyspace::KeyText row = keys.job(job.id);
  const queue::Decimal token(job.token);
  const queue::Decimal value(wait);
  return state.core->eval<void>(
      state.scripts.delay, queue::views(row, keys.active(), keys.schedule()),
      queue::views(job.id.text(), token, std::string_view("in"), value, std::string_view("count")),
      queue::settings(Repeat::safe), queue::decode_done("delay", queue::Gone::refused));
}

using Settle = std::variant<Reply<void>, Reply<Retried>>;

[[nodiscard]] Settle settle(const Queue& queue, const ClaimedJob& job, const Outcome& outcome,
                            const BatchOptions& options) {
  switch (outcome.kind) {
    case Kind::done: {
      CompleteOptions how;
      if (outcome.has_result)
        how.result = outcome.text;
      return queue.complete(job.id, job.token, how);
    }
    case Kind::retry:
      return queue.retry(job.id, job.token,
                         {.delay = outcome.after.value_or(options.retry_delay),
                          .max_attempts = options.max_attempts,
                          .error = outcome.text});
    case Kind::dead: return kill(queue, job, outcome.text);
    case Kind::delay: return put_off(queue, job, outcome.after.value_or(Milliseconds(0)));
    case Kind::hand_back: break;
  }
  return queue.hand_back(job.id, job.token);
}

[[nodiscard]] BatchSettled answer_of(Settle& reply) {
  if (auto* done = std::get_if<Reply<void>>(&reply))
    return done->get() ? BatchSettled::accepted : BatchSettled::refused;
  const Result<Retried> retried = std::get<Reply<Retried>>(reply).get();
  if (!retried)
    return BatchSettled::refused;
  return *retried == Retried::dead ? BatchSettled::dead : BatchSettled::scheduled;
}

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
    const std::array<events::Extra, 2> extra = {
        {{"error", events::cut_text(outcome.text)}, {"retry", std::string_view("1")}}};
    const bool again = settled == BatchSettled::scheduled;
    const std::size_t first = outcome.text.empty() ? 1 : 0;
    publish("failed", id, std::span(extra).subspan(first, (again ? 2U : 1U) - first));
    if (!again)
      publish("dead", id);
  }
  /// Waits until all of it is sent; at most once, by contract.
  void finish() {
    for (Reply<std::int64_t>& one : replies_) [[maybe_unused]]
      const auto published = one.get();
  }

 private:
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
  std::vector<Settle> settles;
  members.reserve(jobs.size());
  settles.reserve(jobs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    std::optional<Outcome>& outcome = outcomes[i];
    BatchMember& member = members.emplace_back(BatchMember{.id = jobs[i].id, .verdict = std::nullopt});
    if (outcome) {
      member.verdict = outcome->kind;
    } else {
      outcome = Retry("missing verdict");
    }
    settles.push_back(settle(queue, jobs[i], *outcome, options));
  }

  Teller teller(queue, options);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    members[i].settled = answer_of(settles[i]);
    teller.tell(jobs[i].id, *outcomes[i], members[i].settled);
  }
  teller.finish();
  return partition_batch(members);
}

}  // namespace v1
}  // namespace echomq
