// What the host refuses before anything is sent; every error names the argument and its value.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "echomq/error.hpp"
#include "echomq/queue.hpp"
#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

/// Scores are doubles: beyond this, milliseconds would no longer be exact.
inline constexpr std::int64_t kMaxExact = (std::int64_t{1} << 53) - 1;
/// The server's own bound of one string (`proto-max-bulk-len`, by default).
inline constexpr std::size_t kMaxText = std::size_t{512} << 20;

/// lease > 0.
[[nodiscard]] Result<void> check_lease(Milliseconds lease);
/// A span of time from now on: >= 0.
[[nodiscard]] Result<void> check_wait(std::string_view name, Milliseconds wait);
/// Any instant that a score can hold, also one in the past.
[[nodiscard]] Result<void> check_instant(std::string_view name, Instant at);
/// >= 1.
[[nodiscard]] Result<void> check_limit(std::string_view name, std::uint64_t limit);
/// At most `kMaxText` bytes. Never shows the text itself.
[[nodiscard]] Result<void> check_text(std::string_view name, std::string_view text);
/// The name of a registration: 1 to 255 bytes.
[[nodiscard]] Result<void> check_repeat_name(std::string_view name);
/// A period: 1 ms or more.
[[nodiscard]] Result<void> check_period(std::string_view name, Milliseconds period);
/// At most one of the two, and each in range.
[[nodiscard]] Result<void> check_due(std::optional<Instant> at, std::optional<Milliseconds> in);
/// > 0 when given.
[[nodiscard]] Result<void> check_deadline(std::optional<Milliseconds> deadline);

/// Settings of a call whose deadline was checked. Longer than a year is a year: nobody waits for more.
[[nodiscard]] wire::CallSettings settings(Repeat repeat, std::optional<Milliseconds> deadline = {}) noexcept;

}  // namespace queue
}  // namespace v1
}  // namespace echomq
