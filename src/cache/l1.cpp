// One shard of L1.
#include "cache/l1.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <new>
#include <unordered_set>

#include "cache/epoch.hpp"
#include "cache/id_bytes.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {
namespace {

constexpr std::size_t kSmallest = 4;  // buckets
constexpr std::uint64_t kAbsent = std::uint64_t{1} << 63;

constexpr std::uint8_t kInSmall = 0;
constexpr std::uint8_t kInMain = 1;
constexpr std::uint8_t kMostUses = 3;

// Row times are kept in 32 bits: expiry in units of 16 ms (never late; wraps after two years), storing in ms (rows live
// 20 days at most).
constexpr int kExpiryShift = 4;

constexpr std::size_t kFreeAfterRows = 64;
constexpr std::size_t kFreeAfterBytes = std::size_t{256} << 10;

/// Never 0, which stands for an empty place.
[[nodiscard]] constexpr std::uint64_t tag_of(std::uint64_t hash) noexcept {
  return std::max<std::uint64_t>(hash >> 56, 1);
}

}  // namespace

/// Constant once linked, but for `uses`. The value follows at `kHead`, inside the padding where it fits.
struct L1::Row {
  static constexpr std::size_t kHead = 36;

  std::uint64_t id;
  std::uint64_t version;  // its value; the highest bit: absent
  std::uint32_t expires;
  std::uint32_t stored;
  std::uint32_t size;
  std::uint32_t generation;
  std::uint16_t brand;                     // of the version
  std::uint8_t queue;                      // of writers alone
  mutable std::atomic<std::uint8_t> uses;  // by readers since it was queued, up to kMostUses

  [[nodiscard]] const char* value() const noexcept { return reinterpret_cast<const char*>(this) + kHead; }
  [[nodiscard]] char* value() noexcept { return reinterpret_cast<char*>(this) + kHead; }
  [[nodiscard]] bool live(Ticks now, std::uint32_t of_generation) const noexcept {
    return generation == of_generation &&
           static_cast<std::int32_t>(expires - static_cast<std::uint32_t>(now >> kExpiryShift)) > 0;
  }
};

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

struct L1::Index {
  explicit Index(std::size_t size) : count(size), buckets(new Bucket[size]) {}
  [[nodiscard]] std::size_t places() const noexcept { return count * Bucket::kPlaces; }
  [[nodiscard]] std::size_t bytes() const noexcept { return count * sizeof(Bucket); }
  [[nodiscard]] std::size_t first(std::uint64_t hash) const noexcept { return place(hash, count); }
  [[nodiscard]] std::size_t next(std::size_t at) const noexcept { return at + 1 == count ? 0 : at + 1; }

  /// Of writers. There is a free place.
  void insert(Row* row, std::uint64_t hash) noexcept {
    for (std::size_t at = first(hash);; at = next(at)) {
      Bucket& bucket = buckets[at];
      for (std::size_t i = 0; i < Bucket::kPlaces; ++i) {
        if (bucket.rows[i].load(std::memory_order_relaxed) != nullptr)
          continue;
        bucket.rows[i].store(row, std::memory_order_seq_cst);
        bucket.set_tag(i, tag_of(hash));
        return;
      }
      bucket.pass(true);
    }
  }
  void erase(std::atomic<Row*>& where, std::uint64_t hash) noexcept {
    for (std::size_t at = first(hash);; at = next(at)) {
      Bucket& bucket = buckets[at];
      const auto* begin = bucket.rows.data();
      if (&where >= begin && &where < begin + Bucket::kPlaces) {
        bucket.set_tag(static_cast<std::size_t>(&where - begin), 0);
        where.store(nullptr, std::memory_order_seq_cst);
        return;
      }
      bucket.pass(false);
    }
  }

  const std::size_t count;
  const std::unique_ptr<Bucket[]> buckets;
};

L1::L1(std::size_t max_bytes)
    : max_bytes_(max_bytes), index_(new Index(kSmallest)), ghosts_(kSmallest * Bucket::kPlaces) {}

L1::~L1() {
  Index* index = index_.load();
  for (std::size_t i = 0; i < index->count; ++i) {
    for (const auto& one : index->buckets[i].rows) {
      if (Row* row = one.load(std::memory_order_relaxed))
        destroy(row);
    }
  }
  delete index;
  for (const Retired& one : retired_) {
    if (one.row != nullptr)
      destroy(one.row);
    delete one.index;
  }
}

