// Numbers as RESP writes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace echomq {
inline namespace v1 {
namespace resp {

[[nodiscard]] constexpr bool is_digit(char byte) noexcept { return byte >= '0' && byte <= '9'; }

/// Whether the text is `[+-]<digits>`.
[[nodiscard]] constexpr bool is_integer_text(std::string_view text) noexcept {
  if (!text.empty() && (text.front() == '-' || text.front() == '+'))
    text.remove_prefix(1);
  if (text.empty())
    return false;
  for (const char byte : text) {
    if (!is_digit(byte))
      return false;
  }
  return true;
}

/// `[+-]<digits>` within 64 bits, all of the text.
[[nodiscard]] std::optional<std::int64_t> parse_integer(std::string_view text) noexcept;

/// `[+-]<digits>[.<digits>][e[+-]<digits>]`, `inf`, `-inf`, `nan`; all of the text. What is too large is infinite, what
/// is too small is 0.
[[nodiscard]] std::optional<double> parse_double(std::string_view text) noexcept;

}  // namespace resp
}  // namespace v1
}  // namespace echomq
