// Moving due jobs, recovering expired leases and delivering the outbox, by time and never by idleness.
//
// What is periodic is the queue's: script `upkeep` gives each period's turn to the worker that asks first, so there is no
// leader that could be lost. What has a known time (the next due job, the next lapsing lease) is done by every worker that
// sleeps, at moments that differ by chance; a call that comes second finds nothing and costs the server a few
// microseconds. Bites are bounded, and repeated while they come back full.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "queue/flow_deliver.hpp"
#include "queue/state.hpp"
#include "queue/swept.hpp"
#include "script/registry.hpp"
#include "worker/engine.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {
namespace {

/// Calls of about a millisecond of the server's time at most, also of one that is slow: a job that is taken back, or a repeat, costs it more
/// than one that is due.
constexpr std::uint32_t kUpkeepBite = 100;
constexpr std::uint32_t kCostlyBite = 50;
/// How far apart workers that wait for the same due job ask for it.
constexpr Milliseconds kDueSpread{3};
/// How often a worker that does not sleep moves due jobs: nobody tells it of those that others schedule.
constexpr Milliseconds kBusyPromote{250};
/// Jobs in flight that are counted to put a lane's count right: about a millisecond of the server's time.
constexpr std::string_view kMostCounted = "700";
/// The outbox is looked at again so soon after it gave something: children of one flow tend to end together.
constexpr Milliseconds kOutboxFirst{20};

}  // namespace

void Engine::promote() {
  if (stopping_ || closed_ || promoting_)
    return;
  promoting_ = true;
  when(verbs_.promote(kUpkeepBite), [this](const Result<std::int64_t>& answer) {
    promoting_ = false;
    // A stop changes nothing of what was done meanwhile.
    if (answer && *answer > 0)
      counters_.promoted.fetch_add(static_cast<std::uint64_t>(*answer), std::memory_order_relaxed);
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
      new_work();
    } else if (was_due && parked_) {
      look();  // another worker was first: learn what is due next
    }
    if (*answer >= static_cast<std::int64_t>(kUpkeepBite)) {
      alarms_.set(Alarm::promote, now_);
    } else {
      next_promote();
    }
  });
}

void Engine::next_promote() {
  const TimePoint by_beat = now_ + spread(parked_ ? options_.beat : std::min(options_.beat, kBusyPromote));
  const TimePoint by_due =
      due_ == TimePoint::max() ? due_ : std::max(due_, now_ + Milliseconds{1}) + at_random(kDueSpread);
  alarms_.set(Alarm::promote, std::min(by_beat, by_due));
}

void Engine::promote_while_busy() { alarms_.set_earlier(Alarm::promote, now_ + std::min(options_.beat, kBusyPromote)); }

void Engine::upkeep() {
  if (stopping_ || closed_ || keeping_up_)
    return;
  keeping_up_ = true;
  static const script::ScriptSource& upkeep = *script::find_script("upkeep");
  const std::string sweeps = std::to_string(options_.sweep_period.count());
  const std::string outbox = std::to_string(options_.outbox_period.count());
  const std::string repeats = std::to_string(options_.repeat_period.count());
  const std::string rows = std::string(keys_.base()) + "job:";
  const std::array<std::string_view, 5> keys = {keys_.upkeep(), keys_.active(), keys_.flow_outbox(), keys_.repeat(),
                                                keys_.gactive()};
  const std::array<std::string_view, 4> arguments = {sweeps, outbox, repeats, rows};
  auto decode = [](const wire::Answer& answer) -> Result<Turn> {
    std::array<std::int64_t, 4> numbers{};
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto number = answer.view.at(i).as_integer();
      if (!number)
        return fail(Errc::protocol_error, "the reply of script upkeep is not four integers");
      numbers[i] = *number;
    }
    Turn turn{numbers[0] != 0, numbers[1] != 0, numbers[2] != 0, Milliseconds{numbers[3]}, {}};
    const auto& lanes = answer.view.at(4);
    for (std::size_t i = 0; i < lanes.size(); ++i)
      turn.lanes.emplace_back(lanes.at(i).as_text().value_or(std::string_view()));
    return turn;
  };
  when(core_->eval<Turn>(upkeep, keys, arguments, {.repeat = Repeat::unsafe}, decode),
       [this](const Result<Turn>& answer) {
         keeping_up_ = false;
         if (stopping_)
           return;
         if (!answer) {
           call_failed(answer.error(), "upkeep");
           alarms_.set(Alarm::upkeep, now_ + spread(Milliseconds{1000}));
           return;
         }
         if (answer->sweep)
           sweep();
         if (answer->outbox)
           deliver();
         if (answer->repeats)
           fire();
         for (const std::string& lane : answer->lanes)
           mend_lane(lane);
         // Not all workers at once: the first one does it, the others come later and find it done.
         const Milliseconds wait = std::clamp(answer->next, Milliseconds{1}, options_.sweep_period);
         alarms_.set(Alarm::upkeep, now_ + wait + at_random(wait / 4));
       });
}

