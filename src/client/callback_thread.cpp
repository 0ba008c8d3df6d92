// The default executor.
#include "client/callback_thread.hpp"

#include <utility>

#include "result/futex.hpp"

namespace echomq {
inline namespace v1 {
namespace client {

void CallbackThread::post(Continuation continuation) {
  if (post_) {
    post_(continuation);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (started_ || !stopping_) {
      const bool asleep = queue_.empty();
      queue_.push_back(continuation);
      if (!started_) {
        started_ = true;
        thread_ = std::thread([this] { run(); });
      } else if (asleep) {
        wake_.notify_one();
      }
      return;
    }
  }
  continuation();  // the thread has ended: closing
}

void CallbackThread::run() {
  detail::mark_library_thread();
  std::vector<Continuation> batch;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) {
      started_ = false;  // from here on `post` runs what comes at once
      return;
    }
    batch.clear();
    batch.swap(queue_);
    lock.unlock();
    for (const Continuation& continuation : batch)
      continuation();
    lock.lock();
  }
}

void CallbackThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
  }
  if (!thread_.joinable())
    return;
  if (thread_.get_id() == std::this_thread::get_id())
    return;  // the core's last owner is one of its continuations
  thread_.join();
}

}  // namespace client
}  // namespace v1
}  // namespace echomq
