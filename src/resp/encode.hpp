// Writes commands: an array of bulk strings, sized exactly beforehand.
#pragma once

#include <bit>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace echomq {
inline namespace v1 {
namespace resp {

/// The number of decimal digits of `value`.
[[nodiscard]] constexpr std::size_t digits_of(std::uint64_t value) noexcept {
  constexpr std::uint64_t kPowers[20] = {0ULL,
                                         10ULL,
                                         100ULL,
                                         1000ULL,
                                         10000ULL,
                                         100000ULL,
                                         1000000ULL,
                                         10000000ULL,
                                         100000000ULL,
                                         1000000000ULL,
                                         10000000000ULL,
                                         100000000000ULL,
                                         1000000000000ULL,
                                         10000000000000ULL,
                                         100000000000000ULL,
                                         1000000000000000ULL,
                                         10000000000000000ULL,
                                         100000000000000000ULL,
                                         1000000000000000000ULL,
                                         10000000000000000000ULL};
  // 1233 / 4096 is log10(2) closely enough for 64 bits.
  const auto guess = (static_cast<std::size_t>(std::bit_width(value | 1)) * 1233) >> 12;
  return guess + static_cast<std::size_t>(value >= kPowers[guess] || guess == 0);
}

/// The bytes of `$<n>\r\n<text>\r\n`.
[[nodiscard]] constexpr std::size_t bulk_size(std::string_view text) noexcept {
  return 1 + digits_of(text.size()) + 2 + text.size() + 2;
}
/// The bytes of `*<n>\r\n`.
[[nodiscard]] constexpr std::size_t count_size(std::size_t parts) noexcept { return 1 + digits_of(parts) + 2; }

/// Writes decimal digits; gives the end.
inline char* write_digits(char* out, std::uint64_t value) noexcept {
  if (value < 10) {
    *out = static_cast<char>('0' + value);
    return out + 1;
  }
  return std::to_chars(out, out + 20, value).ptr;
}
inline char* write_line(char* out, char lead, std::uint64_t value) noexcept {
  *out++ = lead;
  out = write_digits(out, value);
  *out++ = '\r';
  *out++ = '\n';
  return out;
}
inline char* write_count(char* out, std::size_t parts) noexcept { return write_line(out, '*', parts); }
inline char* write_bulk(char* out, std::string_view text) noexcept {
  out = write_line(out, '$', text.size());
  if (!text.empty())
    std::memcpy(out, text.data(), text.size());
  out += text.size();
  *out++ = '\r';
  *out++ = '\n';
  return out;
}

/// The exact size of the command. An empty span is `*0`.
[[nodiscard]] inline std::size_t encoded_size(std::span<const std::string_view> parts) noexcept {
  std::size_t size = count_size(parts.size());
  for (const std::string_view part : parts)
    size += bulk_size(part);
  return size;
}
/// Writes the command into `encoded_size(parts)` bytes; gives the end.
inline char* encode_to(char* out, std::span<const std::string_view> parts) noexcept {
  out = write_count(out, parts.size());
  for (const std::string_view part : parts)
    out = write_bulk(out, part);
  return out;
}

/// Appends commands to a string, part by part: `writer.begin(3).part("SET").part(key).part(7)`. Whoever calls `begin`
/// owes it that many parts.
class CommandWriter {
 public:
  explicit CommandWriter(std::string& out) noexcept : out_(out) {}

  CommandWriter& begin(std::size_t parts);
  CommandWriter& part(std::string_view text);
  template <std::integral Number>
    requires(!std::same_as<Number, bool> && !std::same_as<Number, char>)
  CommandWriter& part(Number number) {
    char digits[std::numeric_limits<Number>::digits10 + 3];
    const char* const end = std::to_chars(digits, digits + sizeof digits, number).ptr;
    return part(std::string_view(digits, static_cast<std::size_t>(end - digits)));
  }
  /// A whole command.
  CommandWriter& command(std::span<const std::string_view> parts);

 private:
  std::string& out_;
};

}  // namespace resp
}  // namespace v1
}  // namespace echomq