void Engine::mend_lane(const std::string& lane) {
  if (closed_)
    return;
  static const script::ScriptSource& mend = *script::find_script("lane_mend");
  const std::array<std::string_view, 6> keys = {keys_.active(), keys_.gactive(), keys_.ring(),
                                                keys_.paused(), keys_.glimit(),  keys_.wake()};
  const std::array<std::string_view, 3> arguments = {keys_.base(), lane, kMostCounted};
  auto decode = [](const wire::Answer& answer) -> Result<std::string> {
    return std::string(answer.view.at(0).as_text().value_or("nothing")) + " said, " +
           std::to_string(answer.view.at(1).as_integer().value_or(-1)) + " in flight";
  };
  when(core_->eval<std::string>(mend, keys, arguments, {.repeat = Repeat::safe}, decode),
       [this, lane](const Result<std::string>& answer) {
         if (!answer)
           return call_failed(answer.error(), "lane_mend");
         log(LogLevel::warning, "worker_lane_mended", nullptr, lane + ": " + *answer);
         if (!stopping_)
           new_work();
       });
}

void Engine::fire() {
  if (stopping_ || closed_ || firing_)
    return;
  firing_ = true;
  when(verbs_.fire_repeats(kCostlyBite), [this](const Result<std::int64_t>& answer) {
    firing_ = false;
    if (answer && *answer > 0)
      counters_.fired.fetch_add(static_cast<std::uint64_t>(*answer), std::memory_order_relaxed);
    if (stopping_)
      return;
    if (!answer) {
      call_failed(answer.error(), "fire_repeats");
      return;
    }
    if (*answer > 0)
      new_work();
    if (*answer >= static_cast<std::int64_t>(kCostlyBite))
      fire();
  });
}

void Engine::sweep() {
  if (stopping_ || closed_ || sweeping_)
    return;
  sweeping_ = true;
  when(queue::sweep_lapsed(verbs_, {.max_stalled = options_.max_stalled, .limit = kCostlyBite}),
       [this, sent = now_](const Result<queue::SweptLapsed>& answer) {
         sweeping_ = false;
         if (!answer) {
           if (stopping_)
             return;
           call_failed(answer.error(), "sweep_lapsed");
           alarms_.set_earlier(Alarm::sweep, now_ + spread(options_.sweep_period));
           return;
         }
         const Swept& swept = answer->swept;
         counters_.recovered.fetch_add(swept.recovered.size(), std::memory_order_relaxed);
         counters_.dead_stalled.fetch_add(swept.dead.size(), std::memory_order_relaxed);
         const std::size_t moved = swept.recovered.size() + swept.dead.size();
         if (observers_ && moved > 0)
           observers_->recovered(swept.recovered, swept.dead);
         // Among them may be jobs of this very process, which slept longer than its leases. Not those that have come since: a
         // claim behind the BLPOP brings what this sweep has put back, and its answer may be here first.
         Jobs ours;
         for (const auto* ids : {&swept.recovered, &swept.dead}) {
           for (const JobId& id : *ids) {
             by_id_.each_of(id, [&](const JobState& job) {
               if (job.held.since < sent && !job.held.lost && job.held.phase != Phase::settling)
                 ours.push_back(held_[job.held.index]);
             });
           }
         }
         for (const JobPtr& job : ours)
           lose(job, Loss::lapsed, "its lease had lapsed");
         for (const JobId& id : swept.recovered)
           publisher_.add(EventKind::stalled, id);
         for (const auto* ids : {&swept.dead, &answer->fallen}) {
           for (const JobId& id : *ids)
             tell_death(id, "stalled");
         }
         if (stopping_)
           return;
         // Also a dead one leaves its slot under the queue's ceiling, or its lane's.
         if (moved > 0)
           new_work();
         if (moved >= kCostlyBite)
           alarms_.set(Alarm::sweep, now_);
       });
}

void Engine::deliver() {
  if (stopping_ || closed_ || delivering_)
    return;
  delivering_ = true;
  when(queue::bring(verbs_, kUpkeepBite), [this](const Result<queue::Brought>& answer) {
    delivering_ = false;
    if (answer) {
      tell_delivered(answer->pass);
      tell_fallen(answer->fallen);
    }
    if (stopping_)
      return;
    const bool any = answer && answer->pass.delivered > 0;
    const bool full = any && answer->pass.read >= static_cast<std::int64_t>(kUpkeepBite);
    if (full) {
      outbox_pause_ = Milliseconds{0};
    } else if (any) {
      outbox_pause_ = std::min(kOutboxFirst, options_.outbox_period);
    } else {
      outbox_pause_ = std::min(outbox_pause_ * 2, options_.outbox_period);
    }
    if (!answer)
      call_failed(answer.error(), "deliver");
    // Whoever has delivered something looks again soon; else it is up to the next period.
    if (full || (outbox_pause_.count() > 0 && outbox_pause_ < options_.outbox_period)) {
      alarms_.set(Alarm::deliver, now_ + spread(outbox_pause_));
    } else {
      outbox_pause_ = Milliseconds{0};
    }
  });
}

void Engine::tell_fallen(const std::vector<queue::FallenParent>& parents) {
  if (options_.events == WorkerEvents::nothing)
    return;
  for (const queue::FallenParent& one : parents) {
    if (one.queue == queue_.name()) {
      tell_death(one.parent, one.reason);
      continue;
    }
    // Nobody there may know: its workers hear nothing of the delivery.
    events::EventPublisher there(queue_.internal().core, one.queue, publishing_of(options_));
    there.add_failed(one.parent, one.reason, false);
    there.add(EventKind::dead, one.parent);
  }
}

void Engine::tell_death(const JobId& id, std::string_view why) {
  publisher_.add_failed(id, why, false);
  publisher_.add(EventKind::dead, id);
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

}  // namespace worker
}  // namespace v1
}  // namespace echomq
