// Calls that are due a fixed time after they were noted, in that order: one thread, started by the first.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace echomq {
inline namespace v1 {
namespace cache {

class Deadlines {
 public:
  explicit Deadlines(std::chrono::milliseconds after) : after_(after) {}
  ~Deadlines() { shutdown(); }
  Deadlines(const Deadlines&) = delete;
  Deadlines& operator=(const Deadlines&) = delete;

  /// Nothing is called when the system gives no thread.
  void add(std::function<void()> call);
  /// What is not due yet is dropped. Joins the thread, unless called by it.
  void shutdown();

 private:
  using Clock = std::chrono::steady_clock;
  struct Due {
    Clock::time_point at;
    std::function<void()> call;
  };
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Due> waiting;  // guarded by mutex
    bool closed = false;      // guarded by mutex
  };
  static void run(State& state);

  const std::chrono::milliseconds after_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;  // guarded by the state's mutex
};

}  // namespace cache
}  // namespace v1
}  // namespace echomq
