// Settling: what a run came to is told to the server, again and again while the lease lasts.
#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

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
/// No server refuses a text of this size for its size: its `proto-max-bulk-len` cannot be lower.
constexpr std::size_t kNeverTooLarge = std::size_t{1} << 20;
/// Tries of a larger result that ended with their connection, as a server ends one that says too much.
constexpr unsigned kMostBroken = 3;

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

[[nodiscard]] queue::SettleKind kind_of(Outcome::Kind kind) {
  switch (kind) {
    case Outcome::Kind::retry: return queue::SettleKind::retry;
    case Outcome::Kind::dead: return queue::SettleKind::dead;
    case Outcome::Kind::delay: return queue::SettleKind::delay;
    case Outcome::Kind::hand_back: return queue::SettleKind::hand_back;
    case Outcome::Kind::done: break;
  }
  return queue::SettleKind::done;
}

/// What a settle comes to after which the job is claimed once more.
[[nodiscard]] std::optional<queue::Settled> waits_again(Outcome::Kind kind) {
  switch (kind) {
    case Outcome::Kind::retry: return queue::Settled::scheduled;
    case Outcome::Kind::delay: return queue::Settled::delayed;
    case Outcome::Kind::hand_back: return queue::Settled::handed_back;
    default: return std::nullopt;
  }
}

[[nodiscard]] BatchSettled batch_settled(queue::Settled verdict) {
  switch (verdict) {
    case queue::Settled::scheduled: return BatchSettled::scheduled;
    case queue::Settled::dead: return BatchSettled::dead;
    case queue::Settled::gone:
    case queue::Settled::stale: return BatchSettled::refused;
    default: return BatchSettled::accepted;
  }
}

}  // namespace

void Engine::ended(Ended run) {
  if (run.job->batch) {
    batch_ended(*run.job);
    return;
  }
  if (run.job->held.leaked) {
    if (std::exchange(run.job->held.keeps_slot, false))
      --stuck_;
    leak_returned(run.job);
  }
  if (!run.job->held.leaked || run.job->held.late)
    run_ended(run.job, std::move(run.outcome));
}

void Engine::run_ended(const JobPtr& job, Outcome outcome) {
  Held& held = job->held;
  if (!held.leaked)
    --handed_;
  counters_.running.store(static_cast<std::uint32_t>(handed_), std::memory_order_relaxed);
  if (held.index == Held::kNowhere || job->withdrawn.load(std::memory_order_acquire)) {
    // Handed back while it ran: the job may be with another worker by now.
    counters_.settles_refused.fetch_add(1, std::memory_order_relaxed);
    if (held.index == Held::kNowhere)  // else the hand-back is on its way, and its answer is told
      tell_settled(job, JobVerdict::refused, "its lease was lost, and the worker has stopped");
    return;
  }
  held.outcome = std::move(outcome);
  held.by_handler = true;
  decide(*job);
  note_end(held.outcome);
  settle(job);
}

void Engine::decide(JobState& job) {
  Outcome& outcome = job.held.outcome;
  if (job.stop.cause() == StopCause::cancelled && outcome.kind != Outcome::Kind::done) {
    outcome = Dead("cancelled");
    return;
  }
  if (outcome.kind != Outcome::Kind::retry && outcome.kind != Outcome::Kind::dead)
    return;
  outcome.text = last_bytes(std::move(outcome.text), options_.max_error_bytes);
  if (outcome.kind == Outcome::Kind::dead)
    return;
  if (options_.unrecoverable) {
    try {
      // The state is owned by whoever calls; the copy of `Job` only lends it.
      if (options_.unrecoverable(Job(held_[job.held.index]), outcome.text)) {
        outcome.kind = Outcome::Kind::dead;
        return;
      }
    } catch (...) {
      counters_.errors.fetch_add(1, std::memory_order_relaxed);
      log(LogLevel::error, "worker_callback_failed", &job, "unrecoverable");
    }
  }
  if (!outcome.after)
    outcome.after = backoff_after(job);
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
    if (job.backoff) {
      // What a row says that no one can read is as if it said nothing.
      if (const auto own = Backoff::parse(*job.backoff))
        return (*own)(job.failures + 1);
    }
    return options_.backoff(job.failures + 1);
  } catch (...) {
    counters_.errors.fetch_add(1, std::memory_order_relaxed);
    log(LogLevel::error, "worker_callback_failed", &job, "backoff");
    return Milliseconds{1000};
  }
}

void Engine::settle(const JobPtr& job) {
  job->held.phase = Phase::ready;
  ready_.push_back(job);
}

