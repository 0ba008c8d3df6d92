// Ids to values for the hit path: eight digits at a time in one word, nothing checked, for a `BrandedId` is always sound.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "echomq/id.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {

namespace id_bytes {

inline constexpr std::uint64_t kEach = 0x0101'0101'0101'0101;
inline constexpr std::uint64_t kTwo = 3844;               // 62^2
inline constexpr std::uint64_t kFour = 14776336;          // 62^4
inline constexpr std::uint64_t kEight = 218340105584896;  // 62^8

/// Bytes of the alphabet to digits 0 to 61, each in its place.
[[nodiscard]] constexpr std::uint64_t to_digits(std::uint64_t text) noexcept {
  const std::uint64_t letter = (text >> 6) & kEach;
  const std::uint64_t small = letter & (text >> 5);
  return text - 0x30 * kEach - 7 * letter - 6 * small;
}
/// Eight digits, the most significant in the lowest byte.
[[nodiscard]] constexpr std::uint64_t join(std::uint64_t digits) noexcept {
  constexpr std::uint64_t kBytes = 0x00FF'00FF'00FF'00FF;
  constexpr std::uint64_t kPairs = 0x0000'FFFF'0000'FFFF;
  const std::uint64_t pairs = (digits & kBytes) * 62 + ((digits >> 8) & kBytes);
  const std::uint64_t fours = (pairs & kPairs) * kTwo + ((pairs >> 16) & kPairs);
  return (fours & 0xFFFF'FFFF) * kFour + (fours >> 32);
}
}  // namespace id_bytes

/// `id.value()`.
[[nodiscard]] inline std::uint64_t value_of(const BrandedId& id) noexcept {
  if constexpr (std::endian::native != std::endian::little)
    return id.value();
  std::uint64_t head = 0;
  std::uint64_t tail = 0;
  std::memcpy(&head, id.text().data(), 8);
  std::memcpy(&tail, id.text().data() + 6, 8);
  const std::uint64_t top = id_bytes::to_digits(head);
  const std::uint64_t above = ((top >> 24) & 0xFF) * id_bytes::kTwo + ((top >> 32) & 0xFF) * 62 + ((top >> 40) & 0xFF);
  return above * id_bytes::kEight + id_bytes::join(id_bytes::to_digits(tail));
}

/// The three letters as one number, for comparing.
[[nodiscard]] inline std::uint32_t brand_of(const BrandedId& id) noexcept {
  const char* text = id.text().data();
  return static_cast<std::uint32_t>(static_cast<unsigned char>(text[0])) |
         static_cast<std::uint32_t>(static_cast<unsigned char>(text[1])) << 8 |
         static_cast<std::uint32_t>(static_cast<unsigned char>(text[2])) << 16;
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
