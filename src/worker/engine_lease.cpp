// Keeping leases: all held jobs are renewed together, from the claim until the settle is answered.
//
// Our clock runs from before a claim or a renewal was sent, so the server's lease never ends before ours. A lease is
// lost when the server says so, or when ours has run out unrenewed; both are told to the handler at once.
#include <algorithm>
#include <unordered_set>

#include "worker/engine.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {
namespace {

/// Jobs renewed by one script call.
constexpr std::size_t kRenewBite = 256;

}  // namespace

void Engine::renew() {
  if (closed_ || renewals_ > 0)
    return;  // the answer in flight sets the next alarm, and it has a deadline
  Jobs jobs;
  std::vector<echomq::Held> bite;
  const auto send = [&] {
    ++renewals_;
    when(verbs_.extend_many(bite, options_.lease, std::max(options_.lease / 3, Milliseconds{50})),
         [this, jobs = std::move(jobs), sent = now_](const Result<std::vector<JobId>>& answer) {
           renewed(jobs, sent, answer);
         });
    jobs.clear();
    bite.clear();
  };
  TimePoint lapses = TimePoint::max();
  for (const JobPtr& job : held_) {
    if (!job->held.lost)
      lapses = std::min(lapses, lease_of(*job));
    // A handler that has asked for a longer lease itself keeps it. Of a job that is here once more, while the settle of its last run is not
    // answered, that run has no lease: it would be refused, by the id that both have.
    if (job->held.lost || job->extended_until.load(std::memory_order_acquire) > now_ + options_.lease ||
        is_here_again(*job))
      continue;
    jobs.push_back(job);
    bite.push_back({job->id, job->token});
    if (bite.size() == kRenewBite)
      send();
  }
  if (!bite.empty())
    send();
  alarms_.set(Alarm::lapse, lapses);  // a handler's extension counts before its answer, and may have come to nothing
  if (renewals_ == 0 && !held_.empty())
    alarms_.set_earlier(Alarm::renew, now_ + options_.lease / 3);  // all of them have a longer lease for now
}

void Engine::renewed(const Jobs& jobs, TimePoint sent, const Result<std::vector<JobId>>& answer) {
  --renewals_;
  if (!answer) {
    call_failed(answer.error(), "extend_locks");
    if (renewals_ == 0)
      set_lapse_alarm();
    alarms_.set_earlier(Alarm::renew, now_ + std::clamp(options_.lease / 20, Milliseconds{10}, Milliseconds{1000}));
    return;
  }
  const std::unordered_set<JobId> refused(answer->begin(), answer->end());
  for (const JobPtr& job : jobs) {
    Held& held = job->held;
    if (held.index == Held::kNowhere || held.lost)
      continue;
    if (!refused.contains(job->id)) {
      held.lease_until = std::max(held.lease_until, sent + options_.lease);
    } else if (held.phase != Phase::settling) {  // else the settle in flight may be why; its answer tells
      lose(job, Loss::refused, "refused by the server");
    }
  }
  // Once for all answers: until then the alarm is early at worst.
  if (renewals_ == 0)
    set_lapse_alarm();
  if (!held_.empty())
    alarms_.set_earlier(Alarm::renew, std::max(sent + options_.lease / 3, now_));
}

void Engine::set_lapse_alarm() {
  TimePoint first = TimePoint::max();
  for (const JobPtr& job : held_) {
    if (!job->held.lost)
      first = std::min(first, lease_of(*job));
  }
  alarms_.set(Alarm::lapse, first);
}

bool Engine::is_here_again(const JobState& job) const {
  bool later = false;
  by_id_.each_of(job.id, [&](const JobState& other) { later = later || other.token > job.token; });
  return later;
}

TimePoint Engine::lease_of(const JobState& job) {
  return std::max(job.held.lease_until, job.extended_until.load(std::memory_order_acquire));
}

void Engine::lapse() {
  Jobs lapsed;
  for (const JobPtr& job : held_) {
    if (!job->held.lost && lease_of(*job) <= now_)
      lapsed.push_back(job);
  }
  for (const JobPtr& job : lapsed)
    lose(job, Loss::lapsed, "not renewed in time");
  set_lapse_alarm();
}

void Engine::lose(const JobPtr& job, Loss loss, std::string_view why) {
  Held& held = job->held;
  if (loss == Loss::refused && held.maybe_done && (held.phase == Phase::waiting || held.phase == Phase::ready)) {
    // By our clock the lease still runs, so nobody else can have the job: it is the earlier try that was done.
    held.last_try = true;
    if (held.phase == Phase::waiting)
      settle(job);
    return;
  }
  held.lost = true;
  held.lapsed = loss == Loss::lapsed;
  counters_.leases_lost.fetch_add(1, std::memory_order_relaxed);
  log(LogLevel::warning, "worker_lease_lost", job.get(), why);
  LeaseLost when = LeaseLost::settling;
  switch (held.phase) {
    case Phase::ready:
    case Phase::settling: break;
    case Phase::waiting:
      settle(job);  // the last try
      break;
    case Phase::handed:
      job->lease_lost.store(true, std::memory_order_release);
      if (withdraw(job)) {
        when = LeaseLost::waiting;
        drop(job);
        break;
      }
      when = LeaseLost::running;
      ask_to_stop(*job, StopCause::lease_lost);
      break;
  }
  if (observers_)
    observers_->lease_lost(job, when);
}

}  // namespace worker
}  // namespace v1
}  // namespace echomq
