// A timed wait on a 32-bit atomic: what `std::atomic::wait` lacks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace echomq {
inline namespace v1 {
namespace detail {

/// Sleeps while `word` holds `expected`, at most until `until`. May wake for no reason. False when time is up.
bool futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::steady_clock::time_point until) noexcept;
void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept;

/// Marks this thread as one of the library: blocking calls on it answer `would_deadlock`.
void mark_library_thread() noexcept;

}  // namespace detail
}  // namespace v1
}  // namespace echomq
