// What this room refuses before anything is sent.
#include "bus/checks.hpp"

#include <algorithm>

#include "identity/quoted.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {
namespace {

constexpr Milliseconds kLongest{std::int64_t{365} * 24 * 3600 * 1000};

[[nodiscard]] std::unexpected<Error> refuse(std::string why) { return fail(Errc::invalid_argument, std::move(why)); }

/// A whole decimal number at the front of `text`, taken off it.
[[nodiscard]] std::optional<std::uint64_t> take_number(std::string_view& text) noexcept {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc())
    return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

}  // namespace

std::optional<EntryNumber> parse_entry(std::string_view text) noexcept {
  const auto milliseconds = take_number(text);
  if (!milliseconds)
    return std::nullopt;
  if (text.empty())
    return EntryNumber{*milliseconds, 0};
  if (text.front() != '-')
    return std::nullopt;
  text.remove_prefix(1);
  const auto tail = take_number(text);
  if (!tail || !text.empty())
    return std::nullopt;
  return EntryNumber{*milliseconds, *tail};
}

std::string entry_text(EntryNumber entry) { return fmt::format("{}-{}", entry.milliseconds, entry.tail); }

Result<void> check_count(std::string_view name, std::uint64_t count) {
  if (count >= 1)
    return {};
  return refuse(fmt::format("{} must be 1 or more, got {}", name, count));
}

Result<void> check_span(std::string_view name, Milliseconds span) {
  if (span.count() >= 0)
    return {};
  return refuse(fmt::format("{} must be 0ms or more, got {}ms", name, span.count()));
}

Result<void> check_deadline(std::optional<Milliseconds> deadline) {
  if (!deadline || deadline->count() >= 1)
    return {};
  return refuse(fmt::format("deadline must be 1ms or more, got {}ms", deadline->count()));
}

Result<void> check_instant(std::string_view name, Instant instant) {
  const std::int64_t value = instant.time_since_epoch().count();
  if (value >= 0)
    return {};
  return refuse(fmt::format("{} must be at or after 1970, got {}ms", name, value));
}

Result<void> check_name(std::string_view what, std::string_view name) {
  if (!name.empty() && name.size() <= 255)
    return {};
  return refuse(fmt::format("{} must have 1 to 255 bytes, got {}", what, identity::quoted(name)));
}

Result<void> check_bound(std::string_view name, std::string_view bound) {
  if (bound == "-" || bound == "+")
    return {};
  const std::string_view entry = bound.starts_with('(') ? bound.substr(1) : bound;
  if (parse_entry(entry))
    return {};
  return refuse(fmt::format("{} must be -, + or an entry id, got {}", name, identity::quoted(bound)));
}

Result<void> check_entry(std::string_view name, std::string_view entry) {
  if (parse_entry(entry))
    return {};
  return refuse(fmt::format("{} must be an entry id, got {}", name, identity::quoted(entry)));
}

Result<void> check_fields(std::string_view name, std::span<const Field> fields) {
  if (fields.size() > kMaxFields)
    return refuse(fmt::format("{} must have at most {} fields, got {}", name, kMaxFields, fields.size()));
  std::size_t bytes = 0;
  for (const Field& field : fields) {
    if (field.first.size() > kMaxRecord || field.second.size() > kMaxRecord) {
      return refuse(fmt::format("a field of {} must be at most {} bytes, got {}", name, kMaxRecord,
                                std::max(field.first.size(), field.second.size())));
    }
    bytes += field.first.size() + field.second.size() + 32;
  }
  if (bytes <= kMaxRecord)
    return {};
  return refuse(fmt::format("{} must be at most {} bytes, got {}", name, kMaxRecord, bytes));
}

wire::CallSettings settings(Repeat repeat, std::optional<Milliseconds> deadline) noexcept {
  wire::CallSettings settings;
  settings.repeat = repeat;
  if (deadline)
    settings.deadline = std::min(*deadline, kLongest);
  return settings;
}

}  // namespace bus
}  // namespace v1
}  // namespace echomq
