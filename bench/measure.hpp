// One measured case: a floor and a contender that alternate on one server.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "raw_socket.hpp"

namespace echomq_bench {

/// What one run of one side gave.
struct Run {
  double rate = 0;          ///< jobs/s
  double server_cpu = 0;    ///< µs of server CPU a job
  double own_cpu = 0;       ///< µs of this process's CPU a job, all threads
  double server_share = 0;  ///< of one core, 0..1
};

struct Case {
  std::string name;
  double must_be = 0;  ///< the least ratio contender / floor
  bool floor_must_saturate = true;
  std::size_t jobs = 0;
  /// So many times as many alternations, each of so few jobs: on a machine that others use, a neighbour then meets both
  /// sides of most pairs alike.
  int more_pairs = 1;
  /// Prepares the server for one run (untimed), then runs it (timed). `window` is for the floor only.
  std::function<void(std::size_t window)> prepare;
  std::function<void(std::size_t window)> floor;
  std::function<void()> prepare_contender;
  std::function<void()> contender;
  std::function<void()> clean;  ///< after the last run; may be empty
  std::vector<std::size_t> windows = {64, 256, 1024};
};

struct Verdict {
  std::string name;
  double must_be = 0;
  double ratio = 0;  ///< median of the pairs
  Run floor;         ///< of the median pair
  Run contender;
  std::size_t window = 0;
  bool saturated = true;
  [[nodiscard]] bool holds() const { return ratio >= must_be; }
};

/// The value below which `share` (0 to 1) of the values lie; reorders them. They must not be none.
[[nodiscard]] double percentile(std::vector<double>& of, double share);

/// Alternates floor and contender `pairs` times (times the case's `more_pairs`) on one transport; the window is the floor's best.
[[nodiscard]] Verdict measure(const Case& subject, RawSocket& control, int pairs);

}  // namespace echomq_bench
