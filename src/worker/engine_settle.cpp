// Settling: what a run came to is told to the server, again and again while the lease lasts.
#include <algorithm>
#include <array>
#include <exception>

#include "script/registry.hpp"
#include "worker/engine.hpp"
#include "worker/outcome.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {
namespace {

constexpr Milliseconds kFirstRepeat{50};
constexpr Milliseconds kLongestRepeat{1000};
/// No run waits longer, and no score loses precision.
constexpr Milliseconds kLongestWait = std::chrono::days{36'500};
/// Tries of a settle that the server refuses for a reason of its own (no permission, a script that fails).
constexpr unsigned kMostTries = 30;

enum class Failure : std::uint8_t {
  refused,    ///< by the protocol: somebody else has or had the job
  transient,  ///< the same call may succeed later
  strange,    ///< it may, but not for ever
  invalid,    ///< what the run came to cannot be told: a result that no server takes
  final,      ///< the client is gone
};

[[nodiscard]] Failure failure_of(const Error& error) {
  if (error.code.category() != error_category())
    return Failure::strange;
  switch (static_cast<Errc>(error.code.value())) {
    case Errc::stale_token:
    case Errc::job_gone:
    case Errc::job_locked:
    case Errc::wrong_kind: return Failure::refused;
    case Errc::unreachable:
    case Errc::disconnected:
    case Errc::outcome_unknown:
    case Errc::timeout:
    case Errc::overloaded:
    case Errc::out_of_memory:
    case Errc::read_only:
    case Errc::loading:
    case Errc::moved:
    case Errc::cluster_down: return Failure::transient;
    case Errc::invalid_argument: return Failure::invalid;
    case Errc::client_closed:
    case Errc::forked: return Failure::final;
    default: return Failure::strange;
  }
}

[[nodiscard]] Milliseconds wait_of(const Outcome& outcome) {
  return std::clamp(outcome.after.value_or(Milliseconds{0}), Milliseconds{0}, kLongestWait);
}

[[nodiscard]] std::string_view word(Outcome::Kind kind) {
  switch (kind) {
    case Outcome::Kind::done: return "completed";
    case Outcome::Kind::retry:
    case Outcome::Kind::dead: return "failed";
    case Outcome::Kind::delay: return "delayed";
    case Outcome::Kind::hand_back: break;
  }
  return {};
}

}  // namespace

void Engine::ended(Ended run) {
  const auto found = held_.find(run.job.get());
  --handed_;
  counters_.running.store(static_cast<std::uint32_t>(handed_), std::memory_order_relaxed);
  if (found == held_.end() || run.job->withdrawn.load(std::memory_order_acquire)) {
    // Handed back while it ran: the job may be with another worker by now.
    counters_.settles_refused.fetch_add(1, std::memory_order_relaxed);
    tell_settled(run.job, "dropped: the job was handed back before its handler ended");
    return;
  }
  HeldJob& held = found->second;
  held.outcome = std::move(run.outcome);
  held.by_handler = true;
  settle(held);
}

Milliseconds Engine::settle_deadline() const {
  const Milliseconds usual = std::clamp(options_.lease, Milliseconds{500}, Milliseconds{10'000});
  if (!stopping_)
    return usual;
  const TimePoint end = expired_ ? answers_by_ : stop_by_;
  const auto left = std::chrono::ceil<Milliseconds>(std::max(end - now_, Clock::duration::zero()));
  return std::clamp(left, Milliseconds{500}, usual);
}

Milliseconds Engine::backoff_after(const JobState& job) {
  try {
    return options_.backoff(job.token.value());
  } catch (...) {
    counters_.errors.fetch_add(1, std::memory_order_relaxed);
    log(LogLevel::error, "worker_callback_failed", &job, "backoff");
    return Milliseconds{1000};
  }
}

void Engine::settle(HeldJob& held) {
  const std::shared_ptr<JobState> job = held.job;
  held.phase = Phase::settling;
  ++held.tries;
  const Milliseconds deadline = settle_deadline();
  const auto verdict = [this, job](Verdict positive) {
    return [this, job, positive](Result<void> answer) {
      settled(job, answer ? Result<Verdict>(positive) : fail(std::move(answer).error()));
    };
  };
  Outcome& outcome = held.outcome;
  switch (outcome.kind) {
    case Outcome::Kind::done: {
      CompleteOptions how{.deadline = deadline};
      if (outcome.has_result)
        how.result = outcome.text;
      when(verbs_.complete(job->id, job->token, how), verdict(Verdict::completed));
      break;
    }
    case Outcome::Kind::retry:
    case Outcome::Kind::dead: {
      outcome.text = last_bytes(std::move(outcome.text), options_.max_error_bytes);
      const bool dead = outcome.kind == Outcome::Kind::dead;
      if (!dead && !outcome.after)
        outcome.after = backoff_after(*job);
      const RetryOptions how{.delay = wait_of(outcome),
                             .max_attempts = options_.max_attempts,
                             .error = outcome.text,
                             .deadline = deadline};
      when(dead ? kill(*job, outcome.text, deadline) : verbs_.retry(job->id, job->token, how),
           [this, job](Result<Retried> answer) {
             settled(job, answer ? Result<Verdict>(*answer == Retried::dead ? Verdict::dead : Verdict::retried)
                                 : fail(std::move(answer).error()));
           });
      break;
    }
    case Outcome::Kind::delay:
      when(verbs_.delay(job->id, job->token, wait_of(outcome), deadline), verdict(Verdict::delayed));
      break;
    case Outcome::Kind::hand_back:
      when(verbs_.hand_back(job->id, job->token, deadline), verdict(Verdict::handed_back));
      break;
  }
}

Reply<Retried> Engine::kill(const JobState& job, std::string_view error, Milliseconds deadline) {
  // The verb `retry` asks for one attempt at least, and a job whose lease was lost as often as it was claimed has made
  // none: at a maximum of zero the script ends any job.
  static const script::ScriptSource& retry = *script::find_script("retry");
  const keyspace::KeyText row = keys_.job(job.id);
  const std::string token = job.token.text();
  const std::array<std::string_view, 4> keys = {keys_.active(), keys_.schedule(), keys_.dead(), row};
  const std::array<std::string_view, 6> arguments = {job.id.text(), token, "0", "0", error, keys_.base()};
  return core_->eval<Retried>(retry, keys, arguments, {.repeat = Repeat::safe, .deadline = deadline},
                              [](const wire::Answer&) -> Result<Retried> { return Retried::dead; });
}

void Engine::settled(const std::shared_ptr<JobState>& job, Result<Verdict> answer) {
  const auto found = held_.find(job.get());
  if (found == held_.end())
    return;
  if (answer) {
    finish_job(job, *answer);
  } else {
    settle_failed(found->second, answer.error());
  }
  // The slot of a job in flight may be what the queue's ceiling lacked; no token tells that.
  if (parked_ && !stopping_)
    look();
}

void Engine::settle_failed(HeldJob& held, const Error& error) {
  const std::shared_ptr<JobState> job = held.job;
  const Failure failure = failure_of(error);
  if (failure == Failure::refused) {
    if (held.maybe_done && !held.lapsed && held.outcome.kind == Outcome::Kind::done && error.is(Errc::job_gone)) {
      finish_job(job, Verdict::completed);
      return;
    }
    counters_.settles_refused.fetch_add(1, std::memory_order_relaxed);
    log(LogLevel::warning, "worker_settle_refused", job.get(), error.message());
    drop(job.get());
    tell_settled(job, error.message());
    return;
  }
  call_failed(error, "settle");
  if (error.is(Errc::outcome_unknown))
    held.maybe_done = true;
  if (failure == Failure::invalid && held.outcome.kind == Outcome::Kind::done) {
    held.outcome = Retry(error.message());
    settle(held);
    return;
  }
  const bool give_up = failure == Failure::final || held.lost || held.last_try || expired_ ||
                       (failure >= Failure::strange && held.tries >= kMostTries);
  if (give_up) {
    counters_.unsettled.fetch_add(1, std::memory_order_relaxed);
    if (stopping_)
      ++stop_report_.unsettled;
    log(LogLevel::error, "worker_settle_abandoned", job.get(), error.message());
    drop(job.get());
    tell_settled(job, error.message());
    return;
  }
  held.phase = Phase::waiting;
  const Milliseconds pause = std::min(kFirstRepeat * (1 << std::min(held.tries - 1, 5U)), kLongestRepeat);
  held.again = now_ + spread(pause);
  alarms_.set_earlier(Alarm::repeat, held.again);
}

void Engine::repeat_settles() {
  TimePoint next = TimePoint::max();
  for (auto& [job, held] : held_) {
    if (held.phase != Phase::waiting)
      continue;
    if (held.again <= now_) {
      settle(held);
    } else {
      next = std::min(next, held.again);
    }
  }
  alarms_.set_earlier(Alarm::repeat, next);
}

void Engine::finish_job(const std::shared_ptr<JobState>& job, Verdict verdict) {
  const auto found = held_.find(job.get());
  const Outcome::Kind kind = found->second.outcome.kind;
  const Milliseconds wait = std::min<Milliseconds>(wait_of(found->second.outcome), std::chrono::days{365});
  const bool by_handler = found->second.by_handler;
  drop(job.get());

  const auto count = [](auto& counter) { counter.fetch_add(1, std::memory_order_relaxed); };
  std::string_view told;
  switch (verdict) {
    case Verdict::completed:
      count(counters_.completed);
      told = "done";
      break;
    case Verdict::retried:
      count(counters_.retried);
      told = "retry";
      break;
    case Verdict::dead:
      count(counters_.dead);
      told = "dead";
      break;
    case Verdict::delayed:
      count(counters_.delayed);
      told = "delay";
      break;
    case Verdict::handed_back:
      count(counters_.handed_back);
      told = "hand_back";
      break;
  }
  if (stopping_)
    ++(by_handler ? stop_report_.finished : stop_report_.handed_back);
  if ((verdict == Verdict::retried || verdict == Verdict::delayed) && !stopping_) {
    // The worker knows when it is due without being told.
    due_ = std::min(due_, now_ + wait + Milliseconds{1});
    alarms_.set_earlier(Alarm::promote, due_);
  }
  if (options_.events == WorkerEvents::settled && !word(kind).empty())
    verbs_.publish(word(kind), job->id).detach();
  tell_settled(job, told);
}

void Engine::drop(const JobState* job) {
  const auto found = held_.find(job);
  if (found == held_.end())
    return;
  if (found->second.phase == Phase::handed) {
    --handed_;
    counters_.running.store(static_cast<std::uint32_t>(handed_), std::memory_order_relaxed);
  }
  held_.erase(found);
}

void Engine::tell_settled(const std::shared_ptr<JobState>& job, std::string_view verdict) {
  if (!options_.on_settled)
    return;
  try {
    options_.on_settled(Job(job), verdict);
  } catch (...) {
    counters_.errors.fetch_add(1, std::memory_order_relaxed);
    log(LogLevel::error, "worker_callback_failed", job.get(), "on_settled");
  }
}

}  // namespace worker
}  // namespace v1
}  // namespace echomq
