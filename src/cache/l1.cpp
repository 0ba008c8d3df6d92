// One shard of L1.
#include "cache/l1.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstring>
#include <new>
#include <unordered_set>

#include "cache/epoch.hpp"
#include "cache/l1_row.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {
namespace {

constexpr std::uint8_t kInSmall = 0;
constexpr std::uint8_t kInMain = 1;

// 2^31 units, 397 days, after its end a row that is still here would be live again. So puts look for rows that have been over
// for more than half of that, a bucket each eighth time.
constexpr std::int32_t kLongOver = std::int32_t{1} << 30;
constexpr std::uint32_t kPutsABucket = 8;

/// Queues hold values: in less room than digits.
[[nodiscard]] Digits digits_of(std::uint64_t value) noexcept { return Digits::at(base62_encode(value)->data()); }

// A mark is 14 bits of the hash and from where it was evicted.
constexpr std::uint16_t kGhostOfSmall = 1;
constexpr std::uint16_t kGhostOfMain = 2;
[[nodiscard]] constexpr std::uint16_t mark_of(std::uint64_t hash, std::uint16_t from) noexcept {
  return static_cast<std::uint16_t>(((hash >> 42) & 0xFFFC) | from);
}
/// About as many as the main queue has rows.
[[nodiscard]] constexpr std::size_t ghosts_for(std::size_t places) noexcept { return places - places / 4; }
constexpr std::uint32_t kTurns = 64;     // evictions that are looked back at
constexpr std::uint32_t kRefusals = 32;  // in strict times one of so many is let in, to see whether they are over

constexpr std::size_t kFreeAfterRows = 64;
constexpr std::size_t kFreeAfterBytes = std::size_t{256} << 10;

}  // namespace

struct L1::Index {
  explicit Index(std::uint32_t its_number)
      : number(its_number), count(buckets_of(its_number)), buckets(new Bucket[count]) {}
  [[nodiscard]] std::uint64_t word() const noexcept { return reinterpret_cast<std::uint64_t>(buckets.get()) | number; }
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

  const std::uint32_t number;
  const std::size_t count;
  const std::unique_ptr<Bucket[]> buckets;
};

L1::L1(std::size_t max_bytes, Front* front)
    : max_bytes_(max_bytes),
      front_(front != nullptr ? *front : own_front_),
      index_(new Index(0)),
      ghosts_(ghosts_for(index_->places())) {
  static_assert(offsetof(Row, size) + sizeof(Row::size) == Row::kHead);
  publish(index_);
}

L1::~L1() {
  for (std::size_t i = 0; i < index_->count; ++i) {
    for (const auto& one : index_->buckets[i].rows) {
      if (Row* row = one.load(std::memory_order_relaxed))
        destroy(row);
    }
  }
  delete index_;
  for (const Retired& one : retired_) {
    if (one.row != nullptr)
      destroy(one.row);
    delete one.index;
  }
}

void L1::publish(Index* index) noexcept {
  index_ = index;
  front_.index.store(index->word(), std::memory_order_seq_cst);
}

bool L1::read(const BrandedId& id, Ticks now, std::uint32_t generation, CachedBytes& into) const {
  const epoch::Reading reading;
  return read(reading, front_, id, digits_of(id).hash(), [now] { return now; }, generation, into);
}

std::atomic<L1::Row*>* L1::find_behind(Bucket* buckets, std::size_t count, std::size_t at, const Digits& id,
                                       std::uint64_t tag, Row*& row) noexcept {
  for (std::size_t looked = 1; looked < count; ++looked) {
    at = at + 1 == count ? 0 : at + 1;
    const std::uint64_t tags = buckets[at].tags.load(std::memory_order_seq_cst);
    if (auto* where = find_in(buckets[at], tags, tag, id, row))
      return where;
    if (tags >> Bucket::kPassedShift == 0)
      break;
  }
  return nullptr;
}

std::atomic<L1::Row*>* L1::slot_of(const Digits& id, std::uint64_t hash) const noexcept {
  Row* row = nullptr;
  return find(index_->buckets.get(), index_->count, id, hash, row);
}

std::optional<std::uint64_t> L1::version_of(const BrandedId& id, Ticks now, std::uint32_t generation) const {
  const auto* slot = slot_of(digits_of(id));
  if (slot == nullptr || front_.generation.load(std::memory_order_relaxed) != generation)
    return std::nullopt;
  const Row* row = slot->load(std::memory_order_relaxed);
  if (!row->live(now))
    return std::nullopt;
  return row->version().value();
}

