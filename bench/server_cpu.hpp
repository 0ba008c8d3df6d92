// Server CPU a whole job: one canonical script a step beside batches of ours.
#pragma once

#include <string>
#include <vector>

#include "cases.hpp"

namespace echomq_bench {

struct CpuVerdict {
  static constexpr double kMost = 0.6;
  double baseline = 0;  ///< µs of server CPU a job, of the median pair
  double ours = 0;
  double ratio = 0;
  /// `name sha1` of each baseline script, as the server knows it.
  std::vector<std::string> scripts;
  [[nodiscard]] bool holds() const { return ratio <= kMost; }
};

/// Enqueue, claim, complete from `bench/baseline`, pipelined by 100, in turns with `admit` and `settle_and_take` of 100.
[[nodiscard]] CpuVerdict measure_server_cpu(Bed& bed, double scale, int pairs);

}  // namespace echomq_bench
