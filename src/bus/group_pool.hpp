// The threads of a consumer that handles several records at once, and what waits for them: lanes of entries, one entry of a
// lane at a time and in their order, also across a retry. Knows nothing of the server.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "echomq/reply.hpp"
#include "echomq/stream.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {

/// An entry in hand.
struct PoolItem {
  Delivery delivery;
  std::uint64_t attempt = 1;
  bool again = false;    ///< it was handed out before: that is to be counted when its turn comes
  bool settled = false;  ///< the pool's own
};

/// Thread-safe.
class GroupPool {
 public:
  /// Handles one entry: nothing when that was its end, else after how long it is to be handled again. Called on the pool's
  /// threads; must not throw.
  using Run = std::function<std::optional<Milliseconds>(PoolItem&)>;

  GroupPool(std::size_t threads, Run run);
  ~GroupPool() { stop(); }
  GroupPool(const GroupPool&) = delete;
  GroupPool& operator=(const GroupPool&) = delete;

  /// Entries of one lane run in the order in which they were added.
  void add(const std::string& lane, PoolItem item);
  /// Entries in hand: those that run or wait.
  [[nodiscard]] std::size_t held() const;
  /// Of these that wait for another attempt.
  [[nodiscard]] std::size_t delayed() const;
  [[nodiscard]] std::vector<std::string> entries() const;
  /// Somebody else has them now: they are not run any more. One that runs ends as it does. How many were in hand.
  std::size_t drop(const std::set<std::string>& lost);
  /// The same of one that runs, in its turn. Whether that was not known yet.
  [[nodiscard]] bool lose(PoolItem& item);
  /// One that runs is about to be acknowledged: it is in hand no more.
  void settled(PoolItem& item);
  /// Waits until fewer than `most` are in hand, `wait` at most. Whether they are.
  bool wait_below(std::size_t most, Milliseconds wait);
  /// Lets what runs end, and joins. What waits stays unrun. Not from a thread of the pool.
  void stop();
  /// Whether this is one of its threads.
  [[nodiscard]] bool inside() const;

 private:
  struct Lane {
    std::deque<PoolItem> items;
    bool busy = false;  ///< its first entry runs, or waits for its time
  };
  using Lock = std::unique_lock<std::mutex>;

  void work();
  void wake_due(detail::Clock::time_point now);

  const Run run_;
  mutable std::mutex mutex_;
  std::condition_variable ready_changed_;
  std::condition_variable held_changed_;
  // Guarded by mutex_.
  std::map<std::string, Lane> lanes_;
  std::deque<std::string> ready_;
  std::multimap<detail::Clock::time_point, std::string> due_;
  std::set<std::string> lost_;
  std::size_t held_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace bus
}  // namespace v1
}  // namespace echomq
