// Rows of L1, the index that finds them, and how a reader does: in a header, so that a hit is one function.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cache/epoch.hpp"
#include "cache/id_bytes.hpp"
#include "cache/l1.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {

// Row times are kept in 32 bits: expiry in units of 16 ms (never late), storing in ms (rows live 20 days at most). Expiry is
// told from now by a difference with a sign.
inline constexpr int kExpiryShift = 4;
inline constexpr std::uint8_t kMostUses = 3;

/// Constant once linked, but for `uses`. The value follows at `kHead`, inside the padding where it fits; before it stands
/// the namespace of the version, where that is not the id's.
struct L1::Row {
  static constexpr std::size_t kHead = 36;
  static constexpr std::size_t kBrand = 3;
  static constexpr std::size_t kLeast = 4;  // bytes behind the head, for a namespace is read as a word
  static constexpr std::uint32_t kAbsent = std::uint32_t{1} << 31;
  static constexpr std::uint32_t kForeign = std::uint32_t{1} << 30;
  static constexpr std::size_t kMostBytes = kForeign - 1;

  char id_digits[Digits::kSize];
  char version_digits[Digits::kSize];
  std::uint8_t queue;                      // of writers alone
  mutable std::atomic<std::uint8_t> uses;  // by readers since it was queued, up to kMostUses
  std::uint32_t expires;
  std::uint32_t stored;
  std::uint32_t size;  // of the value, and the two marks

  [[nodiscard]] Digits id() const noexcept { return Digits::at(id_digits); }
  [[nodiscard]] Digits version() const noexcept { return Digits::at(version_digits); }
  [[nodiscard]] std::size_t value_size() const noexcept { return size & ~(kAbsent | kForeign); }
  [[nodiscard]] const char* behind() const noexcept { return reinterpret_cast<const char*>(this) + kHead; }
  [[nodiscard]] bool live(Ticks now) const noexcept { return left(now) > 0; }
  [[nodiscard]] std::int32_t left(Ticks now) const noexcept {
    return static_cast<std::int32_t>(expires - static_cast<std::uint32_t>(now >> kExpiryShift));
  }
};

/// Never 0, which stands for an empty place.
[[nodiscard]] constexpr std::uint64_t tag_of(std::uint64_t hash) noexcept {
  return std::max<std::uint64_t>(hash >> 56, 1);
}

/// One cache line: seven rows and, in one word, a byte of the hash of each, so that a look needs no walk whose length a
/// processor would have to guess. The highest byte counts the rows that found this bucket full and went on to a later
/// one; where it is 0 a look ends.
struct alignas(64) L1::Bucket {
  static constexpr std::size_t kPlaces = 7;
  static constexpr std::uint64_t kEach = 0x0001'0101'0101'0101;
  static constexpr int kPassedShift = 56;
  static constexpr std::uint64_t kMostPassed = 255;  // and then for ever

  std::atomic<std::uint64_t> tags{0};
  std::array<std::atomic<Row*>, kPlaces> rows{};

  /// A bit (the highest of its byte) for each place with the tag, perhaps for a few others.
  [[nodiscard]] static std::uint64_t matches(std::uint64_t tags, std::uint64_t tag) noexcept {
    const std::uint64_t zero_where_same = tags ^ (tag * kEach);
    return (zero_where_same - kEach) & ~zero_where_same & (0x80 * kEach);
  }
  [[nodiscard]] static std::size_t place_of(std::uint64_t matches) noexcept {
    return static_cast<std::size_t>(std::countr_zero(matches)) / 8;
  }
  void set_tag(std::size_t place, std::uint64_t tag) noexcept {
    const std::uint64_t now = tags.load(std::memory_order_relaxed);
    tags.store((now & ~(std::uint64_t{0xFF} << (8 * place))) | tag << (8 * place), std::memory_order_seq_cst);
  }
  void pass(bool more) noexcept {
    const std::uint64_t now = tags.load(std::memory_order_relaxed);
    if (now >> kPassedShift == kMostPassed)
      return;
    const std::uint64_t one = std::uint64_t{1} << kPassedShift;
    tags.store(more ? now + one : now - one, std::memory_order_seq_cst);
  }
};

