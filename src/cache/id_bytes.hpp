// Ids to values and back for the hit path: eight digits at a time in one word, nothing checked, for a `BrandedId` is
// always sound.
//
// A hit decodes the id it is asked for and encodes the version it answers; digit by digit that was a third of its time.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "echomq/id.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {

static_assert(std::is_trivially_copyable_v<BrandedId> && sizeof(BrandedId) == BrandedId::kSize);

namespace id_bytes {

inline constexpr std::uint64_t kEach = 0x0101'0101'0101'0101;
inline constexpr std::uint64_t kTwo = 3844;               // 62^2
inline constexpr std::uint64_t kFour = 14776336;          // 62^4
inline constexpr std::uint64_t kEight = 218340105584896;  // 62^8
inline constexpr std::uint64_t kBrandBits = 0x00FF'FFFF;  // of the first word

/// Bytes of the alphabet to digits 0 to 61, each in its place.
[[nodiscard]] constexpr std::uint64_t to_digits(std::uint64_t text) noexcept {
  const std::uint64_t letter = (text >> 6) & kEach;
  const std::uint64_t small = letter & (text >> 5);
  return text - 0x30 * kEach - 7 * letter - 6 * small;
}
/// Digits 0 to 61 to bytes of the alphabet.
[[nodiscard]] constexpr std::uint64_t to_text(std::uint64_t digits) noexcept {
  const std::uint64_t letter = ((digits + 118 * kEach) >> 7) & kEach;  // 10 and more
  const std::uint64_t small = ((digits + 92 * kEach) >> 7) & kEach;    // 36 and more
  return digits + 0x30 * kEach + 7 * letter + 6 * small;
}
/// Eight digits, the most significant in the lowest byte.
[[nodiscard]] constexpr std::uint64_t join(std::uint64_t digits) noexcept {
  constexpr std::uint64_t kBytes = 0x00FF'00FF'00FF'00FF;
  constexpr std::uint64_t kPairs = 0x0000'FFFF'0000'FFFF;
  const std::uint64_t pairs = (digits & kBytes) * 62 + ((digits >> 8) & kBytes);
  const std::uint64_t fours = (pairs & kPairs) * kTwo + ((pairs >> 16) & kPairs);
  return (fours & 0xFFFF'FFFF) * kFour + (fours >> 32);
}
/// The digits of two values below 3844, in the lower halves of the 32-bit halves of a word, each in two bytes there.
[[nodiscard]] constexpr std::uint64_t split_pairs(std::uint64_t pairs) noexcept {
  const std::uint64_t tens = ((pairs * 16913) >> 20) & 0x0000'003F'0000'003F;  // x * 16913 >> 20 is x / 62 up to 3843
  return (pairs << 8) - tens * (62 * 256 - 1);
}
[[nodiscard]] constexpr std::uint64_t split(std::uint64_t eight) noexcept {
  const std::uint64_t above = eight / kFour;
  const std::uint64_t below = eight % kFour;
  const std::uint64_t first = (above / kTwo) | ((below / kTwo) << 32);
  const std::uint64_t second = (above % kTwo) | ((below % kTwo) << 32);
  return split_pairs(first) | (split_pairs(second) << 16);
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

/// A brand in 15 bits, and the id of it and a value of at most 63 bits.
[[nodiscard]] inline std::uint16_t pack_brand(std::string_view brand) noexcept {
  return static_cast<std::uint16_t>((brand[0] - 'A') | (brand[1] - 'A') << 5 | (brand[2] - 'A') << 10);
}
inline void write_id(BrandedId& into, std::uint16_t brand, std::uint64_t value) noexcept {
  const std::uint64_t letters = 0x41'4141 + ((brand & 0x1FU) | (brand & 0x3E0U) << 3 | (brand & 0x7C00U) << 6);
  if constexpr (std::endian::native != std::endian::little) {
    const char text[3] = {static_cast<char>(letters), static_cast<char>(letters >> 8),
                          static_cast<char>(letters >> 16)};
    into = *BrandedId::encode({text, 3}, value);
    return;
  }
  const std::uint64_t above = value / id_bytes::kEight;
  const std::uint64_t rest = above % id_bytes::kTwo;
  const std::uint64_t three = (above / id_bytes::kTwo) | (rest / 62) << 8 | (rest % 62) << 16;
  const std::uint64_t head = letters | (id_bytes::to_text(three) << 24);
  const std::uint64_t tail = id_bytes::to_text(id_bytes::split(value % id_bytes::kEight));
  // The first word reaches over the second one's first bytes, which are written after it.
  char* bytes = reinterpret_cast<char*>(&into);
  std::memcpy(bytes, &head, 8);
  std::memcpy(bytes + 6, &tail, 8);
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
