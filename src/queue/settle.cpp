// Settlement: what the holder of a token does with its job.
#include <utility>
#include <vector>

#include "queue/cancel.hpp"
#include "queue/join.hpp"
#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace queue;

/// Jobs of one `extend_locks` script.
constexpr std::size_t kExtendChunk = 1000;

[[nodiscard]] Reply<void> delay_with(const Queue::State& state, JobId id, Token token, std::string_view mode,
                                     const Decimal& value, std::optional<Milliseconds> deadline) {
  const keyspace::QueueKeys& keys = state.keys;
  const keyspace::KeyText row = keys.job(id);
  const Decimal token_text(token);
  return eval_with_errors<void>(*state.core, state.scripts.delay, views(row, keys.active(), keys.schedule()),
                                views(id.text(), token_text, mode, value), settings(Repeat::safe, deadline),
                                [](const wire::Answer& answer) -> Result<void> {
                                  if (answer.view.is_error()) {
                                    Error error = wire::to_error(answer.view.error_text());
                                    if (answer.resent && error.is(Errc::job_gone))
                                      return {};
                                    return fail(std::move(error));
                                  }
                                  if (answer.view.as_integer() == 1)
                                    return {};
                                  return unexpected_reply("delay", answer.view);
                                });
}

}  // namespace

Reply<void> Queue::complete(JobId id, Token token, CompleteOptions options) const {
  if (options.result)
    ECHOMQ_CHECK(check_text("result", *options.result));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  const keyspace::QueueKeys& keys = state_->keys;
  const keyspace::KeyText row = keys.job(id);
  const Decimal token_text(token);
  // An empty fourth argument leaves the flow link to the script, which reads it from the row.
  const Views<5> arguments =
      views(id.text(), token_text, keys.base(), std::string_view(), options.result.value_or(std::string_view()));
  return state_->core->eval<void>(
      state_->scripts.complete, views(keys.active(), row), std::span(arguments).first(options.result ? 5 : 3),
      settings(Repeat::safe, options.deadline), decode_done("complete", Gone::done_when_resent));
}

Reply<Retried> Queue::retry(JobId id, Token token, RetryOptions options) const {
  ECHOMQ_CHECK(check_wait("delay", options.delay));
  ECHOMQ_CHECK(check_limit("max_attempts", options.max_attempts));
  ECHOMQ_CHECK(check_text("error", options.error));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  const keyspace::QueueKeys& keys = state_->keys;
  const keyspace::KeyText row = keys.job(id);
  const Decimal token_text(token);
  const Decimal delay(options.delay);
  const Decimal max_attempts(options.max_attempts);
  return eval_with_errors<Retried>(
      *state_->core, state_->scripts.retry, views(keys.active(), keys.schedule(), keys.dead(), row),
      views(id.text(), token_text, delay, max_attempts, options.error, keys.base()),
      settings(Repeat::safe, options.deadline),
      [core = state_->core, row_text = row.str()](const wire::Answer& answer) -> Result<Retried> {
        if (answer.view.is_error()) {
          Error error = wire::to_error(answer.view.error_text());
          // The first attempt scheduled it, and it has run to its end since: a dead job keeps its row.
          if (answer.resent && error.is(Errc::job_gone))
            return Retried::scheduled;
          return fail(std::move(error));
        }
        const auto text = answer.view.as_text();
        if (text == "scheduled")
          return Retried::scheduled;
        if (text == "dead") {
          if (!answer.resent)
            take_mark_off(*core, row_text);
          return Retried::dead;
        }
        return unexpected_reply("retry", answer.view);
      });
}

Reply<void> Queue::delay(JobId id, Token token, Milliseconds in, std::optional<Milliseconds> deadline) const {
  ECHOMQ_CHECK(check_wait("in", in));
  ECHOMQ_CHECK(check_deadline(deadline));
  return delay_with(*state_, id, token, "in", Decimal(in), deadline);
}

Reply<void> Queue::delay_until(JobId id, Token token, Instant at, std::optional<Milliseconds> deadline) const {
  ECHOMQ_CHECK(check_instant("at", at));
  ECHOMQ_CHECK(check_deadline(deadline));
  return delay_with(*state_, id, token, "at", Decimal(at), deadline);
}

