// The text of a backoff.
#include "queue/backoff_text.hpp"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "queue/checks.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {
namespace {

[[nodiscard]] bool take(std::string_view& text, std::string_view prefix) noexcept {
  if (!text.starts_with(prefix))
    return false;
  text.remove_prefix(prefix.size());
  return true;
}

[[nodiscard]] std::optional<Milliseconds> take_number(std::string_view& text) noexcept {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const auto digits = static_cast<std::size_t>(stop - text.data());
  if (error != std::errc() || text.front() == '-' || (text.front() == '0' && digits > 1) || value > kMaxExact)
    return std::nullopt;
  text.remove_prefix(digits);
  return Milliseconds{value};
}

[[nodiscard]] std::optional<BackoffText> parse(std::string_view text) noexcept {
  BackoffText backoff;
  backoff.exponential = take(text, "exponential:");
  if (!backoff.exponential && !take(text, "fixed:"))
    return std::nullopt;
  const auto base = take_number(text);
  if (!base)
    return std::nullopt;
  backoff.base = *base;
  if (backoff.exponential) {
    const auto cap = take(text, ":") ? take_number(text) : std::nullopt;
    if (!cap || cap->count() < 1 || base->count() < 1)
      return std::nullopt;
    backoff.cap = *cap;
  }
  backoff.jitter = take(text, ":jitter");
  if (!text.empty())
    return std::nullopt;
  return backoff;
}

}  // namespace

std::string BackoffText::text() const {
  const std::string_view end = jitter ? ":jitter" : "";
  if (exponential)
    return fmt::format("exponential:{}:{}{}", base.count(), cap.count(), end);
  return fmt::format("fixed:{}{}", base.count(), end);
}

Result<BackoffText> parse_backoff(std::string_view text) {
  if (const auto backoff = parse(text))
    return *backoff;
  return fail(
      Errc::invalid_argument,
      fmt::format("backoff must be fixed:MS or exponential:BASE:CAP, with :jitter or without, BASE and CAP 1 or "
                  "more, got {:.80}",
                  text));
}

}  // namespace queue
}  // namespace v1
}  // namespace echomq
