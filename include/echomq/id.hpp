// Branded ids: 14 bytes that name a job, a record or a lane, and sort by the moment they were minted.
//
// `JobId`, `EventId` and `LaneId` are different types over one form (protocol document 1, section 1): three letters
// A to Z, then a 63-bit value as 11 base62 digits. The value holds milliseconds since 2024-01-01 (41 bits), the node
// that minted it (10) and a sequence (12). All are trivially copyable and cheap to pass by value.
#pragma once

#include <array>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "echomq/error.hpp"

namespace echomq {
inline namespace v1 {

/// A wall-clock instant in whole milliseconds, the unit of every time in the protocol.
using UnixMillis = std::chrono::sys_time<std::chrono::milliseconds>;

/// Time zero of ids: 2024-01-01T00:00:00Z.
inline constexpr UnixMillis kIdEpoch{std::chrono::milliseconds{1704067200000}};
/// The largest value of an id, 2^63 - 1.
inline constexpr std::uint64_t kMaxIdValue = 0x7FFF'FFFF'FFFF'FFFF;

/// The eleven base62 digits of a value.
using Base62 = std::array<char, 11>;

/// The fixed-width base62 text of a value, most significant digit first, padded with `0`. Errors: id_range.
[[nodiscard]] Result<Base62> base62_encode(std::uint64_t value);
/// The value of eleven base62 digits. Errors: id_length, id_charset, id_range.
[[nodiscard]] Result<std::uint64_t> base62_decode(std::string_view digits);
/// A 32-bit mix of an id's value for in-memory tables (document 1, section 1.6). No key depends on it.
[[nodiscard]] constexpr std::uint32_t hash32(std::uint64_t value) noexcept {
  value ^= value >> 33;
  value *= 0xFF51'AFD7'ED55'8CCD;
  value ^= value >> 33;
  return static_cast<std::uint32_t>(value);
}

namespace detail {

inline constexpr std::string_view kBase62Alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
inline constexpr std::uint8_t kNotBase62 = 0xFF;

/// The digit of a byte, `kNotBase62` for bytes outside the alphabet.
inline constexpr std::array<std::uint8_t, 256> kBase62Digit = [] {
  std::array<std::uint8_t, 256> table{};
  table.fill(kNotBase62);
  for (std::size_t digit = 0; digit < kBase62Alphabet.size(); ++digit) {
    table[static_cast<unsigned char>(kBase62Alphabet[digit])] = static_cast<std::uint8_t>(digit);
  }
  return table;
}();

enum class IdFault : std::uint8_t { none, length, brand, charset, range };

/// Eleven digits to a value. On a fault `value` is unspecified.
[[nodiscard]] constexpr IdFault read_base62(const char* digits, std::uint64_t& value) noexcept {
  std::uint32_t bad = 0;
  const auto digit = [&](int index) {
    const std::uint32_t d = kBase62Digit[static_cast<unsigned char>(digits[index])];
    bad |= d;
    return d;
  };
  // Three short chains instead of one of eleven multiplications; each fits 32 bits.
  const std::uint32_t first = digit(0);
  const std::uint32_t high = ((((digit(1) * 62 + digit(2)) * 62 + digit(3)) * 62) + digit(4)) * 62 + digit(5);
  const std::uint32_t low = ((((digit(6) * 62 + digit(7)) * 62 + digit(8)) * 62) + digit(9)) * 62 + digit(10);
  // Digits are below 64, so a high bit can only come from kNotBase62.
  if (bad > 0x3F) {
    return IdFault::charset;
  }
  constexpr std::uint64_t kFive = 916132832;  // 62^5
  // 11 * 62^10 fits 64 bits: with a first digit up to 10 nothing below can overflow.
  if (first > 10) {
    return IdFault::range;
  }
  value = (first * kFive + high) * kFive + low;
  return value <= kMaxIdValue ? IdFault::none : IdFault::range;
}

/// Everything that makes 14 bytes a branded id, in the order in which faults are told.
[[nodiscard]] constexpr IdFault check_id(std::string_view text, std::uint64_t& value) noexcept {
  if (text.size() != 14) {
    return IdFault::length;
  }
  for (std::size_t i = 0; i < 3; ++i) {
    if (text[i] < 'A' || text[i] > 'Z') {
      return IdFault::brand;
    }
  }
  return read_base62(text.data() + 3, value);
}

}  // namespace detail

/// Any valid branded id, of whatever namespace.
///
/// Order and equality are those of the bytes; within one namespace that is the order of minting.
class BrandedId {
 public:
  static constexpr std::size_t kSize = 14;

  /// The well-formed id `AAA00000000000`; it names nothing.
  constexpr BrandedId() noexcept : text_{'A', 'A', 'A', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0'} {}
  /// A literal, checked by the compiler: `BrandedId{"USR0KHTOWnGLuC"}`.
  consteval BrandedId(const char (&literal)[kSize + 1]) {  // NOLINT(google-explicit-constructor)
    std::uint64_t value = 0;
    if (literal[kSize] != '\0' || detail::check_id({literal, kSize}, value) != detail::IdFault::none) {
      throw "not a branded id: three letters A to Z, then eleven base62 digits up to AzL8n0Y58m7";
    }
    for (std::size_t i = 0; i < kSize; ++i)
      text_[i] = literal[i];
  }

  /// Errors, in this order: id_length, id_namespace, id_charset, id_range. The text names the value.
  [[nodiscard]] static Result<BrandedId> parse(std::string_view text);
  /// Errors, in this order: id_range, id_namespace.
  [[nodiscard]] static Result<BrandedId> encode(std::string_view brand, std::uint64_t value);
  /// The smallest id that can have been minted at `time` or later: the bound of a half-open scan. Instants before
  /// `kIdEpoch` give the zero id. Errors: id_namespace, id_range past the year 2093.
  [[nodiscard]] static Result<BrandedId> smallest_for(std::string_view brand, UnixMillis time);

  /// The 14 bytes; valid as long as this object.
  [[nodiscard]] constexpr std::string_view text() const noexcept { return {text_.data(), kSize}; }
  /// The namespace: three letters; valid as long as this object.
  [[nodiscard]] constexpr std::string_view brand() const noexcept { return {text_.data(), 3}; }
  [[nodiscard]] constexpr std::uint64_t value() const noexcept {
    std::uint64_t value = 0;
    (void)detail::read_base62(text_.data() + 3, value);
    return value;
  }
  [[nodiscard]] constexpr UnixMillis minted_at() const noexcept {
    return kIdEpoch + std::chrono::milliseconds{static_cast<std::int64_t>(value() >> 22)};
  }
  /// 0..1023.
  [[nodiscard]] constexpr std::uint16_t node() const noexcept {
    return static_cast<std::uint16_t>((value() >> 12) & 0x3FF);
  }
  /// 0..4095.
  [[nodiscard]] constexpr std::uint16_t sequence() const noexcept {
    return static_cast<std::uint16_t>(value() & 0xFFF);
  }
  /// Whether this id may stand where a job is expected; servers refuse others with `wrong_kind`.
  [[nodiscard]] constexpr bool is_job() const noexcept { return brand() == "JOB"; }

  friend constexpr bool operator==(const BrandedId& a, const BrandedId& b) noexcept { return a.text_ == b.text_; }
  friend constexpr std::strong_ordering operator<=>(const BrandedId& a, const BrandedId& b) noexcept {
    return a.text_ <=> b.text_;
  }

 protected:
  struct Checked {};
  /// 14 bytes that `detail::check_id` has found sound.
  constexpr BrandedId(Checked, const char* text) noexcept {
    for (std::size_t i = 0; i < kSize; ++i)
      text_[i] = text[i];
  }

 private:
  std::array<char, kSize> text_;
};

/// The id of a job. Holds any valid branded id, as the protocol's first gate does; that it is `JOB`-namespaced is
/// for the server to refuse (`wrong_kind`), or for `is_job()` to tell beforehand.
class JobId : public BrandedId {
 public:
  constexpr JobId() noexcept = default;
  /// `JobId{"JOB0KHTOWnGLuC"}`, checked by the compiler.
  consteval JobId(const char (&literal)[kSize + 1]) : BrandedId(literal) {}  // NOLINT(google-explicit-constructor)
  constexpr explicit JobId(const BrandedId& id) noexcept : BrandedId(id) {}
  /// Errors as `BrandedId::parse`.
  [[nodiscard]] static Result<JobId> parse(std::string_view text);

 private:
  constexpr JobId(Checked checked, const char* text) noexcept : BrandedId(checked, text) {}
};

/// The name of a lane: any valid branded id, usually that of the tenant or user whose jobs it holds.
class LaneId : public BrandedId {
 public:
  constexpr LaneId() noexcept = default;
  /// `LaneId{"USR0KHTOWnGLuC"}`, checked by the compiler.
  consteval LaneId(const char (&literal)[kSize + 1]) : BrandedId(literal) {}  // NOLINT(google-explicit-constructor)
  constexpr explicit LaneId(const BrandedId& id) noexcept : BrandedId(id) {}
  /// Errors as `BrandedId::parse`.
  [[nodiscard]] static Result<LaneId> parse(std::string_view text);

 private:
  constexpr LaneId(Checked checked, const char* text) noexcept : BrandedId(checked, text) {}
};

/// A job is no lane: whoever compares the two has mixed them up. As `BrandedId` they can be compared.
bool operator==(const JobId& job, const LaneId& lane) = delete;
std::strong_ordering operator<=>(const JobId& job, const LaneId& lane) = delete;

/// The text of a stream entry id, `<unix ms>-<tail>`, held inline.
class EntryId {
 public:
  [[nodiscard]] constexpr std::string_view text() const noexcept { return {text_.data(), size_}; }
  constexpr operator std::string_view() const noexcept { return text(); }  // NOLINT(google-explicit-constructor)

 private:
  friend class EventId;
  std::array<char, 23> text_{};
  std::uint8_t size_ = 0;
};

/// The id of a stream record; always `EVT`-namespaced.
class EventId : public BrandedId {
 public:
  /// The well-formed id `EVT00000000000`; the bound before every record.
  constexpr EventId() noexcept : BrandedId(kFirst) {}
  /// `EventId{"EVT000xY9Wvvcd"}`, checked by the compiler.
  consteval EventId(const char (&literal)[kSize + 1]) : BrandedId(literal) {  // NOLINT(google-explicit-constructor)
    if (brand() != "EVT")
      throw "an event id is EVT-namespaced";
  }
  /// Errors as `BrandedId::parse`, then wrong_kind.
  [[nodiscard]] static Result<EventId> parse(std::string_view text);
  /// Errors: wrong_kind.
  [[nodiscard]] static Result<EventId> from(const BrandedId& id);
  /// Errors: id_range.
  [[nodiscard]] static Result<EventId> from_value(std::uint64_t value);
  /// The record id of a stream entry id as `entry_id()` gives it. Errors: invalid_id, id_range.
  [[nodiscard]] static Result<EventId> from_entry_id(std::string_view entry);
  /// As `BrandedId::smallest_for`.
  [[nodiscard]] static Result<EventId> smallest_for(UnixMillis time);

  /// The id of this record's stream entry: real Unix milliseconds, `-`, node and sequence as one number.
  [[nodiscard]] EntryId entry_id() const noexcept;

 private:
  static constexpr BrandedId kFirst{"EVT00000000000"};
  constexpr explicit EventId(const BrandedId& id) noexcept : BrandedId(id) {}
};

static_assert(sizeof(BrandedId) == 14 && sizeof(JobId) == 14 && sizeof(LaneId) == 14 && sizeof(EventId) == 14);
static_assert(std::is_trivially_copyable_v<BrandedId> && std::is_trivially_copyable_v<JobId> &&
              std::is_trivially_copyable_v<LaneId> && std::is_trivially_copyable_v<EventId>);

namespace detail {
[[nodiscard]] std::size_t hash_id(const BrandedId& id) noexcept;
}  // namespace detail

}  // namespace v1
}  // namespace echomq

template <>
struct std::hash<echomq::BrandedId> {
  [[nodiscard]] std::size_t operator()(const echomq::BrandedId& id) const noexcept {
    return echomq::detail::hash_id(id);
  }
};
template <>
struct std::hash<echomq::JobId> : std::hash<echomq::BrandedId> {};
template <>
struct std::hash<echomq::LaneId> : std::hash<echomq::BrandedId> {};
template <>
struct std::hash<echomq::EventId> : std::hash<echomq::BrandedId> {};
