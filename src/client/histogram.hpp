// Durations counted in buckets, by any number of threads.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "echomq/latencies.hpp"

namespace echomq {
inline namespace v1 {
namespace client {

using namespace std::chrono_literals;

/// The bounds that are shown.
inline constexpr std::array<std::chrono::nanoseconds, 17> kBounds = {
    1ms, 2500us, 5ms, 10ms, 25ms, 50ms, 100ms, 250ms, 500ms, 1s, 2500ms, 5s, 10s, 30s, 1min, 5min, 30min};

/// Every power of two of nanoseconds in eighths, so that a bucket is no wider than an eighth of what is in it.
class FineBuckets {
 public:
  static constexpr std::size_t kCount = 16 + (63 - 4) * 8;

  [[nodiscard]] static constexpr std::size_t index_of(std::uint64_t nanoseconds) noexcept {
    const std::uint64_t value = std::min<std::uint64_t>(nanoseconds, INT64_MAX);
    if (value < 16)
      return static_cast<std::size_t>(value);
    const auto exponent = static_cast<unsigned>(std::bit_width(value)) - 1;
    return 16 + std::size_t{exponent - 4} * 8 + static_cast<std::size_t>((value >> (exponent - 3)) & 7U);
  }
  /// The greatest value of a bucket.
  [[nodiscard]] static constexpr std::uint64_t last_of(std::size_t index) noexcept {
    if (index < 16)
      return index;
    const std::size_t exponent = 4 + (index - 16) / 8;
    return ((std::uint64_t{9} + (index - 16) % 8) << (exponent - 3)) - 1;
  }
};

class Histogram {
 public:
  void add(std::chrono::nanoseconds took) noexcept {
    const std::chrono::nanoseconds value = std::max(took, std::chrono::nanoseconds{0});
    const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), value) - kBounds.begin();
    bounded[static_cast<std::size_t>(bound)].fetch_add(1, std::memory_order_relaxed);
    fine[FineBuckets::index_of(static_cast<std::uint64_t>(value.count()))].fetch_add(1, std::memory_order_relaxed);
    sum.fetch_add(value.count(), std::memory_order_relaxed);
    std::int64_t before = max.load(std::memory_order_relaxed);
    while (before < value.count() && !max.compare_exchange_weak(before, value.count(), std::memory_order_relaxed)) {
    }
  }

  [[nodiscard]] Latencies read() const {
    Latencies out;
    for (const auto& bucket : bounded) {
      out.bounded_.push_back(bucket.load(std::memory_order_relaxed));
      out.count += out.bounded_.back();
    }
    for (const auto& bucket : fine)
      out.fine_.push_back(bucket.load(std::memory_order_relaxed));
    out.sum = std::chrono::nanoseconds{sum.load(std::memory_order_relaxed)};
    out.max = std::chrono::nanoseconds{max.load(std::memory_order_relaxed)};
    return out;
  }

  std::array<std::atomic<std::uint64_t>, kBounds.size() + 1> bounded{};
  std::array<std::atomic<std::uint64_t>, FineBuckets::kCount> fine{};
  std::atomic<std::int64_t> sum{0};  ///< nanoseconds
  std::atomic<std::int64_t> max{0};
};

}  // namespace client
}  // namespace v1
}  // namespace echomq
