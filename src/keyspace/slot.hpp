// The cluster slot of a key (protocol document 1, section 4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace echomq {
inline namespace v1 {
namespace keyspace {

inline constexpr std::uint16_t kSlots = 16384;

/// CRC16/XMODEM of one byte behind eight zero bits.
inline constexpr std::array<std::uint16_t, 256> kCrc16 = [] {
  std::array<std::uint16_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte << 8;
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc & 0x8000U) != 0 ? (crc << 1) ^ 0x1021U : crc << 1;
    table[byte] = static_cast<std::uint16_t>(crc);
  }
  return table;
}();

[[nodiscard]] constexpr std::uint16_t crc16(std::string_view bytes) noexcept {
  std::uint32_t crc = 0;
  for (const char byte : bytes)
    crc = ((crc << 8) ^ kCrc16[((crc >> 8) ^ static_cast<unsigned char>(byte)) & 0xFFU]) & 0xFFFFU;
  return static_cast<std::uint16_t>(crc);
}

/// What of the key is hashed: the bytes between the first `{` and the next `}` if there are any, else the whole key.
[[nodiscard]] constexpr std::string_view hashtag(std::string_view key) noexcept {
  const std::size_t open = key.find('{');
  if (open == std::string_view::npos)
    return key;
  const std::size_t close = key.find('}', open + 1);
  if (close == std::string_view::npos || close == open + 1)
    return key;
  return key.substr(open + 1, close - open - 1);
}

/// 0..16383.
[[nodiscard]] constexpr std::uint16_t slot(std::string_view key) noexcept {
  return static_cast<std::uint16_t>(crc16(hashtag(key)) & (kSlots - 1));
}

}  // namespace keyspace
}  // namespace v1
}  // namespace echomq
