// Ids as words for the hit path: nothing is checked, for a `BrandedId` is always sound.
//
// Rows of one table differ in the eleven digits of their ids. A look compares these as they are written, and hashes them so:
// to their value, which takes eight digits at a time in one word, is three times the work.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

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

/// The eleven digits, in two words that share one of them.
struct Digits {
  static constexpr std::size_t kSize = 11;

  std::uint32_t head = 0;  ///< the first four
  std::uint64_t tail = 0;  ///< the last eight

  [[nodiscard]] static Digits at(const char* text) noexcept {
    Digits digits;
    std::memcpy(&digits.head, text, sizeof digits.head);
    std::memcpy(&digits.tail, text + 3, sizeof digits.tail);
    return digits;
  }
  friend bool operator==(const Digits&, const Digits&) noexcept = default;

  [[nodiscard]] std::uint64_t value() const noexcept {
    if constexpr (std::endian::native != std::endian::little) {
      std::uint64_t value = 0;
      char text[kSize];
      std::memcpy(text, &head, sizeof head);
      std::memcpy(text + 3, &tail, sizeof tail);
      (void)detail::read_base62(text, value);
      return value;
    }
    const std::uint64_t top = id_bytes::to_digits(head);
    const std::uint64_t above = (top & 0xFF) * id_bytes::kTwo + ((top >> 8) & 0xFF) * 62 + ((top >> 16) & 0xFF);
    return above * id_bytes::kEight + id_bytes::join(id_bytes::to_digits(tail));
  }
  /// The place in an index (bits 0 to 31), the shard (from 40) and the tag (from 56) are different parts of it.
  [[nodiscard]] std::uint64_t hash() const noexcept {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(tail ^ 0x9E3779B97F4A7C15) * (head ^ 0xE9846AF9B1A615D5);
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }
};

[[nodiscard]] inline Digits digits_of(const BrandedId& id) noexcept { return Digits::at(id.text().data() + 3); }
/// `id.value()`.
[[nodiscard]] inline std::uint64_t value_of(const BrandedId& id) noexcept { return digits_of(id).value(); }

/// `brand`: four bytes that begin with it. In whole words: what is read as such soon after would wait for parts of one.
inline void join(const char* brand, const char* digits, BrandedId& into) noexcept {
  static_assert(sizeof(BrandedId) == BrandedId::kSize && std::is_trivially_copyable_v<BrandedId>);
  char* text = reinterpret_cast<char*>(&into);
  if constexpr (std::endian::native != std::endian::little) {
    std::memcpy(text, brand, 3);
    std::memcpy(text + 3, digits, Digits::kSize);
    return;
  }
  std::uint32_t three = 0;
  std::uint64_t head = 0;
  std::uint64_t tail = 0;
  std::memcpy(&three, brand, sizeof three);
  std::memcpy(&head, digits, sizeof head);
  std::memcpy(&tail, digits + 3, sizeof tail);
  head = head << 24 | (three & 0xFF'FFFF);
  std::memcpy(text, &head, sizeof head);
  std::memcpy(text + 6, &tail, sizeof tail);
}

/// The three letters as one number, for comparing.
[[nodiscard]] inline std::uint32_t brand_of(const BrandedId& id) noexcept {
  std::uint32_t four = 0;
  std::memcpy(&four, id.text().data(), sizeof four);
  return std::endian::native == std::endian::little ? four & 0xFF'FFFF : four >> 8;
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
