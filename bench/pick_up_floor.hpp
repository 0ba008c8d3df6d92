// The floor of an idle pick-up: the same scripts over two raw sockets, a thread each.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cases.hpp"

namespace echomq_bench {

/// What the engine allows: one socket sends `enqueue`, another is parked in BLPOP with `take` written right behind it.
class PickUpFloor {
 public:
  explicit PickUpFloor(Bed& bed);
  ~PickUpFloor();
  PickUpFloor(const PickUpFloor&) = delete;
  PickUpFloor& operator=(const PickUpFloor&) = delete;

  /// Parks, then `pause`, then one job; gives how long it took from the send of `enqueue` to the answer of `take`. What a
  /// worker does between two jobs (settle and claim, the look before it parks) is not timed.
  [[nodiscard]] std::chrono::steady_clock::duration sample(const std::function<void()>& pause);

 private:
  void run();

  Bed& bed_;
  RawSocket sender_;
  RawSocket parked_;
  const std::string enqueue_;
  const std::string settle_and_take_;
  const std::vector<std::string> claim_;  ///< BLPOP and `take`
  const std::string park_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool asked_ = false;
  bool closed_ = false;
  std::optional<std::chrono::steady_clock::time_point> claimed_;
  std::thread thread_;
};

}  // namespace echomq_bench