/// Sizes of an index are 4, 6, 8, 12, 16, 24 ... buckets: by number, which fits into the low bits of the buckets' address.
[[nodiscard]] constexpr std::size_t buckets_of(std::uint64_t number) noexcept {
  return std::size_t{4 + 2 * (number & 1)} << (number >> 1);
}

/// With the mutex or under an epoch: the row and its place in a bucket.
[[gnu::always_inline]] inline std::atomic<L1::Row*>* L1::find_in(Bucket& bucket, std::uint64_t tags, std::uint64_t tag,
                                                                 const Digits& id, Row*& row) noexcept {
  for (std::uint64_t matches = Bucket::matches(tags, tag); matches != 0; matches &= matches - 1) {
    auto& where = bucket.rows[Bucket::place_of(matches)];
    row = where.load(std::memory_order_seq_cst);
    if (row != nullptr && row->id() == id) [[likely]]
      return &where;
  }
  return nullptr;
}

[[gnu::always_inline]] inline std::atomic<L1::Row*>* L1::find(Bucket* buckets, std::size_t count, const Digits& id,
                                                              std::uint64_t hash, Row*& row) noexcept {
  const std::size_t at = place(hash, count);
  const std::uint64_t tag = tag_of(hash);
  const std::uint64_t tags = buckets[at].tags.load(std::memory_order_seq_cst);
  if (auto* where = find_in(buckets[at], tags, tag, id, row)) [[likely]]
    return where;
  return tags >> Bucket::kPassedShift == 0 ? nullptr : find_behind(buckets, count, at, id, tag, row);
}

template <typename Now>
[[gnu::always_inline]] inline bool L1::read(const epoch::Reading&, const Front& front, const BrandedId& id,
                                            std::uint64_t hash, const Now& clock, std::uint32_t generation,
                                            CachedBytes& into, Ticks* left) {
  // In this order: rows of older generations were unlinked before the newer one was written here.
  if (front.generation.load(std::memory_order_seq_cst) != generation) [[unlikely]]
    return false;
  const std::uint64_t word = front.index.load(std::memory_order_seq_cst);
  constexpr std::uint64_t kNumber = alignof(Bucket) - 1;
  Row* found = nullptr;
  if (find(reinterpret_cast<Bucket*>(word & ~kNumber), buckets_of(word & kNumber), digits_of(id), hash, found) ==
      nullptr)
    return false;
  const Row* row = found;
  const Ticks now = clock();  // while the row is on its way from memory
  if (!row->live(now)) [[unlikely]]
    return false;
  if (left != nullptr)
    *left = static_cast<Ticks>(row->expires - static_cast<std::uint32_t>(now >> kExpiryShift)) << kExpiryShift;
  // Written only while it changes something, so that a hot row's line is not passed from core to core.
  const std::uint8_t uses = row->uses.load(std::memory_order_relaxed);
  if (uses < kMostUses)
    row->uses.store(static_cast<std::uint8_t>(uses + 1), std::memory_order_relaxed);
  into.from = CacheFrom::hit;
  into.age = std::chrono::milliseconds(static_cast<std::uint32_t>(now) - row->stored);
  if ((row->size & Row::kAbsent) != 0) [[unlikely]] {
    into.value.reset();
    into.version = BrandedId();
    return true;
  }
  const bool foreign = (row->size & Row::kForeign) != 0;
  join(foreign ? row->behind() : id.text().data(), row->version_digits, into.version);
  if (!into.value)
    into.value.emplace();
  // Its own idea of the size may be the new capacity (libstdc++ 12).
  const std::size_t size = row->value_size();
  into.value->resize_and_overwrite(size, [&](char* to, std::size_t) {
    std::memcpy(to, row->behind() + (foreign ? Row::kBrand : 0), size);
    return size;
  });
  return true;
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
