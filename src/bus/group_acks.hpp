// Acknowledgements of a consumer, which travel together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "echomq/detail/call.hpp"
#include "echomq/stream.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {

/// How long an acknowledgement may wait for others to travel with.
inline constexpr Milliseconds kAckDelay{100};

/// Thread-safe.
class GroupAcks {
 public:
  /// `answered` is told each answer, on the thread that waits for it.
  GroupAcks(const StreamGroup& group, std::function<void(const Result<std::uint64_t>&)> answered)
      : group_(group), answered_(std::move(answered)) {}

  /// Sends all there are when that are `most` then, or when the oldest has waited for `kAckDelay`.
  void add(std::string entry, std::size_t most);
  [[nodiscard]] bool empty();
  /// Sends what there is.
  void flush();
  /// The same when the oldest has waited for `kAckDelay`.
  void flush_old();
  /// Waits until no more than `most` are on their way.
  void await(std::size_t most);

 private:
  void send();
  void await_oldest();

  const StreamGroup group_;
  const std::function<void(const Result<std::uint64_t>&)> answered_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<std::string> entries_;
  detail::Clock::time_point oldest_{};
  std::deque<Reply<std::uint64_t>> sent_;
};

}  // namespace bus
}  // namespace v1
}  // namespace echomq
