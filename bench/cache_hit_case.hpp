// What a hit of L1 costs, beside the same lookup and copy in a concurrent map of Boost.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace echomq_bench {

/// Zipf 0.99 over rows of 100 bytes that end in the caller's hands. Both sides take turns of some ten milliseconds, so that a machine
/// that changes its speed does so for both; every figure is the median of all turns, of a thread's own CPU time.
struct HitVerdict {
  static constexpr double kMostRatio = 1.5;
  static constexpr double kMostNanoseconds = 60;  ///< at 10,000 entries
  static constexpr double kMostBytes =
      1.35 * (14 + 14 + 100);  ///< beyond 10,000, where what every table has does not tell
  std::size_t entries = 0;
  unsigned threads = 1;
  double ratio = 0;             ///< median of the ratios of neighbouring turns
  std::array<double, 3> hit{};  ///< ns: 10th, 50th and 90th percentile of the turns
  double map = 0;               ///< ns
  double bytes_a_row = 0;       ///< what malloc has in use
  [[nodiscard]] bool bounded() const { return entries == 10'000; }
  [[nodiscard]] bool holds() const {
    return ratio <= kMostRatio && (bounded() ? hit[1] <= kMostNanoseconds : bytes_a_row <= kMostBytes);
  }
};

/// 10,000 and 1,000,000 entries (the second fewer by `scale` below 1), 1 and 2 threads.
[[nodiscard]] std::vector<HitVerdict> measure_hits(const std::string& url, double scale);

}  // namespace echomq_bench
