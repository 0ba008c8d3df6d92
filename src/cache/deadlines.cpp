// Calls that are due a fixed time after they were noted.
#include "cache/deadlines.hpp"

#include <pthread.h>

#include <system_error>
#include <utility>

namespace echomq {
inline namespace v1 {
namespace cache {

void Deadlines::run(State& state) {
  (void)pthread_setname_np(pthread_self(), "echomq-late");
  std::unique_lock lock(state.mutex);
  while (!state.closed) {
    if (state.waiting.empty()) {
      state.changed.wait(lock);
      continue;
    }
    if (const Clock::time_point at = state.waiting.front().at; Clock::now() < at) {
      state.changed.wait_until(lock, at);
      continue;
    }
    std::function<void()> call = std::move(state.waiting.front().call);
    state.waiting.pop_front();
    lock.unlock();
    call();
    call = nullptr;  // what it holds may add another one, or shut this down, when it goes
    lock.lock();
  }
}

void Deadlines::add(std::function<void()> call) {
  const std::lock_guard lock(state_->mutex);
  if (state_->closed)
    return;
  if (time_ == nullptr && !thread_.joinable()) {
    try {
      thread_ = std::thread([state = state_] { run(*state); });
    } catch (const std::system_error&) {
      return;
    }
  }
  // The thread waits for the oldest: only the first of all wakes it.
  if (state_->waiting.empty())
    state_->changed.notify_one();
  state_->waiting.push_back({now() + after_, std::move(call)});
}

void Deadlines::run_due() {
  for (;;) {
    std::function<void()> call;
    {
      const std::lock_guard lock(state_->mutex);
      if (state_->waiting.empty() || state_->waiting.front().at > now())
        return;
      call = std::move(state_->waiting.front().call);
      state_->waiting.pop_front();
    }
    call();
  }
}

void Deadlines::shutdown() {
  std::thread thread;
  std::deque<Due> dropped;
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    state_->changed.notify_all();
    dropped.swap(state_->waiting);
    thread.swap(thread_);
  }
  if (!thread.joinable())
    return;
  if (thread.get_id() == std::this_thread::get_id()) {
    thread.detach();
  } else {
    thread.join();
  }
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
