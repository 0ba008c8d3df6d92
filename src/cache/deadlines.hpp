// Calls that are due a fixed time after they were noted, in that order: one thread, started by the first.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
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
  /// `time`, where a test gives it, is read in place of the clock: milliseconds. Then there is no thread but `run_due`.
  explicit Deadlines(std::chrono::milliseconds after, const std::atomic<std::uint64_t>* time = nullptr)
      : after_(after), time_(time) {}
  ~Deadlines() { shutdown(); }
  Deadlines(const Deadlines&) = delete;
  Deadlines& operator=(const Deadlines&) = delete;

  /// Nothing is called when the system gives no thread.
  void add(std::function<void()> call);
  /// What is not due yet is dropped. Joins the thread, unless called by it.
  void shutdown();
  /// With a clock of a test: calls what is due by it, on this thread.
  void run_due();

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
  [[nodiscard]] Clock::time_point now() const {
    return time_ == nullptr ? Clock::now() : Clock::time_point(std::chrono::milliseconds(time_->load()));
  }

  const std::chrono::milliseconds after_;
  const std::atomic<std::uint64_t>* const time_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;  // guarded by the state's mutex
};

}  // namespace cache
}  // namespace v1
}  // namespace echomq
