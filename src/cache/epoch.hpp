// Epochs: readers that take no lock, and memory that is freed only when none of them can still see it.
//
// A reader writes the current epoch into a record of its thread, reads, and clears it. A writer first unlinks, then asks
// `retire_stamp`; what was unlinked may be freed once `oldest_reader` is beyond that stamp. A reader that is held up
// holds up the freeing, nobody else.
#pragma once

#include <atomic>
#include <cstdint>

namespace echomq {
inline namespace v1 {
namespace cache {
namespace epoch {

/// Of one thread, on a cache line of its own; never freed, used again by later threads.
struct alignas(64) Record {
  std::atomic<std::uint64_t> reading{0};  ///< the epoch in which its thread reads, 0: it does not
  std::atomic<bool> taken{false};
  Record* next = nullptr;
};

/// The record of this thread.
[[nodiscard]] Record& record() noexcept;

extern std::atomic<std::uint64_t> current;

/// While it lives, what this thread can reach is not freed. Not nested.
///
/// All accesses here and those to the links themselves are sequentially consistent: either the writer's look at the
/// records finds this reader, or this reader finds the link already gone.
class Reading {
 public:
  Reading() noexcept : record_(record()) {
    record_.reading.store(current.load(std::memory_order_acquire), std::memory_order_seq_cst);
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  ~Reading() { record_.reading.store(0, std::memory_order_release); }

 private:
  Record& record_;
};

/// Called after unlinking.
[[nodiscard]] inline std::uint64_t retire_stamp() noexcept { return current.fetch_add(1, std::memory_order_seq_cst); }
/// What was retired with a smaller stamp is seen by nobody any more.
[[nodiscard]] std::uint64_t oldest_reader() noexcept;

}  // namespace epoch
}  // namespace cache
}  // namespace v1
}  // namespace echomq