/// With the mutex or under an epoch.
std::atomic<L1::Row*>* L1::find(const Index& index, std::uint64_t id, std::uint64_t hash, Row*& row) noexcept {
  const std::uint64_t tag = tag_of(hash);
  std::size_t at = index.first(hash);
  for (std::size_t looked = 0; looked < index.count; ++looked, at = index.next(at)) {
    Bucket& bucket = index.buckets[at];
    const std::uint64_t tags = bucket.tags.load(std::memory_order_seq_cst);
    for (std::uint64_t matches = Bucket::matches(tags, tag); matches != 0; matches &= matches - 1) {
      auto& where = bucket.rows[Bucket::place_of(matches)];
      row = where.load(std::memory_order_seq_cst);
      if (row != nullptr && row->id == id) [[likely]]
        return &where;
    }
    if (tags >> Bucket::kPassedShift == 0)
      break;
  }
  return nullptr;
}

bool L1::read(std::uint64_t id, std::uint64_t hash, Ticks now, std::uint32_t generation, CachedBytes& into) const {
  const epoch::Reading reading;
  Row* found = nullptr;
  if (find(*index_.load(std::memory_order_seq_cst), id, hash, found) == nullptr)
    return false;
  const Row* row = found;
  if (!row->live(now, generation))
    return false;
  // Written only while it changes something, so that a hot row's line is not passed from core to core.
  const std::uint8_t uses = row->uses.load(std::memory_order_relaxed);
  if (uses < kMostUses)
    row->uses.store(static_cast<std::uint8_t>(uses + 1), std::memory_order_relaxed);
  if ((row->version & kAbsent) != 0) {
    into.value.reset();
    into.version = BrandedId();
  } else {
    if (into.value) {
      into.value->assign(row->value(), row->size);
    } else {
      into.value.emplace(row->value(), row->size);
    }
    write_id(into.version, row->brand, row->version);
  }
  into.from = CacheFrom::hit;
  into.age = std::chrono::milliseconds(static_cast<std::uint32_t>(now) - row->stored);
  return true;
}

std::atomic<L1::Row*>* L1::slot_of(std::uint64_t id, std::uint64_t hash) const noexcept {
  Row* row = nullptr;
  return find(*index_.load(std::memory_order_relaxed), id, hash, row);
}

std::optional<std::uint64_t> L1::version_of(std::uint64_t id, Ticks now, std::uint32_t generation) const {
  const auto* slot = slot_of(id, mix(id));
  if (slot == nullptr)
    return std::nullopt;
  const Row* row = slot->load(std::memory_order_relaxed);
  if (!row->live(now, generation))
    return std::nullopt;
  return row->version & ~kAbsent;
}

L1::Row* L1::make(const NewRow& from) {
  void* memory = ::operator new(std::max(sizeof(Row), Row::kHead + from.value.size()));
  auto* row = ::new (memory) Row;
  row->id = from.id;
  row->version = from.version.value() | (from.absent ? kAbsent : 0);
  row->expires = static_cast<std::uint32_t>(from.expires >> kExpiryShift);
  row->stored = static_cast<std::uint32_t>(from.now);
  row->size = static_cast<std::uint32_t>(from.value.size());
  row->generation = from.generation;
  row->brand = pack_brand(from.version.brand());
  row->queue = kInSmall;
  row->uses.store(0, std::memory_order_relaxed);
  std::ranges::copy(from.value, row->value());  // an absent value is a view of nothing
  return row;
}

void L1::destroy(Row* row) noexcept {
  row->~Row();
  ::operator delete(static_cast<void*>(row));
}

std::size_t L1::cost(const Row& row) noexcept { return kRowCost + row.size; }

bool L1::put(const NewRow& from) {
  const std::uint64_t hash = mix(from.id);
  if (kRowCost + from.value.size() > max_bytes_) {
    erase(from.id);
    return false;
  }
  Row* row = make(from);
  bytes_ += cost(*row);
  if (auto* slot = slot_of(from.id, hash)) {
    Row* old = slot->load(std::memory_order_relaxed);
    row->queue = old->queue;
    row->uses.store(old->uses.load(std::memory_order_relaxed), std::memory_order_relaxed);
    bytes_ -= cost(*old);
    if (row->queue == kInSmall)
      small_bytes_ += cost(*row) - cost(*old);
    slot->store(row, std::memory_order_seq_cst);
    retire(old, nullptr);
  } else {
    const auto mark = static_cast<std::uint8_t>(hash | 1);
    if (ghost(hash) == mark) {
      ghost(hash) = 0;
      row->queue = kInMain;
      main_.push_back(from.id);
    } else {
      small_bytes_ += cost(*row);
      small_.push_back(from.id);
    }
    insert_slot(row, hash);
    ++rows_;
  }
  make_room(from.now, from.generation);
  return true;
}

void L1::insert_slot(Row* row, std::uint64_t hash) {
  if ((rows_ + 1) * 20 > index_.load(std::memory_order_relaxed)->places() * 17)
    grow();
  index_.load(std::memory_order_relaxed)->insert(row, hash);
}