queue::Settlement Engine::settlement_of(const JobPtr& job) {
  Outcome& outcome = job->held.outcome;
  queue::Settlement out{.id = job->id, .token = job->token, .kind = kind_of(outcome.kind)};
  switch (outcome.kind) {
    case Outcome::Kind::done:
      if (outcome.has_result)
        out.text = outcome.text;
      out.keep = options_.keep_results;
      break;
    case Outcome::Kind::retry:
    case Outcome::Kind::dead:
      out.text = outcome.text;
      out.wait = wait_of(outcome);
      out.max_attempts = options_.max_attempts;
      out.keep = options_.keep_results;
      break;
    case Outcome::Kind::delay: out.wait = wait_of(outcome); break;
    case Outcome::Kind::hand_back: break;
  }
  return out;
}

void Engine::settled(const JobPtr& job, queue::Settled verdict) {
  if (job->held.index == Held::kNowhere)
    return;
  switch (verdict) {
    case queue::Settled::gone: settle_refused(job, make_error_code(Errc::job_gone).message(), true); break;
    case queue::Settled::stale: settle_refused(job, make_error_code(Errc::stale_token).message(), false); break;
    default: finish_job(job, verdict); break;
  }
}

void Engine::settle_refused(const JobPtr& job, std::string_view why, bool gone) {
  const Held& held = job->held;
  // A large result that was given up may have been done all the same.
  const bool was_done = held.outcome.kind == Outcome::Kind::done || held.broken >= kMostBroken;
  if (gone && held.maybe_done && !held.lapsed && was_done) {
    finish_job(job, queue::Settled::completed);
    return;
  }
  if (const auto again = waits_again(held.outcome.kind); again && held.maybe_done && !held.lapsed) {
    // Gone from `active`, or with another worker by now: both say that an earlier try was done while the lease was ours.
    finish_job(job, *again);
    return;
  }
  counters_.settles_refused.fetch_add(1, std::memory_order_relaxed);
  if (stopping_)
    ++stop_report_.refused;
  log(LogLevel::warning, "worker_settle_refused", job.get(), why);
  drop(job);
  tell_settled(job, JobVerdict::refused, why);
}

void Engine::settle_failed(const JobPtr& job, const Error& error, bool in_company) {
  Held& held = job->held;
  if (held.index == Held::kNowhere)
    return;
  const Failure failure = failure_of(error);
  if (failure == Failure::refused) {
    settle_refused(job, error.message(), error.is(Errc::job_gone));
    return;
  }
  if (error.is(Errc::outcome_unknown))
    held.maybe_done = true;
  // A server that finds a text too large says so and ends the connection; the call may be sent again until its deadline.
  const bool refusable = failure == Failure::strange || error.is(Errc::outcome_unknown) ||
                         error.is(Errc::disconnected) || error.is(Errc::timeout);
  if (refusable && held.outcome.kind == Outcome::Kind::done && held.outcome.text.size() > kNeverTooLarge) {
    // It takes the connection with it, and what else was on it: no more company, and not for ever.
    held.alone = true;
    if (!in_company && ++held.broken >= kMostBroken) {
      held.outcome = Retry("the server does not take a result of " + std::to_string(held.outcome.text.size()) +
                           " bytes: " + error.message());
      held.alone = false;
      decide(*job);
      settle(job);
      return;
    }
  }
  if (failure >= Failure::strange && failure != Failure::final && in_company) {
    // It may be another one's fault: from now on this one goes by itself.
    held.alone = true;
  } else if (failure == Failure::invalid && held.outcome.kind == Outcome::Kind::done) {
    held.outcome = Retry(error.message());
    decide(*job);
    settle(job);
    return;
  }
  const Milliseconds pause = std::min(kFirstRepeat * (1 << std::min(held.tries - 1, 5U)), kLongestRepeat);
  // Past the stop deadline only what a lost connection has taken goes out again, as long as answers are waited for.
  const bool too_late = expired_ && (failure != Failure::transient || now_ + pause >= answers_by_);
  const bool give_up = failure == Failure::final || held.lost || held.last_try || too_late ||
                       (failure >= Failure::strange && held.tries >= kMostTries);
  if (give_up) {
    counters_.unsettled.fetch_add(1, std::memory_order_relaxed);
    if (stopping_)
      ++stop_report_.unsettled;
    log(LogLevel::error, "worker_settle_abandoned", job.get(), error.message());
    drop(job);
    tell_settled(job, JobVerdict::unsettled, error.message());
    return;
  }
  held.phase = Phase::waiting;
  held.again = now_ + spread(pause);
  alarms_.set_earlier(Alarm::repeat, held.again);
}

