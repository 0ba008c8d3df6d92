// Lines from the thread that hears to the one that prints.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

namespace emq {

class Lines {
 public:
  /// Of tails: what nobody reads stays on the server.
  static constexpr std::size_t kMost = 10'000;

  /// Who hears waits while `most` are not taken.
  explicit Lines(std::size_t most = SIZE_MAX) : most_(most) {}

  /// `counts`: towards how many were asked for. Waits while there are too many; nothing is kept any more once it is closed.
  void put(std::string line, bool counts) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || lines_.size() < most_; });
    if (closed_) {
      return;
    }
    lines_.emplace_back(std::move(line), counts);
    changed_.notify_all();
  }
  /// Waits for one.
  std::pair<std::string, bool> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !lines_.empty(); });
    auto line = std::move(lines_.front());
    lines_.pop_front();
    changed_.notify_all();
    return line;
  }
  /// Nobody takes any more: before whoever hears is ended, who may be waiting here.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  const std::size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::string, bool>> lines_;  // guarded by mutex_
  bool closed_ = false;                             // guarded by mutex_
};

}  // namespace emq
