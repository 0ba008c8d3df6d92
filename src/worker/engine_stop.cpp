// Stopping: no more claims at once; the handlers up to the deadline; then everything goes back at once.
#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "worker/engine.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {
namespace {

/// How long the answers to the hand-backs are waited for once the deadline has passed.
constexpr Milliseconds kAnswersAfterDeadline{2000};
/// How long the answers to calls that carry no job are waited for at the very end.
constexpr Milliseconds kLinger{500};

}  // namespace

void Engine::begin_stop(TimePoint deadline) {
  stop_by_ = std::min(stop_by_, deadline);
  if (stopping_)
    return;
  stopping_ = true;
  begins_at_once_.store(false, std::memory_order_relaxed);
  log(LogLevel::info, "worker_stopping", nullptr, std::to_string(handed_) + " running");
  for (const Alarm alarm : {Alarm::claim, Alarm::promote, Alarm::sweep, Alarm::upkeep, Alarm::deliver, Alarm::queued,
                            Alarm::gather, Alarm::pass, Alarm::beat})
    alarms_.clear(alarm);
  parked_ = false;
  watch_->park(false);  // a token that its BLPOP still takes goes back to the list; a claim behind it comes back
  if (named_)
    take_name_out();
  // Whatever it knew or was told: it may have given up what it knew of the next due job for a run, and be the only one.
  pass_token_on();

  Jobs untouched;
  Jobs late;
  for (const JobPtr& job : held_) {
    if (job->held.phase != Phase::handed)
      continue;
    if (job->held.leaked) {
      late.push_back(job);
    } else if (withdraw(job)) {
      untouched.push_back(job);
    }
  }
  // Their handlers were given up, and somebody else has the jobs: nothing to wait for.
  for (const JobPtr& job : late) {
    job->withdrawn.store(true, std::memory_order_release);
    drop(job);
  }
  for (const JobPtr& job : untouched) {
    --handed_;
    job->held.outcome = HandBack();
    settle(job);
  }
  counters_.running.store(static_cast<std::uint32_t>(handed_), std::memory_order_relaxed);
}

void Engine::hand_back_all() {
  expired_ = true;
  answers_by_ = now_ + kAnswersAfterDeadline;
  handlers_by_ = now_ + options_.stop_grace;
  Jobs running;
  Jobs lost;
  for (const JobPtr& job : held_) {
    Held& held = job->held;
    if (held.phase == Phase::waiting) {
      held.last_try = true;
      settle(job);
    } else if (held.phase == Phase::handed) {
      running.push_back(job);
      job->withdrawn.store(true, std::memory_order_release);
      if (held.lost) {
        held.phase = Phase::settling;  // whoever has it now settles it
        lost.push_back(job);
      } else {
        held.outcome = job->stop.cause() == StopCause::cancelled ? Dead("cancelled") : HandBack();
        settle(job);
      }
    }
  }
  for (const JobPtr& job : lost)
    drop(job);
  while (send_exchange()) {
  }
  // Callbacks of stop tokens are the user's and may take their time, so the jobs are on their way before.
  for (const JobPtr& job : running)
    job->stop.request(StopCause::worker_stopped);
}

void Engine::advance_stop() {
  if (!expired_ && now_ >= stop_by_)
    hand_back_all();
  while (send_exchange()) {
  }
  const bool settled = held_.empty() && claims_ == 0;
  if (settled && handed_ == 0) {
    if (linger_by_ == TimePoint::max())
      linger_by_ = now_ + (riding_ ? kAnswersAfterDeadline : kLinger);
    if (calls_ == 0 || now_ >= linger_by_) {
      finish();
    } else {
      alarms_.set(Alarm::stop, linger_by_);
    }
    return;
  }
  if (!expired_) {
    alarms_.set(Alarm::stop, stop_by_);
    return;
  }
  const bool answers_over = settled || now_ >= answers_by_;
  const bool handlers_over = handed_ == 0 || now_ >= handlers_by_;
  if (answers_over && handlers_over) {
    finish();
    return;
  }
  alarms_.set(Alarm::stop,
              std::min(answers_over ? TimePoint::max() : answers_by_, handlers_over ? TimePoint::max() : handlers_by_));
}

void Engine::finish() {
  finished_ = true;
  bool untold = riding_ || watch_->take_tokens() > 0;  // a token came, or may have come, whose claim is not back
  watch_.reset();
  counters_.unsettled.fetch_add(held_.size(), std::memory_order_relaxed);
  stop_report_.unsettled += held_.size();
  ready_.clear();
  by_id_.clear();
  for (const JobPtr& job : std::exchange(held_, {})) {
    tell_settled(job, JobVerdict::unsettled, "the worker has stopped, and the server has not answered");
    if (job->held.batch)
      leave_batch(*job);
  }
  cancels_.reset();
  publisher_.close();
  stop_report_.leaked = pool_->shutdown();
  counters_.leaked.store(static_cast<std::uint32_t>(stop_report_.leaked), std::memory_order_relaxed);
  // Whoever answers from now on finds the box closed; what is in it is let go here.
  const Mail rest = inbox_->close();
  for (const Continuation& answer : rest.answers)
    answer();
  untold = untold || rest.wakes > 0;
  if (untold && !closed_) {
    // Too late to look whether it is needed; who sleeps next drops what is too much.
    const auto send = [this](std::span<const std::string_view> words) {
      core_->command<void>(words, {.repeat = Repeat::safe}, [](const wire::Answer&) -> Result<void> { return {}; })
          .detach();
    };
    send(std::array<std::string_view, 3>{"LPUSH", keys_.wake(), "1"});
    send(std::array<std::string_view, 4>{"LTRIM", keys_.wake(), "0", "63"});
  }
  log(stop_report_.unsettled + stop_report_.leaked > 0 ? LogLevel::warning : LogLevel::info, "worker_stopped", nullptr,
      std::to_string(stop_report_.finished) + " finished, " + std::to_string(stop_report_.handed_back) +
          " handed back, " + std::to_string(stop_report_.unsettled) + " left to their lease, " +
          std::to_string(stop_report_.leaked) + " handlers still run");
  const std::lock_guard lock(mutex_);
  report_ = stop_report_;
  stopped_ = true;
  stopped_changed_.notify_all();
}

}  // namespace worker
}  // namespace v1
}  // namespace echomq
