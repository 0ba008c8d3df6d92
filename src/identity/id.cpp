// Branded ids: parsing, encoding, stream entry ids.
#include "echomq/id.hpp"

#include <bit>
#include <charconv>
#include <cstring>
#include <string>
#include <utility>

#include "identity/quoted.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace {

constexpr std::uint64_t kTail = 0x3FFFFF;
constexpr std::int64_t kMaxTime = (std::int64_t{1} << 41) - 1;

[[nodiscard]] std::unexpected<Error> refuse(detail::IdFault fault, std::string_view value) {
  switch (fault) {
    case detail::IdFault::length: return fail(Errc::id_length, identity::quoted(value));
    case detail::IdFault::brand: return fail(Errc::id_namespace, identity::quoted(value));
    case detail::IdFault::charset: return fail(Errc::id_charset, identity::quoted(value));
    default: return fail(Errc::id_range, identity::quoted(value));
  }
}

/// Four digits of a number below 62^4.
inline void write_four(char* out, std::uint32_t number) noexcept {
  const std::uint32_t high = number / 3844;
  const std::uint32_t low = number % 3844;
  const char* const alphabet = detail::kBase62Alphabet.data();
  out[0] = alphabet[high / 62];
  out[1] = alphabet[high % 62];
  out[2] = alphabet[low / 62];
  out[3] = alphabet[low % 62];
}

/// The eleven digits of a value below 2^63. Splits in the middle, so that the divisions do not wait for each other.
inline void write_base62(char* out, std::uint64_t value) noexcept {
  constexpr std::uint64_t kFour = 14776336;  // 62^4
  const std::uint64_t above = value / kFour;
  write_four(out + 7, static_cast<std::uint32_t>(value % kFour));
  const auto top = static_cast<std::uint32_t>(above / kFour);  // below 62^3
  write_four(out + 3, static_cast<std::uint32_t>(above % kFour));
  const char* const alphabet = detail::kBase62Alphabet.data();
  out[0] = alphabet[top / 3844];
  out[1] = alphabet[top % 3844 / 62];
  out[2] = alphabet[top % 62];
}

}  // namespace

Result<Base62> base62_encode(std::uint64_t value) {
  if (value > kMaxIdValue)
    return fail(Errc::id_range, std::to_string(value));
  Result<Base62> digits(std::in_place);
  write_base62(digits->data(), value);
  return digits;
}

Result<std::uint64_t> base62_decode(std::string_view digits) {
  if (digits.size() != Base62{}.size()) {
    return fail(Errc::id_length, identity::quoted(digits) + ": a base62 value has eleven digits");
  }
  std::uint64_t value = 0;
  const detail::IdFault fault = detail::read_base62(digits.data(), value);
  if (fault != detail::IdFault::none)
    return refuse(fault, digits);
  return value;
}

Result<BrandedId> BrandedId::parse(std::string_view text) {
  std::uint64_t value = 0;
  const detail::IdFault fault = detail::check_id(text, value);
  if (fault != detail::IdFault::none)
    return refuse(fault, text);
  return BrandedId(Checked{}, text.data());
}

Result<BrandedId> BrandedId::encode(std::string_view brand, std::uint64_t value) {
  if (value > kMaxIdValue)
    return fail(Errc::id_range, std::to_string(value));
  if (brand.size() != 3)
    return refuse(detail::IdFault::brand, brand);
  for (const char letter : brand) {
    if (letter < 'A' || letter > 'Z')
      return refuse(detail::IdFault::brand, brand);
  }
  // Written where it is returned: bytes just stored one by one are slow to copy as a whole.
  Result<BrandedId> id(std::in_place);
  std::memcpy(id->text_.data(), brand.data(), 3);
  write_base62(id->text_.data() + 3, value);
  return id;
}

