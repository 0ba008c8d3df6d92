// Lines from the thread that hears to the one that prints.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

namespace emq {

class Lines {
 public:
  /// `counts`: towards how many were asked for.
  void put(std::string line, bool counts) {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(std::move(line), counts);
    arrived_.notify_one();
  }
  /// Waits for one.
  std::pair<std::string, bool> take() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return !lines_.empty(); });
    auto line = std::move(lines_.front());
    lines_.pop_front();
    return line;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::pair<std::string, bool>> lines_;  // guarded by mutex_
};

}  // namespace emq
