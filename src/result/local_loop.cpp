// The loop of a thread that runs a `Task` to its end.
#include <mutex>
#include <vector>

#include "echomq/detail/call.hpp"
#include "result/futex.hpp"

namespace echomq {
inline namespace v1 {
namespace detail {
namespace {
thread_local LocalLoop* current_loop = nullptr;
}  // namespace

struct LocalLoop::Queue {
  std::mutex mutex;
  std::vector<Continuation> ready;  // guarded by mutex
  bool finished = false;            // guarded by mutex
  std::atomic<std::uint32_t> signal{0};

  [[nodiscard]] bool has_work() {
    const std::lock_guard lock(mutex);
    return finished || !ready.empty();
  }
};

LocalLoop::LocalLoop() noexcept : outer_(current_loop), queue_(new Queue) { current_loop = this; }

LocalLoop::~LocalLoop() {
  current_loop = outer_;
  // Whoever called finish() on another thread may still be inside its lock.
  {
    const std::lock_guard lock(queue_->mutex);
  }
  delete queue_;
}

LocalLoop* LocalLoop::current() noexcept { return current_loop; }

void LocalLoop::post(Continuation continuation) {
  const std::lock_guard lock(queue_->mutex);
  queue_->ready.push_back(continuation);
  if (current_loop == this)
    return;  // this thread is awake
  queue_->signal.fetch_add(1, std::memory_order_release);
  futex_wake_all(queue_->signal);
}

void LocalLoop::finish() noexcept {
  const std::lock_guard lock(queue_->mutex);
  queue_->finished = true;
  queue_->signal.fetch_add(1, std::memory_order_release);
  futex_wake_all(queue_->signal);
}

void LocalLoop::run() {
  std::vector<Continuation> batch;
  for (;;) {
    const std::uint32_t seen = queue_->signal.load(std::memory_order_acquire);
    batch.clear();
    {
      const std::lock_guard lock(queue_->mutex);
      batch.swap(queue_->ready);
      if (batch.empty() && queue_->finished)
        return;
    }
    // The connection of the last wait may be gone by the next one.
    if (!batch.empty())
      source_ = nullptr;
    for (const Continuation& continuation : batch)
      continuation();
    if (!batch.empty())
      continue;
    const bool drove =
        source_ != nullptr && source_->drive([](void* queue) { return static_cast<Queue*>(queue)->has_work(); }, queue_,
                                             Clock::time_point::max());
    if (!drove)
      (void)futex_wait(queue_->signal, seen, Clock::time_point::max());
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace echomq