Result<BrandedId> BrandedId::smallest_for(std::string_view brand, UnixMillis time) {
  const std::int64_t since = time <= kIdEpoch ? 0 : (time - kIdEpoch).count();
  if (since > kMaxTime)
    return fail(Errc::id_range, std::to_string(time.time_since_epoch().count()) + " ms");
  return encode(brand, static_cast<std::uint64_t>(since) << 22);
}

Result<JobId> JobId::parse(std::string_view text) {
  std::uint64_t value = 0;
  const detail::IdFault fault = detail::check_id(text, value);
  if (fault != detail::IdFault::none)
    return refuse(fault, text);
  return JobId(Checked{}, text.data());
}

Result<LaneId> LaneId::parse(std::string_view text) {
  std::uint64_t value = 0;
  const detail::IdFault fault = detail::check_id(text, value);
  if (fault != detail::IdFault::none)
    return refuse(fault, text);
  return LaneId(Checked{}, text.data());
}

Result<EventId> EventId::parse(std::string_view text) {
  ECHOMQ_TRY(const BrandedId id, BrandedId::parse(text));
  return from(id);
}

Result<EventId> EventId::from(const BrandedId& id) {
  if (id.brand() != "EVT") {
    return fail(Errc::wrong_kind, "an event id is EVT-namespaced, got " + identity::quoted(id.text()));
  }
  return EventId(id);
}

Result<EventId> EventId::from_value(std::uint64_t value) {
  ECHOMQ_TRY(const BrandedId id, encode("EVT", value));
  return EventId(id);
}

Result<EventId> EventId::smallest_for(UnixMillis time) {
  ECHOMQ_TRY(const BrandedId id, BrandedId::smallest_for("EVT", time));
  return EventId(id);
}

Result<EventId> EventId::from_entry_id(std::string_view entry) {
  const auto refused = [&] {
    return fail(Errc::invalid_id, "not the stream entry id of a record: " + identity::quoted(entry));
  };
  const char* const end = entry.data() + entry.size();
  std::uint64_t milliseconds = 0;
  std::uint64_t tail = 0;
  const auto first = std::from_chars(entry.data(), end, milliseconds);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '-')
    return refused();
  const auto second = std::from_chars(first.ptr + 1, end, tail);
  if (second.ec != std::errc() || second.ptr != end || tail > kTail)
    return refused();
  const auto epoch = static_cast<std::uint64_t>(kIdEpoch.time_since_epoch().count());
  if (milliseconds < epoch || milliseconds - epoch > static_cast<std::uint64_t>(kMaxTime)) {
    return fail(Errc::id_range, identity::quoted(entry));
  }
  return from_value((milliseconds - epoch) << 22 | tail);
}

EntryId EventId::entry_id() const noexcept {
  EntryId out;
  const std::uint64_t number = value();
  char* const begin = out.text_.data();
  char* const end = begin + out.text_.size();
  char* at =
      std::to_chars(begin, end, kIdEpoch.time_since_epoch().count() + static_cast<std::int64_t>(number >> 22)).ptr;
  *at++ = '-';
  at = std::to_chars(at, end, number & kTail).ptr;
  out.size_ = static_cast<std::uint8_t>(at - begin);
  return out;
}

std::size_t detail::hash_id(const BrandedId& id) noexcept {
  // Both overlapping halves, each byte in at least one.
  std::uint64_t head = 0;
  std::uint64_t tail = 0;
  std::memcpy(&head, id.text().data(), 8);
  std::memcpy(&tail, id.text().data() + BrandedId::kSize - 8, 8);
  // What differs between ids of one second stands in the last bytes, the highest of `tail`: it must come down.
  std::uint64_t mixed = head ^ std::rotl(tail, 29);
  mixed = (mixed ^ (mixed >> 32)) * 0x9E37'79B9'7F4A'7C15;
  mixed = (mixed ^ (mixed >> 29)) * 0xC4CE'B9FE'1A85'EC53;
  return static_cast<std::size_t>(mixed ^ (mixed >> 32));
}

}  // namespace v1
}  // namespace echomq