Reply<void> Queue::hand_back(JobId id, Token token, std::optional<Milliseconds> deadline) const {
  ECHOMQ_CHECK(check_deadline(deadline));
  const keyspace::QueueKeys& keys = state_->keys;
  const keyspace::KeyText row = keys.job(id);
  const Decimal token_text(token);
  return eval_with_errors<void>(*state_->core, state_->scripts.hand_back, views(keys.active(), row),
                                views(id.text(), token_text, keys.base()), settings(Repeat::safe, deadline),
                                [](const wire::Answer& answer) -> Result<void> {
                                  if (answer.view.is_error()) {
                                    Error error = wire::to_error(answer.view.error_text());
                                    // Given back by the first attempt, and claimed by another since.
                                    if (answer.resent && error.is(Errc::stale_token))
                                      return {};
                                    return fail(std::move(error));
                                  }
                                  const auto number = answer.view.as_integer();
                                  if (number == 1 || (number == 0 && answer.resent))
                                    return {};
                                  if (number == 0)
                                    return fail(Errc::job_gone, "hand_back: the job is gone, or no longer active");
                                  return unexpected_reply("hand_back", answer.view);
                                });
}

Reply<void> Queue::extend(JobId id, Token token, Milliseconds lease, std::optional<Milliseconds> deadline) const {
  ECHOMQ_CHECK(check_lease(lease));
  ECHOMQ_CHECK(check_deadline(deadline));
  const keyspace::QueueKeys& keys = state_->keys;
  const keyspace::KeyText row = keys.job(id);
  const Decimal token_text(token);
  const Decimal lease_text(lease);
  return state_->core->eval<void>(state_->scripts.extend_lock, views(keys.active(), row),
                                  views(id.text(), token_text, lease_text), settings(Repeat::safe, deadline),
                                  decode_done("extend", Gone::refused));
}

Reply<std::vector<JobId>> Queue::extend_many(std::span<const Held> held, Milliseconds lease,
                                             std::optional<Milliseconds> deadline) const {
  ECHOMQ_CHECK(check_lease(lease));
  ECHOMQ_CHECK(check_deadline(deadline));
  if (held.empty())
    return Result<std::vector<JobId>>(std::vector<JobId>());

  const keyspace::QueueKeys& keys = state_->keys;
  const script::ScriptSource& script = state_->scripts.extend_locks;
  const Decimal lease_text(lease);
  std::vector<Decimal> tokens;
  std::vector<std::string_view> arguments;
  const auto encode = [&](std::span<const Held> some) {
    tokens.clear();
    tokens.reserve(some.size());  // the views below stay valid
    arguments = {keys.base(), lease_text};
    arguments.reserve(2 + 2 * some.size());
    for (const Held& one : some) {
      arguments.push_back(one.id.text());
      arguments.push_back(tokens.emplace_back(one.token));
    }
  };
  if (held.size() <= kExtendChunk) {
    encode(held);
    return state_->core->eval<std::vector<JobId>>(
        script, views(keys.active()), arguments, settings(Repeat::safe, deadline),
        [](const wire::Answer& answer) { return read_ids("extend_many", answer.view); });
  }
  const std::size_t chunks = (held.size() + kExtendChunk - 1) / kExtendChunk;
  auto* join = make_join<std::vector<JobId>>(chunks, [](std::span<Value> parts) -> Result<std::vector<JobId>> {
    std::vector<JobId> failed;
    for (const Value& part : parts) {
      for (const Value& item : part.items()) {
        ECHOMQ_TRY(const JobId id, JobId::parse(item.as_text().value_or("")));
        failed.push_back(id);
      }
    }
    return failed;
  });
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    const std::size_t first = chunk * kExtendChunk;
    encode(held.subspan(first, std::min(kExtendChunk, held.size() - first)));
    const ScriptParts parts(script, views(keys.active()), arguments);
    join->ask(*state_->core, chunk, parts.parts(), &script, settings(Repeat::safe, deadline));
  }
  return join->started();
}

}  // namespace v1
}  // namespace echomq
