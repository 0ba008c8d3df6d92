// Refreshing entries in hand.
#include "bus/group_keeper.hpp"

#include <algorithm>
#include <utility>

#include "bus/coarse_clock.hpp"
#include "bus/group_claims.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {

void GroupKeeper::start(std::function<void()> beside) {
  thread_ = std::thread([this, beside = std::move(beside)] {
    const Milliseconds look = std::max(min_idle_ / 6, Milliseconds(1));
    Lock lock(mutex_);
    while (!stopping_) {
      sleeping_ = page_.empty();
      changed_.wait(lock, [this] { return stopping_ || !page_.empty(); });
      sleeping_ = false;
      if (changed_.wait_for(lock, look, [this] { return stopping_; }) || page_.empty())
        continue;
      // A refresh that fails is tried again in the next look.
      (void)refresh_locked(detail::Clock::now()).has_value();
      lock.unlock();
      beside();
      lock.lock();
    }
  });
}

void GroupKeeper::stop() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable())
    thread_.join();
}

void GroupKeeper::begin(std::span<const std::string_view> page, TimePoint touched) {
  const Lock lock(mutex_);
  page_ = page;
  lost_.clear();
  any_lost_.store(false, std::memory_order_relaxed);
  index_.store(0, std::memory_order_relaxed);
  touched_.store(touched, std::memory_order_relaxed);
  if (sleeping_)
    changed_.notify_all();
}

void GroupKeeper::end() {
  const Lock lock(mutex_);
  page_ = {};
}

Result<bool> GroupKeeper::turn(std::size_t index) {
  index_.store(index, std::memory_order_relaxed);
  const auto now = now_within(min_idle_ / 3);
  if (now - touched() < min_idle_ / 3 && !any_lost_.load(std::memory_order_relaxed))
    return true;
  const Lock lock(mutex_);
  // Not the time of before the wait: the keeper's own thread may have waited for the server meanwhile.
  ECHOMQ_CHECK(refresh_locked(detail::Clock::now()));
  return !lost_.contains(page_[index]);
}

bool GroupKeeper::lose(std::size_t index) {
  const Lock lock(mutex_);
  any_lost_.store(true, std::memory_order_relaxed);
  return lost_.emplace(page_[index]).second;
}

Result<void> GroupKeeper::refresh_locked(TimePoint now) {
  if (now - touched() < min_idle_ / 3)
    return {};
  std::vector<std::string_view> kept;
  for (const std::string_view entry : page_.subspan(index_.load(std::memory_order_relaxed))) {
    if (!lost_.contains(entry))
      kept.push_back(entry);
  }
  ECHOMQ_TRY(const KeptEntries answer, keep_entries(group_, consumer_, kept));
  // What has ended meanwhile was acknowledged by this consumer itself.
  const auto left = page_.subspan(index_.load(std::memory_order_relaxed));
  for (const std::string& entry : answer.lost) {
    if (std::ranges::find(left, entry) != left.end() && lost_.insert(entry).second)
      lost_count_.fetch_add(1, std::memory_order_relaxed);
  }
  any_lost_.store(!lost_.empty(), std::memory_order_relaxed);
  touched_.store(now, std::memory_order_relaxed);
  return {};
}

}  // namespace bus
}  // namespace v1
}  // namespace echomq
