// `Worker`: runs handlers for the jobs of one queue, flat and in lanes.
//
// It claims while it has free slots, renews every lease until the job is settled, retries with backoff, moves due and
// stalled jobs by time, sleeps on the wake list when there is nothing to do, and hands back at once what it cannot
// finish when it stops. Delivery is at least once: a handler must bear being run again.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "echomq/client.hpp"
#include "echomq/error.hpp"
#include "echomq/flow.hpp"
#include "echomq/id.hpp"
#include "echomq/names.hpp"
#include "echomq/queue.hpp"
#include "echomq/task.hpp"

namespace echomq {
inline namespace v1 {

namespace worker {
class Engine;
struct JobState;
}  // namespace worker
class WorkerObserver;  // observer.hpp

/// Why a run was asked to stop.
enum class StopCause : std::uint8_t {
  none,            ///< it was not
  lease_lost,      ///< somebody else has, or may have, the job
  timeout,         ///< its time is over: what it returns within the grace still counts
  cancelled,       ///< somebody wants it ended: it ends as dead
  worker_stopped,  ///< the stop deadline has passed and the job was handed back
};
[[nodiscard]] std::string_view to_string(StopCause cause) noexcept;

/// Thrown out of a handler: the job is dead, whatever attempts are left.
class Unrecoverable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One run of one job, as its handler sees it. Owns its payload; cheap to copy; thread-safe. A copy may outlive the
/// handler and the worker, and then answers the two calls as any queue would.
class Job {
 public:
  [[nodiscard]] const JobId& id() const noexcept;
  [[nodiscard]] std::string_view payload() const noexcept;
  /// 1 for the first run. Counts every claim, also those that ended in a crash or a hand-back; it is the token.
  [[nodiscard]] std::uint64_t attempt() const noexcept;
  [[nodiscard]] std::optional<LaneId> lane() const noexcept;
  [[nodiscard]] const QueueName& queue() const noexcept;
  /// Runs before this one that failed: lost leases, hand-backs and delays (`Delay`) are none.
  [[nodiscard]] std::uint64_t failures() const noexcept;
  /// The job's own maximum, when it was admitted with one; else the worker's counts.
  [[nodiscard]] std::optional<std::uint32_t> max_attempts() const noexcept;
  /// The W3C trace context that the job was admitted with; empty without.
  [[nodiscard]] std::string_view traceparent() const noexcept;
  /// When the time of this run is over; nothing without a limit.
  [[nodiscard]] std::optional<std::chrono::steady_clock::time_point> deadline() const noexcept;

  /// Stops when the lease is lost, the run's time is over, somebody cancels the job, or the worker's stop deadline has
  /// passed; `stop_cause()` says which. Callbacks registered on it run on the worker's control thread and must not block.
  [[nodiscard]] std::stop_token stop_token() const;
  [[nodiscard]] StopCause stop_cause() const noexcept;
  [[nodiscard]] bool lease_lost() const noexcept;

  // Four calls, each in two forms. That which blocks for a round trip is for plain handlers; where the library's own
  // threads run it, as in a coroutine after its first `co_await`, it answers would_deadlock (and may have been done all
  // the same). The one with `_async` gives a `Reply`, for `co_await`, and starts at once.
  // Errors of all: stale_token once the lease is lost or the job was handed back, job_gone, and those of any call.

  /// Stores `progress` and publishes the event, its text cut at 1,024 bytes, when the worker publishes events of this
  /// job. Script `update_progress`.
  Result<void> progress(std::string_view value);
  Reply<void> progress_async(std::string_view value);
  /// Keeps the lease at least `lease` (> 0) from now, and no shorter than the worker's; longer than the renewals of the worker would: for a stretch in which
  /// this process cannot renew. Script `extend_lock`.
  Result<void> extend(Milliseconds lease);
  Reply<void> extend_async(Milliseconds lease);
  /// What the children of this flow parent gave, by their ids. Also once the lease is lost.
  Result<ChildTexts> children_values();
  Reply<ChildTexts> children_values_async();
  /// Appends a log line; keeps the last `keep` when > 0. Script `add_log`.
  Result<void> log(std::string_view line, std::uint32_t keep = 0);
  /// Gives how many lines there are now.
  Reply<std::int64_t> log_async(std::string_view line, std::uint32_t keep = 0);

  explicit Job(std::shared_ptr<worker::JobState> state) noexcept : state_(std::move(state)) {}
  [[nodiscard]] const std::shared_ptr<worker::JobState>& internal() const noexcept { return state_; }

 private:
  std::shared_ptr<worker::JobState> state_;
};

/// How a run ended. Made by the four functions below; a default-constructed one is `Done()`.
class Outcome {
 public:
  enum class Kind : std::uint8_t { done, retry, delay, dead, hand_back };
  Kind kind = Kind::done;
  std::string text;  ///< the result of `done`, the error of `retry` and `dead`
  bool has_result = false;
  std::optional<Milliseconds> after;  ///< of `retry` (else the policy's) and `delay`
};

/// The job is complete.
[[nodiscard]] Outcome Done();
/// Complete, with a result for its flow parent.
[[nodiscard]] Outcome Done(std::string result);
/// Failed: run it again after the policy's delay, or after `after`; dead at the maximum.
[[nodiscard]] Outcome Retry(std::string error, std::optional<Milliseconds> after = {});
/// Not now: run it again after `wait`. No failure: not held against the maximum, nor told to the backoff.
[[nodiscard]] Outcome Delay(Milliseconds wait);
/// Failed for good.
[[nodiscard]] Outcome Dead(std::string error);
/// Back to the queue at once, not held against the maximum: for a handler that cannot go on here (it is being
/// stopped, its machine is going down). After three in a row the worker claims nothing for 50 ms.
[[nodiscard]] Outcome HandBack();

/// How long to wait before the next run. `attempt` is the one that just failed, from 1.
class Backoff {
 public:
  [[nodiscard]] static Backoff fixed(Milliseconds wait);
  /// min(base * 2^(attempt - 1), cap); saturates.
  [[nodiscard]] static Backoff exponential(Milliseconds base, Milliseconds cap);
  /// Uniform in 0..inner, both included.
  [[nodiscard]] Backoff with_jitter() const;
  /// `fixed:MS` or `exponential:BASE:CAP`, each with `:jitter` or without: what `RunOptions::backoff` and the row field
  /// `backoff` hold. Errors: invalid_argument naming the text.
  [[nodiscard]] static Result<Backoff> parse(std::string_view text);
  [[nodiscard]] static Backoff custom(std::function<Milliseconds(std::uint64_t attempt)> function);

  [[nodiscard]] Milliseconds operator()(std::uint64_t attempt) const;
  /// What `parse` takes; empty for a custom one, which has no text.
  [[nodiscard]] std::string text() const;
  /// An error when a bound is out of range (fixed >= 0, base >= 1 ms, cap >= 1 ms).
  [[nodiscard]] Result<void> check() const;

 private:
  enum class Kind : std::uint8_t { fixed, exponential, custom };
  Kind kind_ = Kind::fixed;
  bool jitter_ = false;
  Milliseconds base_{1000};
  Milliseconds cap_{1000};
  std::function<Milliseconds(std::uint64_t)> custom_;
};

/// Runs on a thread of the worker's own pool, where blocking is fine. An exception that leaves it is a `Retry` with
/// its message, whatever its type; what ends the process is recovered by the lease.
using Handler = std::function<Outcome(Job&)>;
/// A coroutine: begun on a thread of the worker's pool, continued where the client's continuations run (its executor,
/// else the one thread that a client has for them). It must not block; then `concurrency` may be far above the number of threads.
using AsyncHandler = std::function<Task<Outcome>(Job&)>;

namespace detail {

/// A function that cannot be copied, as `std::function` wants it: its copies share it.
template <typename F>
struct SharedFunction {
  std::shared_ptr<F> function;
  template <typename... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) const {
    return (*function)(std::forward<Arguments>(arguments)...);
  }
};

template <typename F>
[[nodiscard]] auto copyable(F function) {
  if constexpr (std::is_copy_constructible_v<F>) {
    return function;
  } else {
    return SharedFunction<F>{std::make_shared<F>(std::move(function))};
  }
}

}  // namespace detail

/// What a worker publishes on the queue's events channel, after the server has accepted it.
enum class WorkerEvents : std::uint8_t {
  nothing,  ///< not even the progress that a handler stores
  settled,  ///< `completed`, `delayed`, `failed` (with `retry` = `1` when the job will run again; then `dead` or
            ///< `cancelled` when it will not), `stalled`, `dead` of jobs past their time; errors, but no payloads
  sampled,  ///< all of those for some jobs, the same ones in every process: the share `event_rate`
};

struct WorkerOptions {
  /// Handlers that run side by side: 1..1024 with a thread each, 1..100,000 as coroutines. Beside them a few claimed
  /// jobs wait for a slot when handlers are quicker than a round trip.
  std::uint32_t concurrency = 1;
  /// Threads that begin coroutines; 0: one for each processor, at most `concurrency`. Plain handlers have one each.
  std::uint32_t threads = 0;
  /// The lease of a claim, renewed at a third of it until the job is settled; >= 100 ms.
  Milliseconds lease{15000};
  /// The longest sleep without a look at the queue: what a peer's job that pushed no token may wait. Shorter by itself
  /// while looks find work that nobody told. >= 10 ms.
  Milliseconds beat{5000};
  /// How long a run may take when its job has no time-out of its own; 0: no limit. Then its stop token stops.
  Milliseconds timeout{0};
  /// How long a run whose time is over, that was cancelled, or whose lease is lost may still take to return. One that
  /// takes longer is counted as leaked, its job is settled without it (a lost one is not), and another thread takes its
  /// slot.
  Milliseconds stop_patience{1000};
  /// So many leaked handlers that still run, and the worker claims nothing more and is unhealthy. >= 1.
  std::uint32_t max_leaked = 16;
  /// How often expired leases are looked for, at most (and when the next one known expires). >= 10 ms.
  Milliseconds sweep_period{5000};
  /// How often the queue's outbox is looked at for records to deliver to flow parents in other queues; sooner again
  /// while there are any. >= 10 ms.
  Milliseconds outbox_period{1000};
  /// How often occurrences of repeats that are due are admitted. >= 10 ms. Each of these three periods is the queue's:
  /// whichever worker comes first does it for all.
  Milliseconds repeat_period{1000};
  /// The lost lease with this number ends the job as dead with `last_error` "stalled". >= 1.
  std::uint32_t max_stalled = 3;
  /// The failure with this number ends the job as dead. Lost leases, hand-backs and delays are not failures. >= 1.
  std::uint32_t max_attempts = 3;
  Backoff backoff = Backoff::exponential(Milliseconds{1000}, Milliseconds{300000}).with_jitter();
  /// Errors that are not worth another run: the job is dead at once. Called on the control thread.
  std::function<bool(const Job& job, std::string_view error)> unrecoverable{};
  /// Results are kept for so long, for whoever waits for them; 0: those of jobs that ask for it.
  Milliseconds keep_results{0};
  /// `last_error` keeps the last so many bytes of an error.
  std::size_t max_error_bytes = 4096;
  /// Stop deadline of the destructor, and of `stop()` without one.
  Milliseconds stop_deadline{30000};
  /// How long handlers may still take to return once their jobs were handed back. One that takes longer keeps its
  /// thread, which is detached, and what it owns.
  Milliseconds stop_grace{1000};
  WorkerEvents events = WorkerEvents::settled;
  double event_rate = 1.0;
  /// Hears `Queue::cancel` of other processes: one subscription, on the client's connection for subscriptions.
  bool remote_cancel = true;

