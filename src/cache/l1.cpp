// One shard of L1.
#include "cache/l1.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstring>
#include <new>
#include <unordered_set>

#include "cache/epoch.hpp"
#include "cache/id_bytes.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {
namespace {

constexpr std::uint32_t kAbsent = std::uint32_t{1} << 31;

constexpr std::uint8_t kInSmall = 0;
constexpr std::uint8_t kInMain = 1;
constexpr std::uint8_t kMostUses = 3;

// Row times are kept in 32 bits: expiry in units of 16 ms (never late), storing in ms (rows live 20 days at most). Expiry is
// told from now by a difference with a sign: 2^31 units, 397 days, after its end a row that is still here would be live again.
// So puts look for rows that have been over for more than half of that, a bucket each eighth time.
constexpr int kExpiryShift = 4;
constexpr std::int32_t kLongOver = std::int32_t{1} << 30;
constexpr std::uint32_t kPutsABucket = 8;

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

/// Never 0, which stands for an empty place.
[[nodiscard]] constexpr std::uint64_t tag_of(std::uint64_t hash) noexcept {
  return std::max<std::uint64_t>(hash >> 56, 1);
}

}  // namespace

/// Constant once linked, but for `uses`. The value follows at `kHead`, inside the padding where it fits.
struct L1::Row {
  static constexpr std::size_t kHead = 36;

  std::uint64_t id;
  BrandedId version;                       // as text, which a hit copies out
  std::uint8_t queue;                      // of writers alone
  mutable std::atomic<std::uint8_t> uses;  // by readers since it was queued, up to kMostUses
  std::uint32_t expires;
  std::uint32_t stored;
  std::uint32_t size;  // the highest bit: absent

