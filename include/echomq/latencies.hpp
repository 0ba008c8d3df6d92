// `Latencies`: how durations are spread, as `WorkerMetrics` and `CacheStats` tell them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace echomq {
inline namespace v1 {

namespace client {
class Histogram;
}  // namespace client

/// Durations: how many, their sum, the greatest, and how they are spread.
class Latencies {
 public:
  /// The upper bounds, both ends included, of the buckets that `prometheus()` shows, in ascending order.
  [[nodiscard]] static std::span<const std::chrono::nanoseconds> bounds() noexcept;

  std::uint64_t count = 0;
  std::chrono::nanoseconds sum{0};
  std::chrono::nanoseconds max{0};

  /// The duration that the share `share` (0 to 1) of all did not exceed, at most an eighth above the true one; zero
  /// without any.
  [[nodiscard]] std::chrono::nanoseconds percentile(double share) const noexcept;
  /// How many took no longer than the bound with this index; all of them past the last one.
  [[nodiscard]] std::uint64_t at_most(std::size_t bound) const noexcept;

 private:
  friend class client::Histogram;
  std::vector<std::uint64_t> fine_;     ///< by eighths of powers of two
  std::vector<std::uint64_t> bounded_;  ///< by `bounds()`, and what is beyond
};

}  // namespace v1
}  // namespace echomq
