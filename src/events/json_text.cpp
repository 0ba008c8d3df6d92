// Strings as JSON writes them.
#include "events/json_text.hpp"

#include <cstddef>
#include <cstdint>

namespace echomq {
inline namespace v1 {
namespace events {
namespace {

[[nodiscard]] constexpr bool is_tail(unsigned char byte) noexcept { return (byte & 0xC0U) == 0x80U; }

/// The length of the UTF-8 sequence at `at`, 0 when there is none: no overlong forms, surrogates, or beyond U+10FFFF.
[[nodiscard]] std::size_t sequence_at(std::string_view text, std::size_t at) noexcept {
  const auto byte = [&](std::size_t offset) -> unsigned char {
    return at + offset < text.size() ? static_cast<unsigned char>(text[at + offset]) : 0;
  };
  const unsigned char first = byte(0);
  const unsigned char second = byte(1);
  if (first < 0x80)
    return 1;
  if (first >= 0xC2 && first <= 0xDF)
    return is_tail(second) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool in_range = (first != 0xE0 || second >= 0xA0) && (first != 0xED || second < 0xA0);
    return in_range && is_tail(second) && is_tail(byte(2)) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool in_range = (first != 0xF0 || second >= 0x90) && (first != 0xF4 || second < 0x90);
    return in_range && is_tail(second) && is_tail(byte(2)) && is_tail(byte(3)) ? 4 : 0;
  }
  return 0;
}

void append_escaped(std::string& out, char byte) {
  switch (byte) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\b': out += "\\b"; return;
    case '\f': out += "\\f"; return;
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    default: break;
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  out += "\\u00";
  out += kDigits[static_cast<unsigned char>(byte) >> 4U];
  out += kDigits[static_cast<unsigned char>(byte) & 0xFU];
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  std::size_t plain = 0;  // where the bytes begin that are copied as they are
  std::size_t at = 0;
  const auto copy_plain = [&] { out.append(text, plain, at - plain); };
  while (at < text.size()) {
    const char byte = text[at];
    const bool escaped = byte == '"' || byte == '\\' || static_cast<unsigned char>(byte) < 0x20;
    const std::size_t length = escaped ? 1 : sequence_at(text, at);
    if (!escaped && length > 0) {
      at += length;
      continue;
    }
    copy_plain();
    if (escaped) {
      append_escaped(out, byte);
    } else {
      out += "\\ufffd";
    }
    plain = ++at;
  }
  copy_plain();
  out += '"';
}

}  // namespace events
}  // namespace v1
}  // namespace echomq
