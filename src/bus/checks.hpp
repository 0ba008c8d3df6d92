// What this room refuses before anything is sent; every error names the argument and its value. And what its verbs share:
// numbers as text, settings of a call, replies that no case fits.
#pragma once

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "echomq/error.hpp"
#include "echomq/stream.hpp"
#include "resp/view.hpp"
#include "result/try.hpp"
#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {

/// The server's own bound of one string; here of a whole record too.
inline constexpr std::size_t kMaxRecord = std::size_t{512} << 20;

/// The server takes about a million words a command.
inline constexpr std::size_t kMaxFields = 500'000;

/// >= 1.
[[nodiscard]] Result<void> check_count(std::string_view name, std::uint64_t count);
/// >= 0.
[[nodiscard]] Result<void> check_span(std::string_view name, Milliseconds span);
/// > 0 when given.
[[nodiscard]] Result<void> check_deadline(std::optional<Milliseconds> deadline);
/// At or after 1970.
[[nodiscard]] Result<void> check_instant(std::string_view name, Instant instant);
/// 1 to 255 bytes.
[[nodiscard]] Result<void> check_name(std::string_view what, std::string_view name);
/// `-`, `+`, or `<ms>` or `<ms>-<tail>`, with an optional `(` before the latter two.
[[nodiscard]] Result<void> check_bound(std::string_view name, std::string_view bound);
/// `<ms>-<tail>` or `<ms>`.
[[nodiscard]] Result<void> check_entry(std::string_view name, std::string_view entry);
/// Names and values of one record together at most `kMaxRecord` bytes.
[[nodiscard]] Result<void> check_fields(std::string_view name, std::span<const Field> fields);

/// A server's `<ms>-<tail>`; parts up to 2^64 - 1.
struct EntryNumber {
  std::uint64_t milliseconds = 0;
  std::uint64_t tail = 0;
  friend constexpr auto operator<=>(const EntryNumber&, const EntryNumber&) noexcept = default;
};
[[nodiscard]] std::optional<EntryNumber> parse_entry(std::string_view text) noexcept;
[[nodiscard]] std::string entry_text(EntryNumber entry);

/// A number as commands take it. Views end with the object.
class Decimal {
 public:
  template <std::integral Number>
  explicit Decimal(Number number) noexcept {
    char* const end = std::to_chars(digits_.data(), digits_.data() + digits_.size(), number).ptr;
    size_ = static_cast<std::size_t>(end - digits_.data());
  }
  operator std::string_view() const noexcept { return {digits_.data(), size_}; }  // NOLINT(google-explicit-constructor)

 private:
  std::array<char, 20> digits_;
  std::size_t size_ = 0;
};

/// Parts of a command, all of them views.
template <typename... Parts>
[[nodiscard]] std::array<std::string_view, sizeof...(Parts)> parts(const Parts&... each) {
  return {std::string_view(each)...};
}

/// Settings of a call whose deadline was checked. Longer than a year is a year: nobody waits for more.
[[nodiscard]] wire::CallSettings settings(Repeat repeat, std::optional<Milliseconds> deadline = {}) noexcept;

/// A reply that no case of the protocol fits.
[[nodiscard]] inline std::unexpected<Error> unexpected_reply(std::string_view verb, const resp::View& reply) {
  return fail(Errc::protocol_error, fmt::format("{}: unexpected reply {}", verb, resp::to_value(reply).to_string()));
}

/// A count that cannot be negative. `verb` has static storage.
[[nodiscard]] inline auto decode_count(std::string_view verb) {
  return [verb](const wire::Answer& answer) -> Result<std::uint64_t> {
    const auto number = answer.view.as_integer();
    if (!number || *number < 0)
      return unexpected_reply(verb, answer.view);
    return static_cast<std::uint64_t>(*number);
  };
}

}  // namespace bus
}  // namespace v1
}  // namespace echomq
