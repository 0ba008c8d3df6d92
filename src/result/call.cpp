// The meeting of a call's answer and whoever waits for it.
#include "echomq/detail/call.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

#include "result/futex.hpp"

namespace echomq {
inline namespace v1 {
namespace detail {
namespace {
thread_local bool library_thread = false;
}  // namespace

bool on_library_thread() noexcept { return library_thread; }
void mark_library_thread() noexcept { library_thread = true; }

bool futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Clock::time_point until) noexcept {
  timespec at{};
  timespec* limit = nullptr;
  if (until != Clock::time_point::max()) {
    const auto nanoseconds = until.time_since_epoch();
    const auto seconds = std::chrono::floor<std::chrono::seconds>(nanoseconds);
    at.tv_sec = static_cast<time_t>(seconds.count());
    at.tv_nsec = static_cast<long>(std::chrono::nanoseconds(nanoseconds - seconds).count());
    limit = &at;
  }
  // FUTEX_WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC, which is what steady_clock reads on Linux.
  const long result = syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word),
                              FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, expected, limit, nullptr, FUTEX_BITSET_MATCH_ANY);
  return !(result == -1 && errno == ETIMEDOUT);
}

namespace {
thread_local WakeLater* wakes = nullptr;
}  // namespace

WakeLater::WakeLater() noexcept : outer_(wakes) { wakes = this; }
WakeLater::~WakeLater() {
  wakes = outer_;
  if (outer_ == nullptr) {
    flush();
    return;
  }
  for (std::atomic<std::uint32_t>* const word : gathered())
    outer_->gather(*word);
}

void WakeLater::flush() noexcept {
  for (std::size_t i = 0; i < count_; ++i)
    futex_wake_all(*words_[i]);
  count_ = 0;
}

void WakeLater::wake(std::atomic<std::uint32_t>& word) noexcept {
  if (wakes == nullptr)
    return futex_wake_all(word);
  wakes->gather(word);
}

void WakeLater::gather(std::atomic<std::uint32_t>& word) noexcept {
  for (std::size_t i = 0; i < count_; ++i) {
    if (words_[i] == &word)
      return;
  }
  if (count_ == words_.size())
    flush();
  words_[count_++] = &word;
}

void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, nullptr,
          nullptr, 0);
}

void Call::publish() noexcept {
  switch (phase_.exchange(kDone, std::memory_order_acq_rel)) {
    case kContinuation:
      if (target_ != nullptr) {
        target_->post(continuation_);
      } else {
        continuation_();
      }
      break;
    case kWaiting: futex_wake_all(phase_); break;
    default: break;
  }
}

bool Call::on_done(Target* target, Continuation continuation) noexcept {
  target_ = target;
  continuation_ = continuation;
  // Before the exchange: once the continuation is registered, it may run, release the call, and end the client.
  if (source != nullptr && LocalLoop::current() != target && !done())
    source->leave_to_library();
  std::uint32_t expected = kPending;
  return phase_.compare_exchange_strong(expected, kContinuation, std::memory_order_acq_rel);
}

bool Call::wait(Clock::time_point until) noexcept {
  if (done())
    return true;
  if (source != nullptr) {
    (void)source->drive([](void* self) { return static_cast<Call*>(self)->done(); }, this, until);
  }
  while (!done()) {
    std::uint32_t expected = kPending;
    if (!phase_.compare_exchange_strong(expected, kWaiting, std::memory_order_acq_rel) && expected == kDone)
      break;
    if (!futex_wait(phase_, kWaiting, until)) {
      expected = kWaiting;
      (void)phase_.compare_exchange_strong(expected, kPending, std::memory_order_acq_rel);
      break;
    }
  }
  return done();
}

}  // namespace detail
}  // namespace v1
}  // namespace echomq
