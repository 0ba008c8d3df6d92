// Runs whose time is over, and runs that somebody wants ended: asked to stop, given a grace, then given up.
#include <algorithm>
#include <string>
#include <utility>

#include "queue/cancel.hpp"
#include "worker/engine.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {
namespace {

/// A job that waits for a slot longer than this is better off with another worker.
constexpr Milliseconds kLongestQueued{100};
/// How long after a failed asking for requests to cancel they are asked for again.
constexpr Milliseconds kMarksFirst{500};
constexpr Milliseconds kMarksLast{30'000};
/// Hand-backs by handlers in a row before claims pause, and for how long: a handler that can run nothing here leaves its jobs
/// to others.
constexpr unsigned kHandBacks = 3;
constexpr Milliseconds kHandBackPause{50};

}  // namespace

void Engine::cancelled(JobId id) {
  if (!cancel_runs(id))
    ask_when_claimed();
}

void Engine::ask_when_claimed() {
  // A later claim finds the mark itself.
  if (claims_ > 0)
    marks_before_ = now_;
  marks_ride_ = riding_;
}

bool Engine::cancel_runs(const JobId& id) {
  const Jobs found = held_of(id, [](const JobState& job) { return job.held.phase == Phase::handed && !job.held.lost; });
  for (const JobPtr& job : found) {
    if (std::exchange(job->held.cancel_told, true))
      continue;  // asked for by the channel and by its mark, or by more than one
    counters_.cancelled.fetch_add(1, std::memory_order_relaxed);
    if (observers_)
      observers_->cancelled(Job(job));
    if (withdraw(job)) {
      --handed_;
      job->stop.request(StopCause::cancelled);
      job->held.outcome = Dead("cancelled");
      settle(job);
      continue;
    }
    ask_to_stop(*job, StopCause::cancelled);
  }
  counters_.running.store(static_cast<std::uint32_t>(handed_), std::memory_order_relaxed);
  return !found.empty();
}

void Engine::ask_for_marks() {
  std::vector<JobId> ids;
  for (const JobPtr& job : held_) {
    if (job->held.phase == Phase::handed && !job->held.lost)
      ids.push_back(job->id);
  }
  if (ids.empty() || closed_)
    return;
  when(queue::marked_of(verbs_, ids), [this](const Result<std::vector<JobId>>& answer) {
    if (!answer) {
      call_failed(answer.error(), "marks");
      marks_pause_ = std::clamp(2 * marks_pause_, kMarksFirst, kMarksLast);
      alarms_.set_earlier(Alarm::marks, now_ + spread(marks_pause_));
      return;
    }
    marks_pause_ = Milliseconds{0};
    for (const JobId& id : *answer)
      (void)cancel_runs(id);
  });
}

void Engine::ask_to_stop(JobState& job, StopCause cause) {
  if (!job.held.in_grace) {
    job.held.in_grace = true;
    job.held.limit = now_ + options_.stop_patience;
    alarms_.set_earlier(Alarm::limit, job.held.limit);
  }
  job.stop.request(cause);
}

void Engine::check_limits() {
  TimePoint next = TimePoint::max();
  Jobs late;
  Jobs over;
  for (const JobPtr& job : held_) {
    Held& held = job->held;
    if (held.phase != Phase::handed || held.leaked)
      continue;  // one that is lost has its slot all the same, until it is given up
    if (held.in_grace) {
      if (held.limit <= now_) {
        over.push_back(job);
      } else {
        next = std::min(next, held.limit);
      }
    } else if (job->timeout) {
      // One that waits for a thread has all its time before it.
      const TimePoint begun = job->begun.load(std::memory_order_acquire);
      const TimePoint end = std::min(begun, now_) + *job->timeout;
      if (end <= now_) {
        late.push_back(job);
      } else {
        next = std::min(next, end);
      }
    }
  }
  alarms_.set_earlier(Alarm::limit, next);
  for (const JobPtr& job : late) {
    counters_.timed_out.fetch_add(1, std::memory_order_relaxed);
    if (observers_)
      observers_->timed_out(job);
    ask_to_stop(*job, StopCause::timeout);
  }
  for (const JobPtr& job : over)
    give_up(job);
}

void Engine::give_up(const JobPtr& job) {
  Held& held = job->held;
  held.leaked = true;
  // One that has lost its lease is settled by whoever has the job now, or by its handler, late.
  held.late = held.lost && !stopping_;
  if (!held.late)
    job->withdrawn.store(true, std::memory_order_release);
  --handed_;
  counters_.running.store(static_cast<std::uint32_t>(handed_), std::memory_order_relaxed);
  if (held.batch) {
    give_up_batch(*held.batch);
  } else {
    held.keeps_slot = pool_->abandon(job.get()) == HandlerPool::Abandoned::stuck;
    if (held.keeps_slot) {
      ++stuck_;
      watch_queued();
    }
    leaks(job);
  }
  if (held.lost) {
    if (!held.late)
      drop(job);
    return;
  }
  held.outcome =
      job->stop.cause() == StopCause::cancelled
          ? Dead("cancelled")
          : Retry("timed out after " + std::to_string(job->timeout.value_or(Milliseconds{0}).count()) + "ms");
  decide(*job);
  settle(job);
}

void Engine::leaks(const JobPtr& job) {
  ++leaked_;
  counters_.leaked.store(static_cast<std::uint32_t>(leaked_), std::memory_order_relaxed);
  log(LogLevel::error, "worker_handler_leaked", job.get(), to_string(job->stop.cause()));
  if (observers_)
    observers_->leaked(job);
  if (sick() && parked_)
    leave_parking();  // or the claim behind its BLPOP would still claim
}

void Engine::leak_returned(const JobPtr& job) {
  --leaked_;
  counters_.leaked.store(static_cast<std::uint32_t>(leaked_), std::memory_order_relaxed);
  log(LogLevel::warning, "worker_leaked_handler_returned", job.get(), to_string(job->stop.cause()));
  if (observers_)
    observers_->leak_returned(job);
}

void Engine::note_end(const Outcome& outcome) {
  if (outcome.kind != Outcome::Kind::hand_back) {
    hand_backs_ = 0;
    return;
  }
  if (++hand_backs_ < kHandBacks || stopping_ || claims_paused_)
    return;
  claims_paused_ = true;
  alarms_.set(Alarm::claim, now_ + kHandBackPause);
  if (parked_)
    leave_parking();  // or the token of the hand-back brings it straight back
}

void Engine::watch_queued() {
  if (!gather_ && handed_ > slots() && !alarms_.pending(Alarm::queued)) {
    begun_then_ = pool_->begun();
    alarms_.set(Alarm::queued, now_ + kLongestQueued);
  }
}

void Engine::return_queued() {
  if (stopping_ || handed_ <= slots())
    return;
  if (pool_->begun() != begun_then_) {
    watch_queued();
    return;
  }
  // Every slot has been busy all the time: what waits goes back, for others or for later.
  prefetch_ = 0;
  counters_.prefetched.store(0, std::memory_order_relaxed);
  Jobs waiting;
  for (const JobPtr& job : held_) {
    if (job->held.phase == Phase::handed && withdraw(job))
      waiting.push_back(job);
  }
  for (const JobPtr& job : waiting) {
    --handed_;
    job->held.outcome = HandBack();
    settle(job);
  }
  counters_.running.store(static_cast<std::uint32_t>(handed_), std::memory_order_relaxed);
}

}  // namespace worker
}  // namespace v1
}  // namespace echomq
