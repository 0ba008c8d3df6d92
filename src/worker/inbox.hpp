// The control thread's mailbox: answers of the server, runs that ended, wake tokens, the wish to stop.
//
// As a `Target` it takes the continuations of the worker's own calls, so that a worker depends on no thread of the
// user's: an executor that is blocked, or that waits in `stop()`, holds no lease up.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "echomq/worker.hpp"
#include "worker/alarms.hpp"
#include "worker/job.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {

struct Ended {
  std::shared_ptr<JobState> job;
  Outcome outcome;
};

/// Everything that came since the last look.
struct Mail {
  std::vector<Continuation> answers;
  std::vector<Ended> ended;
  std::uint64_t wakes = 0;
  std::vector<JobId> cancels;  ///< jobs somebody wants ended
  bool armed = false;
  std::optional<TimePoint> stop_by;
};

/// Thread-safe. Whoever posts into a closed box runs the continuation itself: it finds `closed()` and does nothing.
class Inbox final : public detail::Target {
 public:
  void post(Continuation continuation) override;
  void ended(std::shared_ptr<JobState> job, Outcome outcome);
  void woken();
  void cancel(JobId job);
  /// Requests to cancel are heard from now on; earlier ones may have been missed.
  void armed();
  /// The earliest of several wishes counts.
  void stop_by(TimePoint deadline);

  /// Sleeps until there is mail or until `until`; gives all of it. Runs that ended count as mail once there are `ended`
  /// of them: a reader who cannot use fewer, because an answer is under way, is not woken for each.
  void wait(Mail& mail, TimePoint until, std::size_t ended = 1);
  /// From now on nothing is kept. Gives what nobody has read.
  [[nodiscard]] Mail close();
  [[nodiscard]] bool closed() const;

 private:
  [[nodiscard]] bool empty() const;
  /// Whether the reader sleeps and is to be woken, without the lock; called with the lock held.
  [[nodiscard]] bool rouse() { return asleep_.exchange(0, std::memory_order_relaxed) != 0; }
  void wake();
  /// Puts something in, unless the box is closed; `put` says whether it is worth waking the reader for.
  template <typename Put>
  void put(Put put);

  mutable std::mutex mutex_;
  std::atomic<std::uint32_t> asleep_{0};  // what the reader sleeps on; written with mutex_ held
  Mail mail_;                             // guarded by mutex_
  std::size_t awaited_ = 1;               // guarded by mutex_: so many runs that ended are mail
  bool closed_ = false;                   // guarded by mutex_
};

}  // namespace worker
}  // namespace v1
}  // namespace echomq