L1::Row* L1::make(const NewRow& from) {
  const bool foreign = brand_of(from.version) != brand_of(from.id);
  const std::size_t brand = foreign ? Row::kBrand : 0;
  void* memory = ::operator new(Row::kHead + std::max(Row::kLeast, brand + from.value.size()));
  auto* row = ::new (memory) Row;
  std::memcpy(row->id_digits, from.id.text().data() + Row::kBrand, sizeof row->id_digits);
  std::memcpy(row->version_digits, from.version.text().data() + Row::kBrand, sizeof row->version_digits);
  row->expires = static_cast<std::uint32_t>(from.expires >> kExpiryShift);
  row->stored = static_cast<std::uint32_t>(from.now);
  row->size =
      static_cast<std::uint32_t>(from.value.size()) | (from.absent ? Row::kAbsent : 0) | (foreign ? Row::kForeign : 0);
  row->queue = kInSmall;
  row->uses.store(0, std::memory_order_relaxed);
  char* behind = reinterpret_cast<char*>(row) + Row::kHead;
  std::memcpy(behind, from.version.text().data(), brand);
  std::ranges::copy(from.value, behind + brand);  // an absent value is a view of nothing
  return row;
}

void L1::destroy(Row* row) noexcept {
  row->~Row();
  ::operator delete(static_cast<void*>(row));
}

std::size_t L1::cost(const Row& row) noexcept { return kRowCost + row.value_size(); }

bool L1::put(const NewRow& from) {
  if (front_.generation.load(std::memory_order_relaxed) != from.generation) {
    clear();
    front_.generation.store(from.generation, std::memory_order_seq_cst);
  }
  const Digits digits = digits_of(from.id);
  const std::uint64_t hash = digits.hash();
  if (kRowCost + from.value.size() > max_bytes_ || from.value.size() > Row::kMostBytes) {
    erase(from.id, from.now);
    return false;
  }
  Row* row = make(from);
  bytes_ += cost(*row);
  if (auto* slot = slot_of(digits, hash)) {
    Row* old = slot->load(std::memory_order_relaxed);
    row->queue = old->queue;
    row->uses.store(old->uses.load(std::memory_order_relaxed), std::memory_order_relaxed);
    bytes_ -= cost(*old);
    if (row->queue == kInSmall)
      small_bytes_ += cost(*row) - cost(*old);
    slot->store(row, std::memory_order_seq_cst);
    ++(old->live(from.now) ? gone_.replaced : gone_.expired);
    retire(old, nullptr);
  } else {
    if (admits(hash, cost(*row))) {
      row->queue = kInMain;
      main_.push_back(digits.value());
    } else {
      small_bytes_ += cost(*row);
      small_.push_back(digits.value());
    }
    insert_slot(row, hash);
    ++rows_;
  }
  make_room(from.now);
  if (++puts_ % kPutsABucket == 0)
    drop_long_over(from.now);
  return true;
}

/// Of one bucket, by turns. Nobody serves rows as stale for so long.
void L1::drop_long_over(Ticks now) {
  Bucket& bucket = index_->buckets[puts_ / kPutsABucket % index_->count];
  for (auto& slot : bucket.rows) {
    const Row* row = slot.load(std::memory_order_relaxed);
    if (row == nullptr || row->left(now) > -kLongOver)
      continue;
    ++gone_.expired;
    unlink(slot);
  }
}

void L1::insert_slot(Row* row, std::uint64_t hash) {
  if ((rows_ + 1) * 20 > index_->places() * 17)
    grow();
  index_->insert(row, hash);
}

/// A new index of the next size, so that rows fill between 57 and 85 of a hundred places.
void L1::grow() {
  Index* old = index_;
  auto* fresh = new Index(old->number + 1);
  for (std::size_t i = 0; i < old->count; ++i) {
    for (const auto& one : old->buckets[i].rows) {
      if (Row* row = one.load(std::memory_order_relaxed))
        fresh->insert(row, row->id().hash());
    }
  }
  publish(fresh);
  retire(nullptr, old);
  free_retired();  // an index is large: it does not wait for rows to gather
  ghosts_.assign(ghosts_for(fresh->places()), 0);
}

/// All rows are of a generation that is over.
void L1::clear() {
  if (rows_ == 0)
    return;
  Index* old = index_;
  publish(new Index(0));
  for (std::size_t i = 0; i < old->count; ++i) {
    for (const auto& one : old->buckets[i].rows) {
      if (Row* row = one.load(std::memory_order_relaxed)) {
        const std::size_t freed = cost(*row);
        retired_.push_back({epoch::retire_stamp(), row, nullptr});
        retired_bytes_ += freed;
      }
    }
  }
  gone_.flushed += rows_;
  rows_ = bytes_ = small_bytes_ = 0;
  small_.clear();
  main_.clear();
  retire(nullptr, old);
  free_retired();
}

