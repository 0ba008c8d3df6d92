// Hand-written because the standard library of our oldest compiler has no chrono parser.
#include "time_argument.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>

namespace emq {
namespace {

using echomq::Errc;
using echomq::Instant;
using echomq::Milliseconds;
using echomq::Result;

constexpr std::int64_t kLongest = std::int64_t{100} * 366 * 24 * 3600 * 1000;

struct Unit {
  std::string_view name;
  std::int64_t milliseconds;
};
constexpr auto kUnits = std::to_array<Unit>(
    {{"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}, {"d", 86'400'000}, {"w", 604'800'000}});

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

// Takes exactly `digits` digits from the front.
std::optional<int> take_number(std::string_view& text, std::size_t digits) {
  if (text.size() < digits) {
    return std::nullopt;
  }
  int value = 0;
  for (const char c : text.substr(0, digits)) {
    if (!is_digit(c)) {
      return std::nullopt;
    }
    value = value * 10 + (c - '0');
  }
  text.remove_prefix(digits);
  return value;
}

bool take(std::string_view& text, std::string_view any_of) {
  if (text.empty() || any_of.find(text.front()) == std::string_view::npos) {
    return false;
  }
  text.remove_prefix(1);
  return true;
}

std::optional<Instant> parse_rfc3339(std::string_view text) {
  using namespace std::chrono;
  const auto y = take_number(text, 4);
  if (!y || !take(text, "-")) {
    return std::nullopt;
  }
  const auto mo = take_number(text, 2);
  if (!mo || !take(text, "-")) {
    return std::nullopt;
  }
  const auto d = take_number(text, 2);
  if (!d || !take(text, "Tt ")) {
    return std::nullopt;
  }
  const auto h = take_number(text, 2);
  if (!h || !take(text, ":")) {
    return std::nullopt;
  }
  const auto mi = take_number(text, 2);
  if (!mi || !take(text, ":")) {
    return std::nullopt;
  }
  const auto s = take_number(text, 2);
  if (!s) {
    return std::nullopt;
  }
  int fraction = 0;
  if (take(text, ".,")) {
    std::size_t digits = 0;
    for (; !text.empty() && is_digit(text.front()); text.remove_prefix(1), ++digits) {
      if (digits < 3) {
        fraction = fraction * 10 + (text.front() - '0');
      }
    }
    if (digits == 0) {
      return std::nullopt;
    }
    for (; digits < 3; ++digits) {
      fraction *= 10;
    }
  }
  minutes offset{0};
  if (!take(text, "Zz")) {
    if (text.empty()) {
      return std::nullopt;
    }
    const bool west = text.front() == '-';
    if (!take(text, "+-")) {
      return std::nullopt;
    }
    const auto oh = take_number(text, 2);
    if (!oh || !take(text, ":")) {
      return std::nullopt;
    }
    const auto om = take_number(text, 2);
    if (!om || *oh > 23 || *om > 59) {
      return std::nullopt;
    }
    offset = hours{*oh} + minutes{*om};
    if (west) {
      offset = -offset;
    }
  }
  const year_month_day date{year{*y}, month{static_cast<unsigned>(*mo)}, day{static_cast<unsigned>(*d)}};
  // 60 is a leap second; it counts as the first of the next minute.
  if (!text.empty() || !date.ok() || *h > 23 || *mi > 59 || *s > 60) {
    return std::nullopt;
  }
  return Instant(sys_days(date) + hours{*h} + minutes{*mi} + seconds{*s} + milliseconds{fraction} - offset);
}

}  // namespace

Result<Milliseconds> parse_duration(std::string_view text) {
  const auto refuse = [&] {
    return echomq::fail(Errc::invalid_argument,
                        fmt::format("not a duration: '{}' (such as 250ms, 5s, 10m, 1h30m, 2d)", text));
  };
  if (text == "0") {
    return Milliseconds{0};
  }
  if (text.empty()) {
    return refuse();
  }
  double total = 0;
  for (std::string_view rest = text; !rest.empty();) {
    if (!is_digit(rest.front())) {
      return refuse();
    }
    double number = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number, std::chars_format::fixed);
    if (error != std::errc()) {
      return refuse();
    }
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    std::size_t letters = 0;
    while (letters < rest.size() && !is_digit(rest[letters])) {
      ++letters;
    }
    const Unit* unit = nullptr;
    for (const Unit& candidate : kUnits) {
      if (candidate.name == rest.substr(0, letters)) {
        unit = &candidate;
      }
    }
    if (unit == nullptr) {
      return refuse();
    }
    total += number * static_cast<double>(unit->milliseconds);
    rest.remove_prefix(letters);
  }
  if (!(total <= static_cast<double>(kLongest))) {
    return echomq::fail(Errc::invalid_argument, fmt::format("longer than 100 years: '{}'", text));
  }
  return Milliseconds{std::llround(total)};
}

Result<Instant> parse_instant(std::string_view text) {
  std::int64_t unix_ms = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), unix_ms);
  if (error == std::errc() && end == text.data() + text.size()) {
    // Seconds instead of milliseconds would put every job into January 1970, due at once and unnoticed.
    if (unix_ms < 100'000'000'000 || unix_ms > 10 * kLongest) {
      return echomq::fail(Errc::invalid_argument, fmt::format("not Unix milliseconds: {}", text));
    }
    return Instant{Milliseconds{unix_ms}};
  }
  if (const auto instant = parse_rfc3339(text)) {
    return *instant;
  }
  return echomq::fail(
      Errc::invalid_argument,
      fmt::format("not an instant: '{}' (such as 2026-07-02T09:30:00Z, or Unix milliseconds; for a duration use --in)",
                  text));
}

std::string to_rfc3339(Instant instant) {
  using namespace std::chrono;
  const auto days_part = floor<days>(instant);
  const year_month_day date{days_part};
  const auto in_day = instant - days_part;
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     duration_cast<hours>(in_day).count(), duration_cast<minutes>(in_day).count() % 60,
                     duration_cast<seconds>(in_day).count() % 60, in_day.count() % 1000);
}

std::string to_text(Milliseconds duration) {
  const std::int64_t ms = duration.count();
  if (ms < 0) {
    return "-" + to_text(-duration);
  }
  if (ms < 1000) {
    return fmt::format("{}ms", ms);
  }
  if (ms < 60'000) {
    return fmt::format("{:.1f}s", static_cast<double>(ms) / 1000);
  }
  if (ms < 3'600'000) {
    return fmt::format("{}m{:02}s", ms / 60'000, ms / 1000 % 60);
  }
  if (ms < 86'400'000) {
    return fmt::format("{}h{:02}m", ms / 3'600'000, ms / 60'000 % 60);
  }
  return fmt::format("{}d{:02}h", ms / 86'400'000, ms / 3'600'000 % 24);
}

}  // namespace emq
