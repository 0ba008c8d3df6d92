// Numbers as RESP writes them.
#include "resp/number.hpp"

#include <charconv>
#include <limits>
#include <system_error>

namespace echomq {
inline namespace v1 {
namespace resp {
namespace {

/// Whether a decimal number that `from_chars` found out of range is too large, not too small.
[[nodiscard]] bool is_huge(std::string_view text) noexcept {
  // The power of ten of the first digit that counts.
  std::int64_t power = 0;
  bool behind_point = false;
  bool counting = false;
  std::size_t at = 0;
  for (; at < text.size() && text[at] != 'e' && text[at] != 'E'; ++at) {
    if (text[at] == '.') {
      behind_point = true;
    } else if (is_digit(text[at])) {
      counting = counting || text[at] != '0';
      if (counting && !behind_point)
        ++power;
      if (!counting && behind_point)
        --power;
    }
  }
  if (at == text.size())
    return power > 0;
  text.remove_prefix(at + 1);
  if (text.front() == '+')
    text.remove_prefix(1);
  std::int64_t exponent = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), exponent).ec == std::errc::result_out_of_range) {
    return text.front() != '-';
  }
  // The text is at most as long as a line, so `power` is small beside any overflow.
  return exponent > -power;
}

}  // namespace

std::optional<std::int64_t> parse_integer(std::string_view text) noexcept {
  if (text.size() > 1 && text.front() == '+' && text[1] != '-')
    text.remove_prefix(1);
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stopped != end)
    return std::nullopt;
  return value;
}

std::optional<double> parse_double(std::string_view text) noexcept {
  bool minus = false;
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) {
    minus = text.front() == '-';
    text.remove_prefix(1);
  }
  if (text.empty())
    return std::nullopt;
  double value = 0;
  if (text == "inf" || text == "Inf" || text == "INF") {
    value = std::numeric_limits<double>::infinity();
  } else if (text == "nan" || text == "NaN" || text == "NAN") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else {
    // Not the words and signs that from_chars would take.
    if (!is_digit(text.front()) && !(text.front() == '.' && text.size() > 1 && is_digit(text[1])))
      return std::nullopt;
    const char* const end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    if (stopped != end)
      return std::nullopt;
    if (error == std::errc::result_out_of_range) {
      value = is_huge(text) ? std::numeric_limits<double>::infinity() : 0.0;
    } else if (error != std::errc()) {
      return std::nullopt;
    }
  }
  return minus ? -value : value;
}

}  // namespace resp
}  // namespace v1
}  // namespace echomq
