// A worker of ours beside BullMQ with its defaults, in turns on one server.
#pragma once

#include <string>

#include "cases.hpp"

namespace echomq_bench {

struct PeerVerdict {
  static constexpr double kLeast = 5;
  std::string name;
  double ours = 0;  ///< jobs/s, of the median pair
  double theirs = 0;
  double ratio = 0;
  [[nodiscard]] bool holds() const { return ratio >= kLeast; }
};

struct PeerVerdicts {
  /// Why nothing was measured; empty when it was.
  std::string skipped;
  std::string version;
  PeerVerdict process;     ///< jobs that wait already, run at concurrency 100
  PeerVerdict end_to_end;  ///< admitted by 100 and run meanwhile
};

/// `peer/bullmq.js` under Node; jobs of 100 bytes with a handler that does nothing, removed on completion.
[[nodiscard]] PeerVerdicts measure_bullmq(Bed& bed, const std::string& socket_path, double scale, int pairs);

}  // namespace echomq_bench
