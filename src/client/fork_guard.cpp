// The fork generation.
#include "client/fork_guard.hpp"

#include <pthread.h>

#include <atomic>

namespace echomq {
inline namespace v1 {
namespace client {
namespace {

std::atomic<std::uint32_t> forks{0};

const int kRegistered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

std::uint32_t fork_generation() noexcept {
  (void)kRegistered;
  return forks.load(std::memory_order_relaxed);
}

}  // namespace client
}  // namespace v1
}  // namespace echomq