/// A new index, half as large again: rows fill between 57 and 85 of a hundred places.
void L1::grow() {
  Index* old = index_.load(std::memory_order_relaxed);
  auto* fresh = new Index(old->count + old->count / 2);
  for (std::size_t i = 0; i < old->count; ++i) {
    for (const auto& one : old->buckets[i].rows) {
      if (Row* row = one.load(std::memory_order_relaxed))
        fresh->insert(row, mix(row->id));
    }
  }
  index_.store(fresh, std::memory_order_seq_cst);
  retire(nullptr, old);
  free_retired();  // an index is large: it does not wait for rows to gather
  ghosts_.assign(fresh->places(), 0);
}

bool L1::erase(std::uint64_t id) {
  auto* slot = slot_of(id, mix(id));
  if (slot == nullptr)
    return false;
  unlink(*slot);
  return true;
}

void L1::unlink(std::atomic<Row*>& slot) {
  Row* row = slot.load(std::memory_order_relaxed);
  index_.load(std::memory_order_relaxed)->erase(slot, mix(row->id));
  bytes_ -= cost(*row);
  if (row->queue == kInSmall)
    small_bytes_ -= cost(*row);
  --rows_;
  retire(row, nullptr);
  // Erased ids stay in their queue until they come up; without evictions they would gather.
  tidy_queue(small_, kInSmall);
  tidy_queue(main_, kInMain);
}

void L1::retire(Row* row, Index* index) {
  retired_.push_back({epoch::retire_stamp(), row, index});
  retired_bytes_ += row != nullptr ? cost(*row) : index->bytes();
  if (retired_.size() >= kFreeAfterRows || retired_bytes_ >= kFreeAfterBytes)
    free_retired();
}

void L1::free_retired() {
  const std::uint64_t seen = epoch::oldest_reader();
  while (!retired_.empty() && retired_.front().stamp < seen) {
    const Retired one = retired_.front();
    retired_.pop_front();
    retired_bytes_ -= one.row != nullptr ? cost(*one.row) : one.index->bytes();
    if (one.row != nullptr)
      destroy(one.row);
    delete one.index;
  }
}

void L1::make_room(Ticks now, std::uint32_t generation) {
  while (bytes_ > max_bytes_) {
    if (small_bytes_ * 10 > max_bytes_ || main_.empty()) {
      evict_from_small(now, generation);
    } else {
      evict_from_main(now, generation);
    }
  }
}

/// The oldest of the newcomers: read since it came, it moves to the main queue; else it goes, and leaves a mark.
void L1::evict_from_small(Ticks now, std::uint32_t generation) {
  assert(!small_.empty());
  const std::uint64_t id = small_.front();
  small_.pop_front();
  const std::uint64_t hash = mix(id);
  auto* slot = slot_of(id, hash);
  if (slot == nullptr)
    return;
  Row* row = slot->load(std::memory_order_relaxed);
  if (row->queue != kInSmall)
    return;
  if (row->live(now, generation)) {
    if (row->uses.load(std::memory_order_relaxed) > 0) {
      row->uses.store(0, std::memory_order_relaxed);
      row->queue = kInMain;
      small_bytes_ -= cost(*row);
      main_.push_back(id);
      return;
    }
    ghost(hash) = static_cast<std::uint8_t>(hash | 1);
    ++evicted_;
  }
  unlink(*slot);
}

/// The oldest of the main queue: read since its last turn, it gets another one.
void L1::evict_from_main(Ticks now, std::uint32_t generation) {
  const std::uint64_t id = main_.front();
  main_.pop_front();
  auto* slot = slot_of(id, mix(id));
  if (slot == nullptr)
    return;
  Row* row = slot->load(std::memory_order_relaxed);
  if (row->queue != kInMain)
    return;
  const std::uint8_t uses = row->uses.load(std::memory_order_relaxed);
  if (row->live(now, generation)) {
    if (uses > 0) {
      row->uses.store(static_cast<std::uint8_t>(uses - 1), std::memory_order_relaxed);
      main_.push_back(id);
      return;
    }
    ++evicted_;
  }
  unlink(*slot);
}

void L1::tidy_queue(std::deque<std::uint64_t>& queue, std::uint8_t which) {
  if (queue.size() < 2 * rows_ + 64)
    return;
  std::deque<std::uint64_t> kept;
  std::unordered_set<std::uint64_t> seen;
  for (const std::uint64_t id : queue) {
    const auto* slot = slot_of(id, mix(id));
    if (slot != nullptr && slot->load(std::memory_order_relaxed)->queue == which && seen.insert(id).second)
      kept.push_back(id);
  }
  queue.swap(kept);
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
