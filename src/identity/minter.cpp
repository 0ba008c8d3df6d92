// The minter.
#include "identity/minter.hpp"

#include <time.h>

#include <algorithm>
#include <cassert>
#include <limits>
#include <string>
#include <utility>

#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace identity {
namespace {

constexpr int kTimeShift = 22;
constexpr int kSequenceShift = 10;
constexpr std::int64_t kNodeMask = 0x3FF;
constexpr std::int64_t kSequenceMask = 0xFFF;
constexpr std::int64_t kStep = std::int64_t{1} << kSequenceShift;
constexpr std::int64_t kMaxTime = (std::int64_t{1} << 41) - 1;

/// The cell of a minter that has seen no representable time.
[[nodiscard]] constexpr std::int64_t unset(std::int64_t node) noexcept {
  return -(std::int64_t{1} << kTimeShift) + node;
}

/// Milliseconds behind the real steady clock at worst, but three times as cheap to read.
[[nodiscard]] std::int64_t coarse_steady() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

[[nodiscard]] std::int64_t nanoseconds(std::chrono::steady_clock::time_point time) noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

Minter::Minter(std::uint16_t node, ClockFn now_ms)
    : cell_(unset(node & kNodeMask)),
      valid_until_(std::numeric_limits<std::int64_t>::max()),
      now_ms_(std::move(now_ms)) {
  assert(node <= kMaxNode && "whoever leased or was given the node id has checked it");
  const std::int64_t now = now_since_epoch();
  if (now >= 0 && now <= kMaxTime)
    cell_.store((now << kTimeShift) | (node & kNodeMask), std::memory_order_relaxed);
}

std::int64_t Minter::now_since_epoch() const {
  using std::chrono::duration_cast;
  using std::chrono::milliseconds;
  const std::int64_t now =
      now_ms_ ? now_ms_() : duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  return now - kIdEpoch.time_since_epoch().count();
}

Result<std::uint64_t> Minter::next() {
  ECHOMQ_TRY(const Run run, next_run(1));
  return run.first;
}

Result<Minter::Run> Minter::next_run(std::uint32_t most) {
  assert(most >= 1 && "nobody asks for no values");
  // The clock is read before the lease is checked: whatever happens to this thread in between and afterwards, the id
  // carries a time at which the node id was held.
  const std::int64_t now = now_since_epoch();
  if (lapsed())
    return fail(Errc::node_lease_lost, "the node id is not known to be held any more");
  if (now > kMaxTime)
    return fail(Errc::minter_exhausted, "the clock is past the last representable instant");
  std::int64_t last = cell_.load(std::memory_order_relaxed);
  for (;;) {
    if (now < 0 && last < 0)
      return fail(Errc::minter_exhausted, "the clock is before 2024-01-01");
    if (last > std::numeric_limits<std::int64_t>::max() - kStep) {
      return fail(Errc::minter_exhausted, "the logical clock is past the last representable instant");
    }
    const std::int64_t node = last & kNodeMask;
    const std::int64_t fresh = now < 0 ? last : (now << kTimeShift) | node;
    const std::int64_t first = std::max(fresh, last + kStep);
    const std::int64_t sequence = (first >> kSequenceShift) & kSequenceMask;
    const std::int64_t count = std::min<std::int64_t>(most, kSequenceMask - sequence + 1);
    if (cell_.compare_exchange_weak(last, first + (count - 1) * kStep, std::memory_order_relaxed)) {
      return Run{.first = static_cast<std::uint64_t>(((first >> kTimeShift) << 22) | (node << 12) | sequence),
                 .count = static_cast<std::uint32_t>(count)};
    }
  }
}

Result<BrandedId> Minter::next(std::string_view brand) {
  // A bad namespace must not consume a value, nor hide behind a lost lease.
  ECHOMQ_CHECK(BrandedId::encode(brand, 0));
  ECHOMQ_TRY(const std::uint64_t value, next());
  return BrandedId::encode(brand, value);
}

void Minter::set_valid_until(std::chrono::steady_clock::time_point until) noexcept {
  constexpr std::int64_t kMargin = std::chrono::nanoseconds(kCoarse).count();
  std::int64_t limit = nanoseconds(until);
  if (until != std::chrono::steady_clock::time_point::max() &&
      limit > std::numeric_limits<std::int64_t>::min() + kMargin) {
    limit -= kMargin;
  }
  valid_until_.store(limit, std::memory_order_release);
}

bool Minter::lapsed() const noexcept {
  const std::int64_t until = valid_until_.load(std::memory_order_acquire);
  return until != std::numeric_limits<std::int64_t>::max() && coarse_steady() >= until;
}

void Minter::resume(std::uint16_t node, std::chrono::steady_clock::time_point until) noexcept {
  assert(node <= kMaxNode && "whoever leased or was given the node id has checked it");
  std::int64_t last = cell_.load(std::memory_order_relaxed);
  for (;;) {
    std::int64_t moved = last;
    if ((last & kNodeMask) != node) {
      // The node stands above the sequence, so only a later millisecond keeps the order.
      const std::int64_t time = std::min(last >> kTimeShift, kMaxTime - 1);
      moved = last < 0 ? unset(node & kNodeMask) : ((time + 1) << kTimeShift) | (node & kNodeMask);
    }
    if (cell_.compare_exchange_weak(last, moved, std::memory_order_relaxed))
      break;
  }
  set_valid_until(until);
}

void Minter::advance_past(UnixMillis time) noexcept {
  const std::int64_t since = std::min((time - kIdEpoch).count(), kMaxTime - 1);
  if (since < 0)
    return;
  std::int64_t last = cell_.load(std::memory_order_relaxed);
  for (;;) {
    const std::int64_t moved = ((since + 1) << kTimeShift) | (last & kNodeMask);
    if (moved <= last || cell_.compare_exchange_weak(last, moved, std::memory_order_relaxed))
      return;
  }
}

UnixMillis Minter::logical_time() const noexcept {
  const std::int64_t cell = cell_.load(std::memory_order_relaxed);
  return kIdEpoch + std::chrono::milliseconds{cell < 0 ? 0 : cell >> kTimeShift};
}

std::uint16_t Minter::node() const noexcept {
  return static_cast<std::uint16_t>(cell_.load(std::memory_order_relaxed) & kNodeMask);
}

}  // namespace identity
}  // namespace v1
}  // namespace echomq
