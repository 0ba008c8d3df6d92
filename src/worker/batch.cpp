// Batches of flat jobs: the decision, the report, and one round.
#include "echomq/batch.hpp"

#include <fmt/format.h>

#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

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
      queue::settings(Repeat::safe), [](const wire::Answer&) -> Result<Retried> { return Retried::dead; });
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
    case Kind::delay: return queue.delay(job.id, job.token, outcome.after.value_or(Milliseconds(0)));
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

[[nodiscard]] std::string_view event_of(Kind kind) noexcept {
  switch (kind) {
    case Kind::done: return "completed";
    case Kind::retry:
    case Kind::dead: return "failed";
    case Kind::delay: return "delayed";
    case Kind::hand_back: break;
  }
  return {};
}

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

  std::vector<Reply<std::int64_t>> events;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    members[i].settled = answer_of(settles[i]);
    const std::string_view event = event_of(outcomes[i]->kind);
    if (options.events == WorkerEvents::settled && members[i].settled != BatchSettled::refused && !event.empty())
      events.push_back(queue.publish(event, jobs[i].id));
  }
  for (Reply<std::int64_t>& event : events) [[maybe_unused]]
    const auto published = event.get();  // at most once, by contract
  return partition_batch(members);
}

}  // namespace v1
}  // namespace echomq
