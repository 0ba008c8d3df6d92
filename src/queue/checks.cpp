// What the host refuses before anything is sent.
#include "queue/checks.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace echomq {
inline namespace v1 {
namespace queue {
namespace {

constexpr Milliseconds kLongest{std::int64_t{365} * 24 * 3600 * 1000};

[[nodiscard]] std::unexpected<Error> refuse(std::string why) { return fail(Errc::invalid_argument, std::move(why)); }

}  // namespace

Result<void> check_lease(Milliseconds lease) {
  if (lease.count() >= 1 && lease.count() <= kMaxExact)
    return {};
  return refuse(fmt::format("lease must be 1ms to {}ms, got {}ms", kMaxExact, lease.count()));
}

Result<void> check_wait(std::string_view name, Milliseconds wait) {
  if (wait.count() >= 0 && wait.count() <= kMaxExact)
    return {};
  return refuse(fmt::format("{} must be 0ms to {}ms, got {}ms", name, kMaxExact, wait.count()));
}

Result<void> check_instant(std::string_view name, Instant at) {
  const std::int64_t value = at.time_since_epoch().count();
  if (value >= -kMaxExact && value <= kMaxExact)
    return {};
  return refuse(fmt::format("{} must be within {}ms of 1970, got {}ms", name, kMaxExact, value));
}

Result<void> check_limit(std::string_view name, std::uint64_t limit) {
  if (limit >= 1)
    return {};
  return refuse(fmt::format("{} must be 1 or more, got {}", name, limit));
}

Result<void> check_text(std::string_view name, std::string_view text) {
  if (text.size() <= kMaxText)
    return {};
  return refuse(fmt::format("{} must be at most {} bytes, got {}", name, kMaxText, text.size()));
}

Result<void> check_repeat_name(std::string_view name) {
  if (!name.empty() && name.size() <= 255)
    return {};
  return refuse(fmt::format("the name of a repeat must be 1 to 255 bytes, got {}", name.size()));
}

Result<void> check_period(std::string_view name, Milliseconds period) {
  if (period.count() >= 1 && period.count() <= kMaxExact)
    return {};
  return refuse(fmt::format("{} must be 1ms to {}ms, got {}ms", name, kMaxExact, period.count()));
}

Result<void> check_due(std::optional<Instant> at, std::optional<Milliseconds> in) {
  if (at && in) {
    return refuse(fmt::format("at and in exclude each other, got at {}ms and in {}ms", at->time_since_epoch().count(),
                              in->count()));
  }
  if (at)
    return check_instant("at", *at);
  if (in)
    return check_wait("in", *in);
  return {};
}

Result<void> check_deadline(std::optional<Milliseconds> deadline) {
  if (!deadline || deadline->count() >= 1)
    return {};
  return refuse(fmt::format("deadline must be 1ms or more, got {}ms", deadline->count()));
}

wire::CallSettings settings(Repeat repeat, std::optional<Milliseconds> deadline) noexcept {
  wire::CallSettings settings;
  settings.repeat = repeat;
  if (deadline)
    settings.deadline = std::min(*deadline, kLongest);
  return settings;
}

}  // namespace queue
}  // namespace v1
}  // namespace echomq
