// A clock for what does not mind some milliseconds.
#pragma once

#include <time.h>

#include <chrono>

#include "echomq/detail/call.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {

/// As `detail::Clock::now()`, a tick of the kernel (10 ms) behind it at worst, and several times cheaper.
[[nodiscard]] inline detail::Clock::time_point coarse_now() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return detail::Clock::time_point(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

/// Now, for comparing with times that are `span` apart: coarse where that is long.
[[nodiscard]] inline detail::Clock::time_point now_within(std::chrono::milliseconds span) noexcept {
  return span >= std::chrono::seconds(1) ? coarse_now() : detail::Clock::now();
}

}  // namespace bus
}  // namespace v1
}  // namespace echomq
