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

Result<std::set<std::string, std::less<>>> pending_among(const StreamGroup& group, std::string_view consumer,
                                                         std::span<const std::string_view> entries) {
  std::set<std::string, std::less<>> mine;
  if (entries.empty())
    return mine;
  // What has come to this consumer between them, and is not of them, may be in the range too.
  ECHOMQ_TRY(auto rows, group
                            .pending({.from = entries.front(),
                                      .to = entries.back(),
                                      .count = static_cast<std::uint32_t>(10 * entries.size()),
                                      .consumer = consumer})
                            .get());
  for (PendingEntry& row : rows)
    mine.insert(std::move(row.entry));
  return mine;
}

void GroupKeeper::start(std::function<void()> beside) {
  thread_ = std::thread([this, beside = std::move(beside)] {
    const Milliseconds look = std::max(min_idle_ / 6, Milliseconds(1));
    Lock lock(mutex_);
    while (!stopping_) {
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

Result<void> GroupKeeper::refresh_locked(TimePoint now) {
  if (now - touched() < min_idle_ / 3)
    return {};
  const std::span<const std::string_view> left = page_.subspan(index_.load(std::memory_order_relaxed));
  // Others may have taken some over; a refresh would take them back.
  bool late = false;
  const auto refresh = [&](std::span<const std::string_view> some) -> Result<void> {
    std::vector<std::string_view> kept;
    for (const std::string_view entry : some) {
      if (!lost_.contains(entry))
        kept.push_back(entry);
    }
    // Not written when others may have taken them over.
    const auto left_of_it = late ? min_idle_ / 3 : touched() + min_idle_ - detail::Clock::now();
    ECHOMQ_CHECK(refresh_within(group_, consumer_, kept, std::chrono::floor<Milliseconds>(left_of_it)).get());
    return {};
  };
  const auto find_lost = [&](std::span<const std::string_view> some) -> Result<void> {
    ECHOMQ_TRY(const auto mine, pending_among(group_, consumer_, some));
    for (const std::string_view entry : some) {
      if (!mine.contains(entry))
        lost_.emplace(entry);
    }
    return {};
  };
  for (std::size_t at = 0; at < left.size(); at += kRefreshed) {
    const auto some = left.subspan(at, std::min(kRefreshed, left.size() - at));
    late = detail::Clock::now() - touched() >= min_idle_;
    if (late)
      ECHOMQ_CHECK(find_lost(some));
    ECHOMQ_CHECK(refresh(some));
    // It may have been late on its way: what others have handled and acknowledged meanwhile is pending no more.
    if (!late && detail::Clock::now() - touched() >= min_idle_)
      ECHOMQ_CHECK(find_lost(some));
  }
  any_lost_.store(!lost_.empty(), std::memory_order_relaxed);
  touched_.store(now, std::memory_order_relaxed);
  return {};
}

}  // namespace bus
}  // namespace v1
}  // namespace echomq
