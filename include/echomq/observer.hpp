// `WorkerObserver`: what a worker does, told as it happens, for logs, metrics and traces.
//
// Derive from it, override what is of interest, and give it to `WorkerOptions::observer`; one object may watch many
// workers. `WorkerMetrics` (metrics.hpp) is a ready one. A worker that nobody watches pays one branch a place.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string_view>

#include "echomq/id.hpp"
#include "echomq/names.hpp"
#include "echomq/worker.hpp"

namespace echomq {
inline namespace v1 {

/// What became of a claimed job, by the server's own answer.
enum class JobVerdict : std::uint8_t {
  done,       ///< complete
  retry,      ///< failed, and will be run again
  delay,      ///< put off
  dead,       ///< failed for good, or cancelled
  hand_back,  ///< waiting again, not held against it
  refused,    ///< the settle does not count: somebody else has or had the job, or it was handed back before
  unsettled,  ///< given up without an answer: the job comes back by its lease
};
[[nodiscard]] std::string_view to_string(JobVerdict verdict) noexcept;

struct JobSettled {
  JobVerdict verdict = JobVerdict::done;
  /// The error that is kept of `retry` and `dead`, the reason of `refused` and `unsettled`; empty otherwise. Valid during
  /// the call.
  std::string_view text;
};

/// What a claimed job was about when its lease was lost.
enum class LeaseLost : std::uint8_t {
  waiting,   ///< its handler had not begun, and will not: nothing more is told of this claim
  running,   ///< its handler runs; the stop of its token was requested
  settling,  ///< its handler has ended, and the settle is not answered: `settled` says how that goes
};

/// All methods do nothing until they are overridden. What they throw is caught, counted in `WorkerStats::errors` and
/// logged (`worker_callback_failed`), and the worker goes on.
///
/// Threads: `started` and `ended` are called on the thread that runs the handler, side by side for handlers that run
/// side by side; all others on the worker's control thread, one at a time. That thread renews the leases, so they must
/// not block there, and blocking calls of this library answer `would_deadlock`. One observer of several workers is called
/// by all their threads.
///
/// Order, for one claim of a job: `claimed`; `started`; `ended`; `settled`. A handler that was given up
/// (`WorkerStats::leaked`), or outlives the hand-back of a stop, ends after its job was settled. A job that goes back
/// before its handler began is only claimed and settled. In a `BatchWorker` each member is told of by itself.
///
/// Lifetime: the worker shares it, and so does every handler that still runs.
class WorkerObserver {
 public:
  WorkerObserver() = default;
  WorkerObserver(const WorkerObserver&) = delete;
  WorkerObserver& operator=(const WorkerObserver&) = delete;
  virtual ~WorkerObserver();

  /// Jobs that one call has claimed, before any of their handlers begins; never none.
  virtual void claimed(std::span<const Job> jobs);
  /// The handler is about to be called, for a coroutine: begun, on this thread.
  virtual void started(const Job& job);
  /// The handler has returned, or thrown, for a coroutine: on the thread where it ended. `outcome` is what it came to,
  /// before the policy of retries; `ran` the time since it began.
  virtual void ended(const Job& job, const Outcome& outcome, std::chrono::nanoseconds ran);
  /// A settle was answered or given up.
  virtual void settled(const Job& job, const JobSettled& how);
  virtual void lease_lost(const Job& job, LeaseLost when);
  /// Its time is over, and the stop of its token is about to be requested.
  virtual void timed_out(const Job& job);
  /// Somebody wants it ended: it waits for its handler, which will not be called, or the stop of its token is about to be
  /// requested.
  virtual void cancelled(const Job& job);
  /// Its handler did not return within `stop_patience` and was given up; of a batch, told of its first member.
  virtual void leaked(const Job& job);
  /// A handler that was given up has returned after all.
  virtual void leak_returned(const Job& job);
  /// Jobs whose leases had expired were taken back by this worker: `waiting` again, or `dead` at `max_stalled`.
  virtual void recovered(const QueueName& queue, std::span<const JobId> waiting, std::span<const JobId> dead);
  /// Jobs past their `RunOptions::expire`, which a claim of this worker has moved to dead; never none.
  virtual void expired(const QueueName& queue, std::span<const JobId> dead);
};

}  // namespace v1
}  // namespace echomq