  /// Is told of everything the worker does with its jobs, for logs, metrics and traces; may be shared by many workers.
  std::shared_ptr<WorkerObserver> observer{};

  // The two of its calls that most programs need, without a class of one's own; both may be given beside an observer. They
  // run on the worker's control thread, which renews the leases: they must not block. Blocking calls of this library
  // answer `would_deadlock` there. An exception that leaves one is counted in `WorkerStats::errors` and logged.

  /// `WorkerObserver::settled`: verdict "done", "retry", "dead", "delay" or "hand_back", or the reason when the settle was
  /// refused or given up.
  std::function<void(const Job& job, std::string_view verdict)> on_settled{};
  /// `WorkerObserver::lease_lost` while its handler runs, after the stop of its token was requested.
  std::function<void(const Job& job)> on_lease_lost{};
};

struct WorkerStats {
  std::uint64_t claimed = 0;
  std::uint64_t completed = 0;
  std::uint64_t retried = 0;
  std::uint64_t dead = 0;
  std::uint64_t delayed = 0;
  std::uint64_t handed_back = 0;
  std::uint64_t settles_refused = 0;  ///< stale or gone: somebody else has or had the job; or handed back before
  std::uint64_t unsettled = 0;        ///< given up without an answer: left to their lease
  std::uint64_t leases_lost = 0;
  std::uint64_t recovered = 0;  ///< stalled jobs this worker put back
  std::uint64_t dead_stalled = 0;
  std::uint64_t promoted = 0;
  std::uint64_t delivered = 0;  ///< records of the outbox that this worker brought to their flow parents
  std::uint64_t wakes = 0;
  std::uint64_t errors = 0;   ///< calls of the loop that failed, and callbacks and observers that threw; it goes on
  std::uint32_t running = 0;  ///< now; also those that wait for a thread
  std::uint32_t leaked = 0;   ///< handlers that were given up and still run, or had not returned when the worker ended
  std::uint64_t timed_out = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t expired = 0;         ///< jobs past their time that a claim of this worker moved to dead
  std::uint64_t fired = 0;           ///< occurrences of repeats that this worker admitted
  std::uint32_t prefetched = 0;      ///< now: how many jobs may wait for a slot
  bool healthy = true;               ///< false once `max_leaked` is reached
  std::uint64_t events_dropped = 0;  ///< not published: too many were on their way
  std::uint64_t events_unheard = 0;  ///< not published: nobody listened
  std::uint64_t events_failed = 0;   ///< refused by the server, or lost with the connection
};

struct StopReport {
  std::uint64_t finished = 0;     ///< ended while stopping, by a handler or without it by a time-out or a cancellation
  std::uint64_t handed_back = 0;  ///< put back: not begun yet, or still running at the deadline
  std::uint64_t unsettled = 0;    ///< left to their lease: the server could not be reached
  std::uint64_t leaked = 0;       ///< handlers that did not return within `stop_grace`; their jobs are handed back
  std::uint64_t refused = 0;      ///< whose lease was lost: their settle came too late, or somebody else has the job
};

/// Serves one queue until it is stopped. Move-only; thread-safe but for moves. The destructor stops with
/// `stop_deadline`, then joins. The client must stay open until then: after `Client::close()` nothing can be settled.
///
/// Keys and scripts: `settle_and_take`, `settle`, `take`; `extend_locks`; `promote`; `upkeep`, and by its leave
/// `sweep_lapsed`, `repeat_due`, `repeat_fire`, and `flow_deliver` and `flow_death_deliver` for what is in the queue's
/// `flow:outbox`; `park`, and `BLPOP` on the queue's wake list.
/// After `fork` the child's copy does nothing: start a worker over a client of the child's own.
class Worker {
 public:
  /// Starts at once. The handler may be one that can only be moved. Errors: invalid_argument naming the option, client_closed.
  [[nodiscard]] static Result<Worker> start(const Queue& queue, Handler handler, WorkerOptions options = {});
  template <typename F>
    requires(std::is_invocable_r_v<Outcome, F&, Job&> && !std::is_copy_constructible_v<F>)
  [[nodiscard]] static Result<Worker> start(const Queue& queue, F handler, WorkerOptions options = {}) {
    return start(queue, Handler(detail::copyable(std::move(handler))), std::move(options));
  }
  template <typename F>
    requires std::is_invocable_r_v<Task<Outcome>, F&, Job&>
  [[nodiscard]] static Result<Worker> start(const Queue& queue, F handler, WorkerOptions options = {}) {
    return start_async(queue, AsyncHandler(detail::copyable(std::move(handler))), std::move(options));
  }
  [[nodiscard]] static Result<Worker> start_async(const Queue& queue, AsyncHandler handler, WorkerOptions options = {});

  Worker(Worker&&) noexcept;
  Worker& operator=(Worker&&) noexcept;
  ~Worker();

  /// Stops claiming; waits for running handlers up to `deadline` while their leases renew; then hands back what is
  /// left, at once, requests the stop of their tokens and gives them `stop_grace` to return.
  ///
  /// From any thread and any number of times: the earliest deadline counts, all get the same report. On a thread of the
  /// library (a handler, a callback) it only begins the stop and returns at once, with an empty report before the end.
  StopReport stop(std::optional<Milliseconds> deadline = {});
  [[nodiscard]] WorkerStats stats() const;
  /// Asks a run of this job in this worker to stop, with the cause `cancelled`; nothing happens when there is none. The job
  /// ends as dead with the error "cancelled", unless its handler is done with it first.
  void cancel(JobId id);

 private:
  explicit Worker(std::shared_ptr<worker::Engine> engine) noexcept;
  std::shared_ptr<worker::Engine> engine_;
};

}  // namespace v1
}  // namespace echomq
