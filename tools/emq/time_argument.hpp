// Durations and instants as people type them.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "echomq/error.hpp"
#include "echomq/queue.hpp"

namespace emq {

/// "250ms", "5s", "10m", "2h", "1d", "1h30m", "1.5s", "0". Not negative, at most 100 years. Errors: invalid_argument.
[[nodiscard]] echomq::Result<echomq::Milliseconds> parse_duration(std::string_view text);

/// RFC 3339 ("2026-07-02T09:30:00Z", "2026-07-02 09:30:00.250+02:00") or Unix milliseconds. Errors: invalid_argument.
[[nodiscard]] echomq::Result<echomq::Instant> parse_instant(std::string_view text);

/// "2026-07-02T09:30:00.250Z".
[[nodiscard]] std::string to_rfc3339(echomq::Instant instant);

/// "1h30m", "2.5s", "40ms": at most two units.
[[nodiscard]] std::string to_text(echomq::Milliseconds duration);

}  // namespace emq
