// Lanes of entries and their threads.
#include "bus/group_pool.hpp"

#include <utility>

namespace echomq {
inline namespace v1 {
namespace bus {
namespace {

// Not asked of the threads themselves: others may be joining them.
thread_local const GroupPool* pool_of_this_thread = nullptr;

}  // namespace

GroupPool::GroupPool(std::size_t threads, Run run) : run_(std::move(run)) {
  for (std::size_t i = 0; i < threads; ++i)
    threads_.emplace_back([this] { work(); });
}

void GroupPool::add(const std::string& lane, PoolItem item) {
  const std::lock_guard lock(mutex_);
  Lane& of = lanes_[lane];
  of.items.push_back(std::move(item));
  ++held_;
  if (of.busy || of.items.size() > 1)
    return;
  ready_.push_back(lane);
  ready_changed_.notify_one();
}

std::size_t GroupPool::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

std::size_t GroupPool::delayed() const {
  const std::lock_guard lock(mutex_);
  return due_.size();
}

std::vector<std::string> GroupPool::entries() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  out.reserve(held_);
  for (const auto& [name, lane] : lanes_) {
    for (const PoolItem& item : lane.items) {
      if (!item.settled && !lost_.contains(item.delivery.entry))
        out.push_back(item.delivery.entry);
    }
  }
  return out;
}

std::size_t GroupPool::drop(const std::set<std::string>& lost) {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  // Of those that are in hand still: what has ended meanwhile may be handed out again, and is then run.
  for (const auto& [name, lane] : lanes_) {
    for (const PoolItem& item : lane.items) {
      if (!item.settled && lost.contains(item.delivery.entry) && lost_.insert(item.delivery.entry).second)
        ++count;
    }
  }
  return count;
}

bool GroupPool::lose(PoolItem& item) {
  const std::lock_guard lock(mutex_);
  item.settled = true;
  return lost_.insert(item.delivery.entry).second;
}

void GroupPool::settled(PoolItem& item) {
  const std::lock_guard lock(mutex_);
  item.settled = true;
}

bool GroupPool::wait_below(std::size_t most, Milliseconds wait) {
  Lock lock(mutex_);
  held_changed_.wait_for(lock, wait, [&] { return held_ < most || stopping_; });
  return held_ < most;
}

void GroupPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    ready_changed_.notify_all();
    held_changed_.notify_all();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable())
      thread.join();
  }
}

bool GroupPool::inside() const { return pool_of_this_thread == this; }

void GroupPool::wake_due(detail::Clock::time_point now) {
  while (!due_.empty() && due_.begin()->first <= now) {
    ready_.push_back(std::move(due_.begin()->second));
    due_.erase(due_.begin());
  }
}

void GroupPool::work() {
  pool_of_this_thread = this;
  Lock lock(mutex_);
  for (;;) {
    wake_due(detail::Clock::now());
    if (stopping_)
      return;
    if (ready_.empty()) {
      if (due_.empty()) {
        ready_changed_.wait(lock);
      } else {
        const auto until = due_.begin()->first;
        ready_changed_.wait_until(lock, until);
      }
      continue;
    }
    const std::string name = std::move(ready_.front());
    ready_.pop_front();
    if (!ready_.empty())
      ready_changed_.notify_one();
    // Lanes stay where they are while they have entries, and only this thread takes the first one off.
    Lane& lane = lanes_.find(name)->second;
    lane.busy = true;
    PoolItem& item = lane.items.front();
    const auto lost = lost_.find(item.delivery.entry);
    std::optional<Milliseconds> again;
    if (lost != lost_.end()) {
      lost_.erase(lost);
    } else {
      lock.unlock();
      again = run_(item);
      lock.lock();
    }
    if (again) {
      due_.emplace(detail::Clock::now() + *again, name);
      // Whoever sleeps may sleep longer than this.
      ready_changed_.notify_one();
      continue;
    }
    lost_.erase(item.delivery.entry);
    lane.items.pop_front();
    lane.busy = false;
    --held_;
    held_changed_.notify_all();
    if (lane.items.empty()) {
      lanes_.erase(name);
    } else {
      ready_.push_back(name);
    }
  }
}

}  // namespace bus
}  // namespace v1
}  // namespace echomq