bool L1::erase(const BrandedId& id, Ticks now) {
  auto* slot = slot_of(digits_of(id));
  if (slot == nullptr)
    return false;
  ++(slot->load(std::memory_order_relaxed)->live(now) ? gone_.erased : gone_.expired);
  unlink(*slot);
  return true;
}

void L1::unlink(std::atomic<Row*>& slot) {
  Row* row = slot.load(std::memory_order_relaxed);
  index_->erase(slot, row->id().hash());
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

void L1::make_room(Ticks now) {
  while (bytes_ > max_bytes_) {
    if (small_bytes_ > small_bound() || main_.empty()) {
      evict_from_small(now);
    } else {
      evict_from_main(now);
    }
  }
}

/// Whether a newcomer goes into the main queue at once: one that was evicted a short time ago.
///
/// S3-FIFO lets in all of these, and runs in circles when more ids come round than there is room for: each takes the
/// place of one that will be missed just as soon. That shows: most of what leaves the main queue is asked for again.
/// Then it is left as it is, and gets nearly all of L1. Where hardly anything is asked for again, what is wanted has
/// changed, and newcomers get more time.
bool L1::admits(std::uint64_t hash, std::size_t bytes) noexcept {
  std::uint16_t& mark = ghost(hash);
  const bool of_main = mark == mark_of(hash, kGhostOfMain);
  if (!of_main && mark != mark_of(hash, kGhostOfSmall))
    return false;
  if (of_main)
    ++regretted_;
  const bool room = bytes_ - small_bytes_ + bytes + small_bound() <= max_bytes_;
  if (strict_ && !room && ++refused_ % kRefusals != 0)
    return false;
  mark = 0;
  return true;
}

/// The oldest of the newcomers: read since it came, it moves to the main queue; else it goes, and leaves a mark.
void L1::evict_from_small(Ticks now) {
  assert(!small_.empty());
  const std::uint64_t id = small_.front();
  small_.pop_front();
  const Digits digits = digits_of(id);
  const std::uint64_t hash = digits.hash();
  auto* slot = slot_of(digits, hash);
  if (slot == nullptr)
    return;
  Row* row = slot->load(std::memory_order_relaxed);
  if (row->queue != kInSmall)
    return;
  if (row->live(now)) {
    if (row->uses.load(std::memory_order_relaxed) > 0) {
      row->uses.store(0, std::memory_order_relaxed);
      row->queue = kInMain;
      small_bytes_ -= cost(*row);
      main_.push_back(id);
      return;
    }
    ghost(hash) = mark_of(hash, kGhostOfSmall);
    ++gone_.evicted;
  } else {
    ++gone_.expired;
  }
  unlink(*slot);
}

/// The oldest of the main queue: read since its last turn, it gets another one.
void L1::evict_from_main(Ticks now) {
  const std::uint64_t id = main_.front();
  main_.pop_front();
  const Digits digits = digits_of(id);
  const std::uint64_t hash = digits.hash();
  auto* slot = slot_of(digits, hash);
  if (slot == nullptr)
    return;
  Row* row = slot->load(std::memory_order_relaxed);
  if (row->queue != kInMain)
    return;
  const std::uint8_t uses = row->uses.load(std::memory_order_relaxed);
  if (row->live(now)) {
    if (uses > 0) {
      row->uses.store(static_cast<std::uint8_t>(uses - 1), std::memory_order_relaxed);
      main_.push_back(id);
      return;
    }
    ghost(hash) = mark_of(hash, kGhostOfMain);
    ++gone_.evicted;
    if (++turned_out_ == kTurns) {
      strict_ = regretted_ * 2 > turned_out_;
      loose_ = regretted_ * 10 < turned_out_;
      turned_out_ /= 2;
      regretted_ /= 2;
    }
  } else {
    ++gone_.expired;
  }
  unlink(*slot);
}

void L1::tidy_queue(std::deque<std::uint64_t>& queue, std::uint8_t which) {
  if (queue.size() < 2 * rows_ + 64)
    return;
  std::deque<std::uint64_t> kept;
  std::unordered_set<std::uint64_t> seen;
  for (const std::uint64_t id : queue) {
    const auto* slot = slot_of(digits_of(id));
    if (slot != nullptr && slot->load(std::memory_order_relaxed)->queue == which && seen.insert(id).second)
      kept.push_back(id);
  }
  queue.swap(kept);
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
