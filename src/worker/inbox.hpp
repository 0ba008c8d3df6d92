// The control thread's mailbox: answers of the server, runs that ended, wake tokens, the wish to stop.
//
// As a `Target` it takes the continuations of the worker's own calls, so that a worker depends on no thread of the
// user's: an executor that is blocked, or that waits in `stop()`, holds no lease up.
#pragma once

#include <condition_variable>
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
  /// Wakes the reader if it sleeps; called with the lock held.
  void notify();

  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  Mail mail_;                // guarded by mutex_
  bool sleeping_ = false;    // guarded by mutex_
  std::size_t awaited_ = 1;  // guarded by mutex_: so many runs that ended are mail
  bool closed_ = false;      // guarded by mutex_
};

}  // namespace worker
}  // namespace v1
}  // namespace echomq