  [[nodiscard]] std::size_t value_size() const noexcept { return size & ~kAbsent; }
  [[nodiscard]] const char* value() const noexcept { return reinterpret_cast<const char*>(this) + kHead; }
  [[nodiscard]] char* value() noexcept { return reinterpret_cast<char*>(this) + kHead; }
  [[nodiscard]] bool live(Ticks now) const noexcept { return left(now) > 0; }
  [[nodiscard]] std::int32_t left(Ticks now) const noexcept {
    return static_cast<std::int32_t>(expires - static_cast<std::uint32_t>(now >> kExpiryShift));
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

/// Sizes are 4, 6, 8, 12, 16, 24 ...: by number, which fits into the low bits of the buckets' address.
struct L1::Index {
  static constexpr std::uint64_t kNumber = alignof(Bucket) - 1;

  explicit Index(std::uint32_t its_number)
      : number(its_number), count(size_of(its_number)), buckets(new Bucket[count]) {}
  [[nodiscard]] static std::size_t size_of(std::uint64_t number) noexcept {
    return (4 + 2 * (number & 1)) << (number >> 1);
  }
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

/// With the mutex or under an epoch.
std::atomic<L1::Row*>* L1::find(Bucket* buckets, std::size_t count, std::uint64_t id, std::uint64_t hash,
                                Row*& row) noexcept {
  const std::uint64_t tag = tag_of(hash);
  std::size_t at = place(hash, count);
  for (std::size_t looked = 0; looked < count; ++looked) {
    Bucket& bucket = buckets[at];
    const std::uint64_t tags = bucket.tags.load(std::memory_order_seq_cst);
    for (std::uint64_t matches = Bucket::matches(tags, tag); matches != 0; matches &= matches - 1) {
      auto& where = bucket.rows[Bucket::place_of(matches)];
      row = where.load(std::memory_order_seq_cst);
      if (row != nullptr && row->id == id) [[likely]]
        return &where;
    }
    if (tags >> Bucket::kPassedShift == 0)
      break;
    at = at + 1 == count ? 0 : at + 1;
  }
  return nullptr;
}

bool L1::read(const Front& front, std::uint64_t id, std::uint64_t hash, Ticks now, std::uint32_t generation,
              CachedBytes& into, Ticks* left) {
  const epoch::Reading reading;
  // In this order: rows of older generations were unlinked before the newer one was written here.
  if (front.generation.load(std::memory_order_seq_cst) != generation)
    return false;
  const std::uint64_t word = front.index.load(std::memory_order_seq_cst);
  Row* found = nullptr;
  if (find(reinterpret_cast<Bucket*>(word & ~Index::kNumber), Index::size_of(word & Index::kNumber), id, hash, found) ==
      nullptr)
    return false;
  const Row* row = found;
  if (!row->live(now))
    return false;
  if (left != nullptr)
    *left = static_cast<Ticks>(row->expires - static_cast<std::uint32_t>(now >> kExpiryShift)) << kExpiryShift;
  // Written only while it changes something, so that a hot row's line is not passed from core to core.
  const std::uint8_t uses = row->uses.load(std::memory_order_relaxed);
  if (uses < kMostUses)
    row->uses.store(static_cast<std::uint8_t>(uses + 1), std::memory_order_relaxed);
  if ((row->size & kAbsent) != 0) {
    into.value.reset();
    into.version = BrandedId();
  } else {
    if (into.value) {
      into.value->assign(row->value(), row->size);
    } else {
      into.value.emplace(row->value(), row->size);
    }
    into.version = row->version;
  }
  into.from = CacheFrom::hit;
  into.age = std::chrono::milliseconds(static_cast<std::uint32_t>(now) - row->stored);
  return true;
}

std::atomic<L1::Row*>* L1::slot_of(std::uint64_t id, std::uint64_t hash) const noexcept {
  Row* row = nullptr;
  return find(index_->buckets.get(), index_->count, id, hash, row);
}

std::optional<std::uint64_t> L1::version_of(std::uint64_t id, Ticks now, std::uint32_t generation) const {
  const auto* slot = slot_of(id, mix(id));
  if (slot == nullptr || front_.generation.load(std::memory_order_relaxed) != generation)
    return std::nullopt;
  const Row* row = slot->load(std::memory_order_relaxed);
  if (!row->live(now))
    return std::nullopt;
  return value_of(row->version);
}

L1::Row* L1::make(const NewRow& from) {
  void* memory = ::operator new(std::max(sizeof(Row), Row::kHead + from.value.size()));
  auto* row = ::new (memory) Row;
  row->id = from.id;
  row->version = from.version;
  row->expires = static_cast<std::uint32_t>(from.expires >> kExpiryShift);
  row->stored = static_cast<std::uint32_t>(from.now);
  row->size = static_cast<std::uint32_t>(from.value.size()) | (from.absent ? kAbsent : 0);
  row->queue = kInSmall;
  row->uses.store(0, std::memory_order_relaxed);
  std::ranges::copy(from.value, row->value());  // an absent value is a view of nothing
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
  const std::uint64_t hash = mix(from.id);
  if (kRowCost + from.value.size() > max_bytes_) {
    erase(from.id, from.now);
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
    ++(old->live(from.now) ? gone_.replaced : gone_.expired);
    retire(old, nullptr);
  } else {
    if (admits(hash, cost(*row))) {
      row->queue = kInMain;
      main_.push_back(from.id);
    } else {
      small_bytes_ += cost(*row);
      small_.push_back(from.id);
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
        fresh->insert(row, mix(row->id));
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

bool L1::erase(std::uint64_t id, Ticks now) {
  auto* slot = slot_of(id, mix(id));
  if (slot == nullptr)
    return false;
  ++(slot->load(std::memory_order_relaxed)->live(now) ? gone_.erased : gone_.expired);
  unlink(*slot);
  return true;
}

void L1::unlink(std::atomic<Row*>& slot) {
  Row* row = slot.load(std::memory_order_relaxed);
  index_->erase(slot, mix(row->id));
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
  const std::uint64_t hash = mix(id);
  auto* slot = slot_of(id, hash);
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
  const std::uint64_t hash = mix(id);
  auto* slot = slot_of(id, hash);
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
    const auto* slot = slot_of(id, mix(id));
    if (slot != nullptr && slot->load(std::memory_order_relaxed)->queue == which && seen.insert(id).second)
      kept.push_back(id);
  }
  queue.swap(kept);
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
