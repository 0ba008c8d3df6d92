// One shard of L1: rows by the value of their id, bounded in bytes, evicted by S3-FIFO whose queues learn their sizes.
//
// Readers take no lock: they look into an index of atomic words under an epoch and copy from rows that never
// change once they are linked. Writers hold the shard's mutex, which is not in here: the table guards its flights by the
// same one. Ids of one shard have one namespace, the table's kind.
//
// Memory of a row: 36 bytes and the value in one block, 11 to 16 bytes of index, 8 in a queue, 2 to 3 of ghosts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include "cache/epoch.hpp"
#include "cache/id_bytes.hpp"
#include "echomq/cache.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {

/// A 64-bit mix of a number.
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t value) noexcept {
  value ^= value >> 32;
  value *= 0xE9846AF9B1A615D5;
  value ^= value >> 32;
  value *= 0xE9846AF9B1A615D5;
  return value ^ (value >> 28);
}

/// Time inside a table: whole milliseconds since it was opened.
using Ticks = std::uint64_t;

/// What is put into L1.
struct NewRow {
  BrandedId id;
  BrandedId version;
  std::string_view value;
  bool absent = false;  ///< a note that the loader found nothing
  Ticks now = 0;
  Ticks expires = 0;
  std::uint32_t generation =
      0;  ///< rows of another generation than the reader's are not served; a put of a new one empties
};

class L1 {
 public:
  /// What a row costs beside its value, as the bound counts.
  static constexpr std::size_t kRowCost = 64;

  /// What readers begin with: where the index is, its size, and of which generation its rows are. Of many shards side by
  /// side these stay in the nearest memory.
  struct alignas(16) Front {
    std::atomic<std::uint64_t> index{0};
    std::atomic<std::uint32_t> generation{0};
  };

  /// `front` must outlive the shard; without one it has its own.
  explicit L1(std::size_t max_bytes, Front* front = nullptr);
  ~L1();
  L1(const L1&) = delete;
  L1& operator=(const L1&) = delete;

  /// Any thread, without the mutex, within `reading` (l1_row.hpp). `hash`: of the id's digits; `clock` gives the time;
  /// `left`: what is left of the row's.
  template <typename Now>
  [[nodiscard]] static bool read(const epoch::Reading& reading, const Front& front, const BrandedId& id,
                                 std::uint64_t hash, const Now& clock, std::uint32_t generation, CachedBytes& into,
                                 Ticks* left = nullptr);
  [[nodiscard]] bool read(const BrandedId& id, Ticks now, std::uint32_t generation, CachedBytes& into) const;

  // With the shard's mutex.

  /// The value of the version of a row that `read` would serve; nothing otherwise.
  [[nodiscard]] std::optional<std::uint64_t> version_of(const BrandedId& id, Ticks now, std::uint32_t generation) const;
  /// Links a row in place of whatever the id had. False when it alone exceeds the bound; the id then has none.
  bool put(const NewRow& row);
  /// Whether there was one.
  /// One whose time is over at `now` counts as expired.
  bool erase(const BrandedId& id, Ticks now = 0);

  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Why rows have gone, in numbers.
  struct Gone {
    std::uint64_t evicted = 0;   ///< there was no room
    std::uint64_t expired = 0;   ///< their time was over when their place was wanted
    std::uint64_t replaced = 0;  ///< by another row of the id
    std::uint64_t erased = 0;
    std::uint64_t flushed = 0;  ///< they were of an older generation
  };
  [[nodiscard]] const Gone& gone() const noexcept { return gone_; }
  [[nodiscard]] std::uint64_t evicted() const noexcept { return gone_.evicted; }
  /// Rows unlinked and not freed yet.
  [[nodiscard]] std::size_t retired() const noexcept { return retired_.size(); }

 private:
  struct Row;
  struct Bucket;
  struct Index;
  struct Retired {
    std::uint64_t stamp;
    Row* row;
    Index* index;
  };

  /// The lower half of the hash as a fraction of a size, which so need not be a power of two.
  [[nodiscard]] static std::size_t place(std::uint64_t hash, std::size_t size) noexcept {
    return static_cast<std::size_t>(((hash & 0xFFFF'FFFF) * size) >> 32);
  }
  [[nodiscard]] static Row* make(const NewRow& row);
  static void destroy(Row* row) noexcept;
  [[nodiscard]] static std::size_t cost(const Row& row) noexcept;
  [[nodiscard]] static std::atomic<Row*>* find_in(Bucket& bucket, std::uint64_t tags, std::uint64_t tag,
                                                  const Digits& id, Row*& row) noexcept;
  /// In the buckets behind `at`.
  [[nodiscard]] static std::atomic<Row*>* find_behind(Bucket* buckets, std::size_t count, std::size_t at,
                                                      const Digits& id, std::uint64_t tag, Row*& row) noexcept;
  [[nodiscard]] static std::atomic<Row*>* find(Bucket* buckets, std::size_t count, const Digits& id, std::uint64_t hash,
                                               Row*& row) noexcept;
  [[nodiscard]] std::atomic<Row*>* slot_of(const Digits& id, std::uint64_t hash) const noexcept;
  [[nodiscard]] std::atomic<Row*>* slot_of(const Digits& id) const noexcept { return slot_of(id, id.hash()); }
  void insert_slot(Row* row, std::uint64_t hash);
  void grow();
  void publish(Index* index) noexcept;
  void clear();
  void unlink(std::atomic<Row*>& slot);
  void retire(Row* row, Index* index);
  void free_retired();
  void make_room(Ticks now);
  void drop_long_over(Ticks now);
  [[nodiscard]] bool admits(std::uint64_t hash, std::size_t bytes) noexcept;
  [[nodiscard]] std::size_t small_bound() const noexcept { return max_bytes_ / (strict_ ? 100 : loose_ ? 3 : 10); }
  void evict_from_small(Ticks now);
  void evict_from_main(Ticks now);
  void tidy_queue(std::deque<std::uint64_t>& queue, std::uint8_t which);
  [[nodiscard]] std::uint16_t& ghost(std::uint64_t hash) noexcept { return ghosts_[place(hash, ghosts_.size())]; }

  const std::size_t max_bytes_;
  Front own_front_;
  Front& front_;
  Index* index_;
  std::size_t rows_ = 0;
  std::size_t bytes_ = 0;
  std::size_t small_bytes_ = 0;
  std::uint64_t puts_ = 0;
  Gone gone_;
  // Values of ids, oldest first. One that was erased, or came back into the other queue, is passed over.
  std::deque<std::uint64_t> small_;
  std::deque<std::uint64_t> main_;
  std::vector<std::uint16_t> ghosts_;  // marks of what was evicted, by place
  // Of the last evictions from `main_`: how many there were, and how many of the ids were asked for again soon.
  std::uint32_t turned_out_ = 0;
  std::uint32_t regretted_ = 0;
  bool strict_ = false;        // most were: what is in `main_` is kept, and little is let in
  bool loose_ = false;         // hardly any were
  std::uint32_t refused_ = 0;  // since then, in turns of kRefusals
  std::deque<Retired> retired_;
  std::size_t retired_bytes_ = 0;
};

}  // namespace cache
}  // namespace v1
}  // namespace echomq
