// The threads that run handlers.
//
// A handler that never returns must not hold its worker up: its thread is detached, and what it needs (the job, the
// handler, this pool's state) lives as long as it does.
//
// Threads are woken one after another: one that takes a job while more wait wakes the next. So handlers that block get
// a thread each within a few wake-ups, and handlers that do not are run by few threads, one after another.
//
// One idle thread may wait for the worker's next job at its source (`lend`): it begins it without being woken by another.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "echomq/worker.hpp"
#include "result/late_wakes.hpp"
#include "worker/inbox.hpp"
#include "worker/job.hpp"
#include "worker/outcome.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {

class Engine;
class Observers;

class HandlerPool {
 public:
  /// `owner` is who `serves()` names on these threads; `observers`, when there are any, hear of each run's begin and end.
  /// At most `slots` coroutines have begun and not ended; more wait.
  /// Errors: invalid_argument when the system gives no more threads.
  [[nodiscard]] static Result<std::unique_ptr<HandlerPool>> start(std::size_t threads, AnyHandler handler,
                                                                  std::shared_ptr<Inbox> inbox, const Engine* owner,
                                                                  std::shared_ptr<Observers> observers = {},
                                                                  std::size_t slots = static_cast<std::size_t>(-1));
  ~HandlerPool();
  HandlerPool(const HandlerPool&) = delete;
  HandlerPool& operator=(const HandlerPool&) = delete;

  /// Runs the handler for each when a thread is free; their outcomes go to the inbox.
  void submit(std::span<std::shared_ptr<JobState>> jobs);
  /// Gives an idle thread something to wait on besides its sleep: `attendant(bell)` is called on it, and returns when it has heard
  /// something or when the eventfd `bell` is readable. Replaces the one before that no thread has come to; may be empty.
  /// With `late`, where one thread runs all and its runs are short, whoever the attendant has to wake is woken after the run that
  /// begins there.
  void lend(std::function<void(int bell)> attendant, std::shared_ptr<detail::LateWakes> late = {});
  /// Whether this thread is one of `owner`'s pool, inside of its attendant, with nothing begun.
  [[nodiscard]] static bool attends(const Engine* owner) noexcept;
  /// On such a thread: it runs this job as soon as its attendant returns.
  static void begin_here(std::shared_ptr<JobState> job) noexcept;
  /// From now on no thread begins a job; what waits can be withdrawn. From any thread.
  void begin_no_more();
  /// Takes a job back that no thread has begun. False when it runs or has ended.
  [[nodiscard]] bool withdraw(const JobState* job);
  enum class Abandoned : std::uint8_t {
    replaced,  ///< another thread has its place
    nobody,  ///< no thread runs it: a coroutine that is suspended, whose slot is free from now on, or nothing any more
    stuck,   ///< the system gives no thread: its place is taken until the handler returns
  };
  /// Lets the thread go that runs this job's handler, and starts another in its place. What the handler comes to is
  /// still told.
  [[nodiscard]] Abandoned abandon(JobState* job);
  /// How long a run takes, a moving average; zero before the first has ended.
  [[nodiscard]] std::chrono::nanoseconds mean_run() const noexcept;
  /// How many runs have begun.
  [[nodiscard]] std::uint64_t begun() const noexcept;
  /// Threads, with those whose handlers were given up and still run.
  [[nodiscard]] std::size_t seats() const;
  /// Ends the threads: joins the idle ones and lets the busy ones go. Gives how many handlers still run. Idempotent.
  std::size_t shutdown();

  /// Whose handler or callback runs on this thread; null elsewhere.
  [[nodiscard]] static const Engine* serves() noexcept;
  static void set_serves(const Engine* owner) noexcept;

 private:
  struct State;
  explicit HandlerPool(std::shared_ptr<State> state) noexcept;

  std::shared_ptr<State> state_;
};

}  // namespace worker
}  // namespace v1
}  // namespace echomq
