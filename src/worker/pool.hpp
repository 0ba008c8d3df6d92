// The threads that run handlers.
//
// A handler that never returns must not hold its worker up: at the end its thread is detached, and what it needs (the
// job, the handler, this pool's state) lives as long as it does.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "echomq/worker.hpp"
#include "worker/inbox.hpp"
#include "worker/job.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {

class Engine;

class HandlerPool {
 public:
  /// `owner` is who `serves()` names on these threads. Errors: invalid_argument when the system gives no more threads.
  [[nodiscard]] static Result<std::unique_ptr<HandlerPool>> start(std::size_t threads, Handler handler,
                                                                  std::shared_ptr<Inbox> inbox, const Engine* owner);
  ~HandlerPool();
  HandlerPool(const HandlerPool&) = delete;
  HandlerPool& operator=(const HandlerPool&) = delete;

  /// Runs the handler when a thread is free; its outcome goes to the inbox.
  void submit(std::shared_ptr<JobState> job);
  /// Takes a job back that no thread has begun. False when it runs or has ended.
  [[nodiscard]] bool withdraw(const JobState* job);
  /// Ends the threads: joins the idle ones and lets the busy ones go. Gives how many those are. Idempotent.
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
