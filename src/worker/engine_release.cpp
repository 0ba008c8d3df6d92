// Moving due jobs, recovering expired leases and delivering the outbox, by time and never by idleness.
//
// Each worker of a queue does all of it, at moments that differ by chance; a call that comes second finds nothing and costs
// the server a few microseconds. Bites are bounded, and repeated while they come back full.
#include <algorithm>
#include <string>
#include <utility>

#include "worker/engine.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {
namespace {

constexpr std::uint32_t kBite = 100;
/// How far apart workers that wait for the same due job ask for it.
constexpr Milliseconds kDueSpread{3};
/// The outbox is looked at again so soon after it gave something: children of one flow tend to end together.
constexpr Milliseconds kOutboxFirst{20};

}  // namespace

void Engine::promote() {
  if (stopping_ || closed_ || promoting_)
    return;
  promoting_ = true;
  when(verbs_.promote(kBite), [this](const Result<std::int64_t>& answer) {
    promoting_ = false;
    if (stopping_)
      return;
    const bool was_due = due_ <= now_;
    if (was_due)
      due_ = TimePoint::max();
    if (!answer) {
      call_failed(answer.error(), "promote");
      alarms_.set(Alarm::promote, now_ + spread(Milliseconds{1000}));
      return;
    }
    if (*answer > 0) {
      counters_.promoted.fetch_add(static_cast<std::uint64_t>(*answer), std::memory_order_relaxed);
      new_work();
    } else if (was_due && parked_) {
      look();  // another worker was first: learn what is due next
    }
    if (*answer >= static_cast<std::int64_t>(kBite)) {
      alarms_.set(Alarm::promote, now_);
    } else {
      next_promote();
    }
  });
}

void Engine::next_promote() {
  const TimePoint by_beat = now_ + spread(options_.beat);
  const TimePoint by_due =
      due_ == TimePoint::max() ? due_ : std::max(due_, now_ + Milliseconds{1}) + at_random(kDueSpread);
  alarms_.set(Alarm::promote, std::min(by_beat, by_due));
}

void Engine::sweep() {
  if (stopping_ || closed_ || sweeping_)
    return;
  sweeping_ = true;
  when(verbs_.sweep_stalled({.max_stalled = options_.max_stalled, .limit = kBite}),
       [this](const Result<Swept>& answer) {
         sweeping_ = false;
         if (stopping_)
           return;
         if (!answer) {
           call_failed(answer.error(), "sweep_stalled");
           next_sweep();
           return;
         }
         counters_.recovered.fetch_add(answer->recovered.size(), std::memory_order_relaxed);
         counters_.dead_stalled.fetch_add(answer->dead.size(), std::memory_order_relaxed);
         // Among them may be jobs of this very process, which slept longer than its leases.
         std::vector<HeldJob*> ours;
         for (const auto* ids : {&answer->recovered, &answer->dead}) {
           for (const JobId& id : *ids) {
             for (auto& [job, held] : held_) {
               if (job->id == id && !held.lost && held.phase != Phase::settling)
                 ours.push_back(&held);
             }
           }
         }
         for (HeldJob* held : ours)
           lose(*held, Loss::lapsed, "its lease had lapsed");
         if (!answer->recovered.empty())
           new_work();
         if (answer->recovered.size() + answer->dead.size() >= kBite) {
           alarms_.set(Alarm::sweep, now_);
         } else {
           next_sweep();
         }
       });
}

void Engine::deliver() {
  if (stopping_ || closed_ || delivering_)
    return;
  delivering_ = true;
  when(Flow(verbs_).deliver(kBite), [this](const Result<Delivered>& answer) {
    delivering_ = false;
    if (stopping_)
      return;
    const bool any = answer && answer->delivered > 0;
    const bool full = any && answer->read >= static_cast<std::int64_t>(kBite);
    if (full) {
      outbox_pause_ = Milliseconds{0};
    } else if (any) {
      outbox_pause_ = std::min(kOutboxFirst, options_.outbox_period);
    } else if (!answer || outbox_pause_.count() == 0) {
      outbox_pause_ = options_.outbox_period;
    } else {
      outbox_pause_ = std::min(outbox_pause_ * 2, options_.outbox_period);
    }
    if (answer) {
      tell_delivered(*answer);
    } else {
      call_failed(answer.error(), "deliver");
    }
    alarms_.set(Alarm::deliver, now_ + spread(outbox_pause_));
  });
}

void Engine::tell_delivered(const Delivered& pass) {
  counters_.delivered.fetch_add(static_cast<std::uint64_t>(pass.delivered), std::memory_order_relaxed);
  if (pass.error)
    call_failed(*pass.error, "deliver");
  if (std::exchange(malformed_told_, pass.malformed) != pass.malformed && pass.malformed > 0) {
    log(LogLevel::error, "worker_outbox_malformed", nullptr,
        std::to_string(pass.malformed) + " entries of the outbox are no records and stay there");
  }
}

void Engine::next_sweep() { alarms_.set_earlier(Alarm::sweep, now_ + spread(options_.sweep_period)); }

}  // namespace worker
}  // namespace v1
}  // namespace echomq
