// Batches: when to take one, one handler call for all of it, and what became of each member; a worker of them.
//
// A batch is a unit of claiming only: every member has its own token and is settled by its own verdict.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "echomq/error.hpp"
#include "echomq/id.hpp"
#include "echomq/queue.hpp"
#include "echomq/task.hpp"
#include "echomq/worker.hpp"

namespace echomq {
inline namespace v1 {

/// When a batch is taken: as soon as `min_size` jobs wait, or when the window is `timeout` old and any job waits.
struct BatchShape {
  std::uint32_t min_size = 1;
  Milliseconds timeout{1000};

  /// Both must be 1 or more. Errors: invalid_argument naming the knob and its value.
  [[nodiscard]] Result<void> check() const;
  /// How many to claim now: all that wait; nothing: look again later. Pure.
  [[nodiscard]] std::optional<std::uint64_t> decide(std::uint64_t depth, Milliseconds elapsed) const noexcept;
};

/// What became of a member's settle.
enum class BatchSettled : std::uint8_t {
  accepted,   ///< complete, delay or hand-back was done
  scheduled,  ///< it will be run again
  dead,       ///< it has failed for good
  refused,    ///< stale, gone, or no answer: somebody else has it, or its lease ends
};

/// One member of a batch that was settled.
struct BatchMember {
  JobId id;
  std::optional<Outcome::Kind> verdict;  ///< absent: the handler gave none
  BatchSettled settled = BatchSettled::refused;
};

/// The members of a batch, each in exactly one list, in claim order.
struct BatchReport {
  std::vector<JobId> completed;
  std::vector<JobId> delayed;
  std::vector<JobId> dead;     ///< told by the settle's answer, never by the verdict
  std::vector<JobId> retried;  ///< all others: run again, handed back, or refused
};

/// Sorts members into the lists. Pure.
[[nodiscard]] BatchReport partition_batch(std::span<const BatchMember> members);

struct BatchOptions {
  std::uint32_t size = 1000;       ///< at most so many jobs; >= 1
  Milliseconds lease{30000};       ///< > 0. Not renewed: it must cover the handler and the settles
  Milliseconds retry_delay{1000};  ///< of a failure without a wait of its own; >= 0
  std::uint32_t max_attempts = 3;  ///< >= 1; of jobs that were admitted without one of their own
  WorkerEvents events = WorkerEvents::settled;
  double event_rate = 1.0;  ///< of `WorkerEvents::sampled`: the share of jobs, 0 to 1
};

/// Gets all jobs of a batch in claim order and gives their outcomes in the same order. One that is absent, or beyond
/// the end of the list, is a failure `missing verdict`; an exception is a failure of all with its message.
using BatchRoundHandler = std::function<std::vector<std::optional<Outcome>>(std::span<const ClaimedJob>)>;

/// One round: claims a batch (`Queue::claim_batch`), calls the handler once on this thread, settles each member by its
/// own outcome, and then publishes as a worker does. Empty report: nothing was there, and the handler was not called. Blocks; not for a
/// thread of the library. A member whose settle fails is in `retried`: it is run again after its lease.
/// Errors: invalid_argument naming the option, and those of `claim_batch`.
[[nodiscard]] Result<BatchReport> run_batch(const Queue& queue, const BatchRoundHandler& handler,
                                            const BatchOptions& options = {});

/// How the members of a batch ended, by their ids; other ids in it are ignored.
using BatchVerdicts = std::unordered_map<JobId, Outcome>;
/// Gets the members of one batch in claim order, on a thread of the worker's own pool, where blocking is fine. A member
/// that is not in the map is a `Retry("missing verdict")`; an exception that leaves the handler is a `Retry` of all with
/// its message, an `Unrecoverable` the death of all. Each member has its own stop token, deadline and lease.
using BatchHandler = std::function<BatchVerdicts(std::span<Job> jobs)>;
/// The same as a coroutine, begun and continued as an `AsyncHandler`; it must not block. `jobs` is there until it ends.
using AsyncBatchHandler = std::function<Task<BatchVerdicts>(std::span<Job> jobs)>;

/// Which jobs a worker of batches takes. A queue with both needs a worker for each.
enum class BatchSource : std::uint8_t {
  flat,   ///< those without a lane, in mint order
  lanes,  ///< those of lanes: all members of a batch are of one lane, and lanes have their turns, a batch each
};

struct BatchWorkerOptions {
  /// A batch is handed to the handler when it has `min_size` jobs and no more wait, or `max_size`, or when its first job
  /// was claimed `timeout` ago (at most a year). `min_size` is at most `max_size`.
  BatchShape shape{};
  std::uint32_t max_size = 100;  ///< 1..1000
  BatchSource source = BatchSource::flat;
  /// What became of a batch, once each of its settles is answered or given up. On the control thread, as the callbacks of
  /// `WorkerOptions`.
  std::function<void(const BatchReport& report)> on_batch{};
  /// All else, as of a worker of single jobs. `concurrency` counts the batches whose handlers run side by side, and
  /// `timeout` is that of each member, from when the handler was called; 1..1024, a thread each for plain handlers. A handler
  /// counts as leaked when all its members were settled without it.
  WorkerOptions worker{};
};

struct BatchWorkerStats {
  WorkerStats jobs;           ///< of single jobs; `running` also counts those that gather, `leaked` counts handlers
  std::uint64_t batches = 0;  ///< handed to the handler
  std::uint32_t running = 0;  ///< of those, the ones whose handler runs now or waits for its thread
};

/// Serves one queue in batches until it is stopped. As `Worker` in all that is not said here: leases renew from the claim
/// to the settle, also while a batch gathers; each member is settled by its own outcome, all of a batch in one call, in
/// which the next batch is claimed. Nothing is claimed while all slots are taken. What gathers and finds no slot 100 ms
/// after its time goes back, for others or for later.
///
/// Keys and scripts: as of `Worker`.
class BatchWorker {
 public:
  /// Starts at once. The handler may be one that can only be moved. Errors: invalid_argument naming the option, client_closed.
  [[nodiscard]] static Result<BatchWorker> start(const Queue& queue, BatchHandler handler,
                                                 BatchWorkerOptions options = {});
  template <typename F>
    requires(std::is_invocable_r_v<BatchVerdicts, F&, std::span<Job>> && !std::is_copy_constructible_v<F>)
  [[nodiscard]] static Result<BatchWorker> start(const Queue& queue, F handler, BatchWorkerOptions options = {}) {
    return start(queue, BatchHandler(detail::copyable(std::move(handler))), std::move(options));
  }
  template <typename F>
    requires std::is_invocable_r_v<Task<BatchVerdicts>, F&, std::span<Job>>
  [[nodiscard]] static Result<BatchWorker> start(const Queue& queue, F handler, BatchWorkerOptions options = {}) {
    return start_async(queue, AsyncBatchHandler(detail::copyable(std::move(handler))), std::move(options));
  }
  [[nodiscard]] static Result<BatchWorker> start_async(const Queue& queue, AsyncBatchHandler handler,
                                                       BatchWorkerOptions options = {});

  BatchWorker(BatchWorker&&) noexcept;
  BatchWorker& operator=(BatchWorker&&) noexcept;
  ~BatchWorker();

  /// As `Worker::stop`; what no handler has begun goes back at once.
  StopReport stop(std::optional<Milliseconds> deadline = {});
  [[nodiscard]] BatchWorkerStats stats() const;
  /// As `Worker::cancel`: the other members of its batch go on.
  void cancel(JobId id);

 private:
  explicit BatchWorker(std::shared_ptr<worker::Engine> engine) noexcept;
  std::shared_ptr<worker::Engine> engine_;
};

}  // namespace v1
}  // namespace echomq
