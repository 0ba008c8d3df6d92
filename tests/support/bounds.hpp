// Bounds of time of tests, and what a sanitizer does to them.
#pragma once

#include <chrono>

namespace echomq::test {

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ECHOMQ_TEST_UNDER_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ECHOMQ_TEST_UNDER_SANITIZER 1
#endif

/// A sanitizer slows all, and in its tree tests with bounds of time run beside others (see tests/CMakeLists.txt).
#ifdef ECHOMQ_TEST_UNDER_SANITIZER
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// An upper bound of time that a test claims: as it is where it is checked, ten times as long under a sanitizer.
[[nodiscard]] constexpr std::chrono::milliseconds bound(std::chrono::milliseconds time) {
  return kSanitized ? time * 10 : time;
}

}  // namespace echomq::test