void Engine::repeat_settles() {
  TimePoint next = TimePoint::max();
  for (const JobPtr& job : held_) {
    if (job->held.phase != Phase::waiting)
      continue;
    if (job->held.again <= now_) {
      settle(job);
    } else {
      next = std::min(next, job->held.again);
    }
  }
  alarms_.set_earlier(Alarm::repeat, next);
}

void Engine::finish_job(const JobPtr& job, queue::Settled verdict) {
  const Milliseconds wait = std::min<Milliseconds>(wait_of(job->held.outcome), std::chrono::days{365});
  const bool by_handler = job->held.by_handler;
  announce(*job, verdict);
  if (job->held.batch)
    job->held.batch->told[job->held.place].settled = batch_settled(verdict);
  drop(job);

  const auto count = [](auto& counter) { counter.fetch_add(1, std::memory_order_relaxed); };
  JobVerdict told = JobVerdict::done;
  switch (verdict) {
    case queue::Settled::scheduled:
      count(counters_.retried);
      told = JobVerdict::retry;
      break;
    case queue::Settled::dead:
      count(counters_.dead);
      told = JobVerdict::dead;
      break;
    case queue::Settled::delayed:
      count(counters_.delayed);
      told = JobVerdict::delay;
      break;
    case queue::Settled::handed_back:
      count(counters_.handed_back);
      told = JobVerdict::hand_back;
      break;
    default: count(counters_.completed); break;
  }
  if (stopping_)
    ++(told == JobVerdict::hand_back && !by_handler ? stop_report_.handed_back : stop_report_.finished);
  if ((verdict == queue::Settled::scheduled || verdict == queue::Settled::delayed) && !stopping_) {
    // The worker knows when it is due without being told.
    due_ = std::min(due_, now_ + wait + Milliseconds{1});
    alarms_.set_earlier(Alarm::promote, due_);
  }
  const bool failed = told == JobVerdict::retry || told == JobVerdict::dead;
  tell_settled(job, told, failed ? std::string_view(job->held.outcome.text) : std::string_view());
}

void Engine::announce(const JobState& job, queue::Settled verdict) {
  switch (verdict) {
    case queue::Settled::completed: publisher_.add(EventKind::completed, job.id); break;
    case queue::Settled::scheduled: publisher_.add_failed(job.id, job.held.outcome.text, true); break;
    case queue::Settled::dead:
      // Peers expect `failed`; whoever wants the last word listens to `dead`.
      publisher_.add_failed(job.id, job.held.outcome.text, false);
      publisher_.add(job.stop.cause() == StopCause::cancelled ? EventKind::cancelled : EventKind::dead, job.id);
      break;
    case queue::Settled::delayed: publisher_.add(EventKind::delayed, job.id); break;
    default: break;
  }
}

void Engine::tell_expired(const queue::Exchanged& claim) {
  counters_.expired.fetch_add(claim.expired, std::memory_order_relaxed);
  if (observers_)
    observers_->expired(claim.expired_ids);
  for (const std::vector<JobId>* ids : {&claim.expired_ids, &claim.fallen_of_age}) {
    for (const JobId& id : *ids)
      tell_death(id, "expired");
  }
}

void Engine::drop(const JobPtr& job) {
  Held& held = job->held;
  if (held.index == Held::kNowhere)
    return;
  // A run that was given up has left its slot before.
  if (held.phase == Phase::handed && !held.leaked) {
    --handed_;
    counters_.running.store(static_cast<std::uint32_t>(handed_), std::memory_order_relaxed);
  }
  // The last one takes its place; `job` may be the very element that is overwritten.
  const JobPtr keep = job;  // NOLINT(performance-unnecessary-copy-initialization)
  by_id_.remove(*keep);
  const std::size_t index = std::exchange(held.index, Held::kNowhere);
  if (index + 1 != held_.size()) {
    held_[index] = std::move(held_.back());
    held_[index]->held.index = index;
  }
  held_.pop_back();
  if (held.batch)
    leave_batch(*keep);
}

void Engine::tell_settled(const JobPtr& job, JobVerdict verdict, std::string_view text) {
  if (observers_ && !std::exchange(job->held.told, true))
    observers_->settled(job, verdict, text);
}

void Engine::tell_claimed() {
  if (!observers_)
    return;
  observers_->claimed(claimed_);
  for (const Job& job : claimed_) {
    if (job.stop_cause() == StopCause::cancelled)
      observers_->cancelled(job);
  }
  claimed_.clear();
}

}  // namespace worker
}  // namespace v1
}  // namespace echomq
