// One run of one job: what its handler, the control thread and a leaked thread share.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>

#include "echomq/queue.hpp"
#include "echomq/worker.hpp"
#include "queue/exchange.hpp"
#include "worker/held.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {

/// The stop of a run. Its `std::stop_source`, which costs an allocation, is made when somebody asks for the token.
class StopSwitch {
 public:
  [[nodiscard]] std::stop_token token() {
    const std::lock_guard lock(mutex_);
    if (!source_) {
      source_.emplace();
      if (cause() != StopCause::none)
        source_->request_stop();
    }
    return source_->get_token();
  }
  [[nodiscard]] StopCause cause() const noexcept { return cause_.load(std::memory_order_acquire); }
  /// The first cause stands. Callbacks of the token run on this thread, outside of the lock.
  void request(StopCause cause) {
    std::optional<std::stop_source> source;
    {
      const std::lock_guard lock(mutex_);
      StopCause none = StopCause::none;
      cause_.compare_exchange_strong(none, cause, std::memory_order_acq_rel);
      source = source_;
    }
    if (source)
      source->request_stop();
  }

 private:
  std::mutex mutex_;
  std::optional<std::stop_source> source_;  // guarded by mutex_
  std::atomic<StopCause> cause_{StopCause::none};
};

/// Immutable but for its flags and `held`. The handler's thread owns it by `shared_ptr`: a handler that never returns
/// keeps it.
struct JobState {
  JobState(Queue its_queue, queue::TakenJob taken)
      : queue(std::move(its_queue)),
        id(taken.job.id),
        token(taken.job.token),
        payload(std::move(taken.job.payload)),
        lane(taken.job.lane),
        max_attempts(taken.max_attempts),
        timeout(taken.timeout),
        backoff(std::move(taken.backoff)),
        traceparent(std::move(taken.traceparent)),
        failures(taken.failures) {}
  JobState(Queue its_queue, ClaimedJob claimed)
      : JobState(std::move(its_queue), queue::TakenJob{.job = std::move(claimed)}) {}

  const Queue queue;
  const JobId id;
  const Token token;
  const std::string payload;
  const std::optional<LaneId> lane;
  const std::optional<std::uint32_t> max_attempts;
  std::optional<Milliseconds> timeout;  ///< the worker's when the row has none; fixed before the job is handed out
  const std::optional<std::string> backoff;
  const std::optional<std::string> traceparent;
  const std::uint64_t failures;  ///< runs before this one that failed

  Milliseconds lease{0};  ///< what the renewals give; fixed before the job is handed out
  bool announced = true;  ///< whether events of it are published; fixed before the job is handed out

  StopSwitch stop;
  std::atomic<bool> lease_lost{false};
  /// Settled without its handler while that ran: what the handler still does counts for nothing.
  std::atomic<bool> withdrawn{false};
  /// Until when its handler has asked for the lease itself; the renewals do not shorten it.
  std::atomic<TimePoint> extended_until{TimePoint::min()};
  /// What of that stands whatever becomes of the extensions that are not answered.
  std::atomic<TimePoint> extended_for_certain{TimePoint::min()};
  /// When its handler began; set by the pool.
  std::atomic<TimePoint> begun{TimePoint::max()};

  /// It has one of the pool's slots; of a coroutine only.
  std::atomic<bool> in_slot{false};

  /// Of a carrier only: the batch whose handler runs in its name. A carrier is no job and is held by nobody but the pool.
  std::shared_ptr<BatchRun> batch;

  Held held;  ///< the control thread's
};

}  // namespace worker
}  // namespace v1
}  // namespace echomq
