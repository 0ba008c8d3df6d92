// One shard of L1.
#include "cache/l1.hpp"

#include <algorithm>
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

constexpr std::uint64_t kEmpty = 0;
constexpr std::uint64_t kTombstone = 1;
constexpr std::uint64_t kPointer = (std::uint64_t{1} << 48) - 1;
constexpr std::size_t kSmallest = 16;  // slots
constexpr std::uint64_t kAbsent = std::uint64_t{1} << 63;

constexpr std::uint8_t kInSmall = 0;
constexpr std::uint8_t kInMain = 1;
constexpr std::uint8_t kMostUses = 3;

// Row times are kept in 32 bits: expiry in units of 16 ms (never late; wraps after two years), storing in ms (rows live
// 20 days at most).
constexpr int kExpiryShift = 4;

constexpr std::size_t kFreeAfterRows = 64;
constexpr std::size_t kFreeAfterBytes = std::size_t{256} << 10;

[[nodiscard]] constexpr std::uint64_t tag_of(std::uint64_t hash) noexcept { return hash & ~kPointer; }

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

/// Words: 16 bits of the hash, 48 of the row's address.
struct L1::Index {
  explicit Index(std::size_t size) : count(size), slots(new std::atomic<std::uint64_t>[count]) {
    for (std::size_t i = 0; i < count; ++i)
      slots[i].store(kEmpty, std::memory_order_relaxed);
  }
  [[nodiscard]] std::size_t size() const noexcept { return count; }
  [[nodiscard]] std::size_t first(std::uint64_t hash) const noexcept { return place(hash, count); }
  [[nodiscard]] std::size_t next(std::size_t at) const noexcept { return at + 1 == count ? 0 : at + 1; }

  const std::size_t count;
  const std::unique_ptr<std::atomic<std::uint64_t>[]> slots;
};

L1::L1(std::size_t max_bytes) : max_bytes_(max_bytes), index_(new Index(kSmallest)), ghosts_(kSmallest) {}

L1::~L1() {
  Index* index = index_.load();
  for (std::size_t i = 0; i < index->size(); ++i) {
    const std::uint64_t word = index->slots[i].load();
    if (word > kTombstone)
      destroy(reinterpret_cast<Row*>(word & kPointer));
  }
  delete index;
  for (const Retired& one : retired_) {
    if (one.row != nullptr)
      destroy(one.row);
    delete one.index;
  }
}

bool L1::read(std::uint64_t id, std::uint64_t hash, Ticks now, std::uint32_t generation, CachedBytes& into) const {
  const epoch::Reading reading;
  const Index* index = index_.load(std::memory_order_seq_cst);
  const std::uint64_t tag = tag_of(hash);
  for (std::size_t at = index->first(hash);; at = index->next(at)) {
    const std::uint64_t word = index->slots[at].load(std::memory_order_seq_cst);
    if (word == kEmpty)
      return false;
    if ((word & ~kPointer) != tag || word == kTombstone)
      continue;
    const Row* row = reinterpret_cast<const Row*>(word & kPointer);
    if (row->id != id)
      continue;
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
}

std::atomic<std::uint64_t>* L1::slot_of(std::uint64_t id, std::uint64_t hash) const noexcept {
  const Index* index = index_.load(std::memory_order_relaxed);
  const std::uint64_t tag = tag_of(hash);
  for (std::size_t at = index->first(hash);; at = index->next(at)) {
    const std::uint64_t word = index->slots[at].load(std::memory_order_relaxed);
    if (word == kEmpty)
      return nullptr;
    if (word != kTombstone && (word & ~kPointer) == tag && reinterpret_cast<const Row*>(word & kPointer)->id == id)
      return &index->slots[at];
  }
}

std::optional<std::uint64_t> L1::version_of(std::uint64_t id, Ticks now, std::uint32_t generation) const {
  const auto* slot = slot_of(id, mix(id));
  if (slot == nullptr)
    return std::nullopt;
  const Row* row = reinterpret_cast<const Row*>(slot->load(std::memory_order_relaxed) & kPointer);
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
    Row* old = reinterpret_cast<Row*>(slot->load(std::memory_order_relaxed) & kPointer);
    row->queue = old->queue;
    row->uses.store(old->uses.load(std::memory_order_relaxed), std::memory_order_relaxed);
    bytes_ -= cost(*old);
    if (row->queue == kInSmall)
      small_bytes_ += cost(*row) - cost(*old);
    slot->store(tag_of(hash) | reinterpret_cast<std::uint64_t>(row), std::memory_order_seq_cst);
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
  if ((used_ + 1) * 5 > index_.load(std::memory_order_relaxed)->size() * 4)
    grow();
  Index* index = index_.load(std::memory_order_relaxed);
  for (std::size_t at = index->first(hash);; at = index->next(at)) {
    const std::uint64_t word = index->slots[at].load(std::memory_order_relaxed);
    if (word > kTombstone)
      continue;
    if (word == kEmpty)
      ++used_;
    index->slots[at].store(tag_of(hash) | reinterpret_cast<std::uint64_t>(row), std::memory_order_seq_cst);
    return;
  }
}

/// A new index without tombstones, half as large again when rows fill three fifths of the old one.
void L1::grow() {
  Index* old = index_.load(std::memory_order_relaxed);
  auto* fresh = new Index(rows_ * 5 >= old->size() * 3 ? old->size() + old->size() / 2 : old->size());
  for (std::size_t i = 0; i < old->size(); ++i) {
    const std::uint64_t word = old->slots[i].load(std::memory_order_relaxed);
    if (word <= kTombstone)
      continue;
    std::size_t at = fresh->first(mix(reinterpret_cast<const Row*>(word & kPointer)->id));
    while (fresh->slots[at].load(std::memory_order_relaxed) != kEmpty)
      at = fresh->next(at);
    fresh->slots[at].store(word, std::memory_order_relaxed);
  }
  used_ = rows_;
  index_.store(fresh, std::memory_order_seq_cst);
  retire(nullptr, old);
  free_retired();  // an index is large: it does not wait for rows to gather
  if (ghosts_.size() < fresh->size())
    ghosts_.assign(fresh->size(), 0);
}

bool L1::erase(std::uint64_t id) {
  auto* slot = slot_of(id, mix(id));
  if (slot == nullptr)
    return false;
  unlink(*slot);
  return true;
}

void L1::unlink(std::atomic<std::uint64_t>& slot) {
  Row* row = reinterpret_cast<Row*>(slot.load(std::memory_order_relaxed) & kPointer);
  slot.store(kTombstone, std::memory_order_seq_cst);
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
  retired_bytes_ += row != nullptr ? cost(*row) : index->size() * sizeof(std::uint64_t);
  if (retired_.size() >= kFreeAfterRows || retired_bytes_ >= kFreeAfterBytes)
    free_retired();
}

void L1::free_retired() {
  const std::uint64_t seen = epoch::oldest_reader();
  while (!retired_.empty() && retired_.front().stamp < seen) {
    const Retired one = retired_.front();
    retired_.pop_front();
    retired_bytes_ -= one.row != nullptr ? cost(*one.row) : one.index->size() * sizeof(std::uint64_t);
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
  Row* row = reinterpret_cast<Row*>(slot->load(std::memory_order_relaxed) & kPointer);
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
  Row* row = reinterpret_cast<Row*>(slot->load(std::memory_order_relaxed) & kPointer);
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
    if (slot != nullptr &&
        reinterpret_cast<const Row*>(slot->load(std::memory_order_relaxed) & kPointer)->queue == which &&
        seen.insert(id).second)
      kept.push_back(id);
  }
  queue.swap(kept);
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
