// Keeps what a consumer has in hand from other consumers while its handler runs.
//
// The consumer's thread hands a page over and says whose turn it is; a thread of its own refreshes what is left of the page, the
// entry that runs included, whenever a third of `min_idle` has passed. Only a process that stands still, or a server that cannot be
// reached, lets entries become idle. What others have taken over by then is not taken back: the refresh tells which that is. Without a
// page the thread sleeps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "echomq/detail/call.hpp"
#include "echomq/stream.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {

/// All but the destructor and `lost`, on the consumer's thread.
class GroupKeeper {
 public:
  using TimePoint = detail::Clock::time_point;

  GroupKeeper(const StreamGroup& group, std::string_view consumer, Milliseconds min_idle)
      : group_(group), consumer_(consumer), min_idle_(min_idle) {}
  ~GroupKeeper() { stop(); }
  GroupKeeper(const GroupKeeper&) = delete;
  GroupKeeper& operator=(const GroupKeeper&) = delete;

  /// `beside` is called on the keeper's thread while a page is in hand, several times a `min_idle`.
  void start(std::function<void()> beside);
  void stop();

  /// A page, in the order of its ids; what the views are of must live, unchanged, until `end`; touched on the server at that time.
  void begin(std::span<const std::string_view> page, TimePoint touched);
  void end();
  /// Whether entry `index` is still this consumer's: its turn has come. Those before it are not kept any more.
  [[nodiscard]] Result<bool> turn(std::size_t index);
  /// The entry whose turn it is is about to be acknowledged: it is not kept any more.
  void done() { index_.fetch_add(1, std::memory_order_relaxed); }
  /// Entry `index` was found to be another's; false when that was known.
  [[nodiscard]] bool lose(std::size_t index);
  /// How many entries others have taken over while they were in hand here; thread-safe.
  [[nodiscard]] std::uint64_t lost() const { return lost_count_.load(std::memory_order_relaxed); }
  /// When the page was last counted as in hand.
  [[nodiscard]] TimePoint touched() const { return touched_.load(std::memory_order_relaxed); }

 private:
  using Lock = std::unique_lock<std::mutex>;

  /// Refreshes what is left; nothing when it is not time.
  [[nodiscard]] Result<void> refresh_locked(TimePoint now);

  const StreamGroup group_;
  const std::string consumer_;
  const Milliseconds min_idle_;

  std::atomic<TimePoint> touched_{TimePoint{}};
  std::atomic<std::size_t> index_{0};
  std::atomic<bool> any_lost_{false};
  std::atomic<std::uint64_t> lost_count_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::span<const std::string_view> page_;
  std::set<std::string, std::less<>> lost_;  ///< of the page: others have taken them over
  bool sleeping_ = false;                    ///< the thread waits for a page
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace bus
}  // namespace v1
}  // namespace echomq
