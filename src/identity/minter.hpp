// Mints ids: unique for its node id, strictly increasing over all threads, without a lock.
//
// One atomic cell holds the last id's time, sequence and node (document 1, section 1.4). The logical clock never goes
// back, and runs ahead by whole milliseconds when more than 4096 ids are asked for in one. A minter stops by itself
// when the time passes until which its node id is known to be held.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>

#include "echomq/error.hpp"
#include "echomq/id.hpp"

namespace echomq {
inline namespace v1 {
namespace identity {

/// Thread-safe.
class Minter {
 public:
  /// Unix milliseconds. Called by every `next`, from any thread.
  using ClockFn = std::function<std::int64_t()>;
  static constexpr std::uint16_t kMaxNode = 1023;

  /// `node` is 0..1023. An empty clock means the system's. Valid for ever until `set_valid_until` says otherwise.
  explicit Minter(std::uint16_t node, ClockFn now_ms = {});

  /// The next value. Errors: node_lease_lost (stopped, or past its time), minter_exhausted (the clock is outside
  /// 2024..2093).
  [[nodiscard]] Result<std::uint64_t> next();
  /// Values that follow one another, of one millisecond and node: nobody's stands between them.
  struct Run {
    std::uint64_t first = 0;
    std::uint32_t count = 0;
  };
  /// Up to `most` of them, at least one; `most` is 1 or more. In one step, so cheaper than as many of `next`. Errors as there.
  [[nodiscard]] Result<Run> next_run(std::uint32_t most);
  /// The next value as an id. Errors: also id_namespace.
  [[nodiscard]] Result<BrandedId> next(std::string_view brand);

  /// Minting is refused from `until` on, at most `kCoarse` earlier (the clock it is compared with ticks coarsely).
  void set_valid_until(std::chrono::steady_clock::time_point until) noexcept;
  static constexpr std::chrono::milliseconds kCoarse{10};
  /// Refuses from now on.
  void stop() noexcept { set_valid_until(std::chrono::steady_clock::time_point::min()); }
  /// Goes on under a (new) node id. Ids minted from here are greater than all before, also with a smaller node id.
  void resume(std::uint16_t node, std::chrono::steady_clock::time_point until) noexcept;
  /// Whether `next` would be refused for its lease now.
  [[nodiscard]] bool lapsed() const noexcept;

  /// Makes all further ids later than `time`: what a former holder of the node id may have minted, or what a stream ends with.
  void advance_past(UnixMillis time) noexcept;
  /// The time of the last id minted; it can be ahead of the clock.
  [[nodiscard]] UnixMillis logical_time() const noexcept;
  [[nodiscard]] std::uint16_t node() const noexcept;

 private:
  [[nodiscard]] std::int64_t now_since_epoch() const;

  /// time << 22 | sequence << 10 | node; negative while no representable time was seen yet.
  std::atomic<std::int64_t> cell_;
  /// Steady nanoseconds.
  std::atomic<std::int64_t> valid_until_;
  ClockFn now_ms_;
};

}  // namespace identity
}  // namespace v1
}  // namespace echomq
