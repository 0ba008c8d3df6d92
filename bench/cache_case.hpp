// How soon a table has dropped what another client wrote, in PINGs.
#pragma once

#include "cases.hpp"

namespace echomq_bench {

struct PushVerdict {
  static constexpr double kMostMedian = 3;
  double ping = 0;  ///< median, µs, of a PING by the library's client (`.get()`)
  /// From the call of `CacheWriter::broadcast` until the row is gone from L1 of another client's table, µs.
  double p50 = 0;
  double p99 = 0;
  double tracking_p50 = 0;  ///< from the call of a SET of the row, under tracking; no bound
  [[nodiscard]] double median_ratio() const { return p50 / ping; }
  [[nodiscard]] bool holds() const { return median_ratio() <= kMostMedian; }
};

/// One message at a time between idle clients, each with a PING just before it.
[[nodiscard]] PushVerdict measure_push(Bed& bed, const std::string& url, double scale);

}  // namespace echomq_bench
