// How soon a worker begins a job: on an idle queue, beside a PING, and under a steady trickle.
#pragma once

#include "cases.hpp"

namespace echomq_bench {

struct PickUpVerdict {
  static constexpr double kMostMedian = 3;
  static constexpr double kMostTail = 20;
  /// Medians, µs: a PING by the library's client (`.get()`), and by a raw socket.
  double ping = 0;
  double raw_ping = 0;
  /// What the engine allows, median, µs: the same scripts over two raw sockets (`PickUpFloor`).
  double floor = 0;
  /// From the call of `enqueue` to the handler, µs.
  double p50 = 0;
  double p99 = 0;
  [[nodiscard]] double median_ratio() const { return p50 / ping; }
  [[nodiscard]] double tail_ratio() const { return p99 / ping; }
  [[nodiscard]] double of_floor() const { return p50 / floor; }
  /// Of either PING.
  [[nodiscard]] double floor_ratio() const { return floor / ping; }
  [[nodiscard]] double floor_raw_ratio() const { return floor / raw_ping; }
  [[nodiscard]] bool holds() const { return median_ratio() <= kMostMedian && tail_ratio() <= kMostTail; }
};

/// One job at a time on an idle worker of one slot, each with a PING of either kind just before it, all after pauses
/// alike; by turns with the floor.
[[nodiscard]] PickUpVerdict measure_pick_up(Bed& bed, double scale);

struct PacedVerdict {
  static constexpr double kMostTail = 2000;
  double p50 = 0;  ///< µs from the call of `enqueue` to the handler
  double p99 = 0;
  double most = 0;
  std::size_t jobs = 0;
  [[nodiscard]] bool holds() const { return p99 <= kMostTail; }
};

/// 1,000 single jobs a second for some seconds, a worker of ten slots.
[[nodiscard]] PacedVerdict measure_paced(Bed& bed, double scale);

}  // namespace echomq_bench
