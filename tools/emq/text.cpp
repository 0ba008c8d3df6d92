// A strict UTF-8 decoder, and what is built on it.
#include "text.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>

namespace emq {
namespace {

struct CodePoint {
  char32_t value = 0;
  std::size_t bytes = 0;  // 0: not UTF-8
};

CodePoint decode(std::string_view bytes) noexcept {
  const auto at = [&](std::size_t index) { return static_cast<unsigned char>(bytes[index]); };
  const unsigned char first = at(0);
  if (first < 0x80) {
    return {first, 1};
  }
  std::size_t length = 0;
  char32_t value = 0;
  char32_t least = 0;
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2, value = first & 0x1FU, least = 0x80;
  } else if ((first & 0xF0U) == 0xE0) {
    length = 3, value = first & 0x0FU, least = 0x800;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4, value = first & 0x07U, least = 0x10000;
  }
  if (length == 0 || bytes.size() < length) {
    return {};
  }
  for (std::size_t index = 1; index < length; ++index) {
    if ((at(index) & 0xC0U) != 0x80) {
      return {};
    }
    value = (value << 6) | (at(index) & 0x3FU);
  }
  if (value < least || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
    return {};
  }
  return {value, length};
}

// What a terminal or a reader's eye could be misled by: C0, DEL, C1, line separators, direction controls, BOM.
bool misleading(char32_t value) noexcept {
  return value < 0x20 || (value >= 0x7F && value < 0xA0) || (value >= 0x200B && value <= 0x200F) ||
         (value >= 0x2028 && value <= 0x202E) || (value >= 0x2066 && value <= 0x2069) || value == 0xFEFF;
}

}  // namespace

std::string printable(std::string_view bytes, std::size_t limit) {
  std::string out;
  const bool cut = bytes.size() > limit;
  if (cut) {
    bytes = bytes.substr(0, limit);
  }
  while (!bytes.empty()) {
    const CodePoint point = decode(bytes);
    if (point.bytes == 0) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(bytes[0]));
      bytes.remove_prefix(1);
      continue;
    }
    switch (point.value) {
      case U'\n': out += "\\n"; break;
      case U'\r': out += "\\r"; break;
      case U'\t': out += "\\t"; break;
      case U'\\': out += "\\\\"; break;
      default:
        if (!misleading(point.value)) {
          out += bytes.substr(0, point.bytes);
        } else if (point.value < 0x80) {
          fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<std::uint32_t>(point.value));
        } else {
          fmt::format_to(std::back_inserter(out), "\\u{{{:x}}}", static_cast<std::uint32_t>(point.value));
        }
    }
    bytes.remove_prefix(point.bytes);
  }
  if (cut) {
    out += "…";
  }
  return out;
}

bool is_utf8(std::string_view bytes) noexcept {
  while (!bytes.empty()) {
    const CodePoint point = decode(bytes);
    if (point.bytes == 0) {
      return false;
    }
    bytes.remove_prefix(point.bytes);
  }
  return true;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::string_view group = bytes.substr(at, 3);
    std::uint32_t value = 0;
    for (std::size_t index = 0; index < 3; ++index) {
      value = (value << 8) | (index < group.size() ? static_cast<unsigned char>(group[index]) : 0U);
    }
    for (std::size_t index = 0; index < 4; ++index) {
      out += index <= group.size() ? kDigits[(value >> (18 - 6 * index)) & 0x3FU] : '=';
    }
  }
  return out;
}

std::string without_credentials(std::string_view text) {
  std::string out;
  for (;;) {
    const auto scheme = text.find("://");
    if (scheme == std::string_view::npos) {
      break;
    }
    out += text.substr(0, scheme + 3);
    text.remove_prefix(scheme + 3);
    // A password may hold anything but white space here; the last @ before the next one ends the credentials.
    const std::string_view url = text.substr(0, text.find_first_of(" \t\r\n\"'"));
    const auto at = url.rfind('@');
    if (at == std::string_view::npos) {
      continue;
    }
    out += "...";
    text.remove_prefix(at);
  }
  out += text;
  return out;
}

std::string_view tail(std::string_view bytes, std::size_t limit) noexcept {
  while (!bytes.empty() && (bytes.back() == '\n' || bytes.back() == '\r')) {
    bytes.remove_suffix(1);
  }
  return bytes.size() > limit ? bytes.substr(bytes.size() - limit) : bytes;
}

}  // namespace emq
