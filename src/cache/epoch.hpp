// Epochs: readers that take no lock, and memory that is freed only when none of them can still see it.
//
// A reader writes the current epoch into a record of its thread, reads, and clears it. A writer first unlinks, then asks
// `retire_stamp`; what was unlinked may be freed once `oldest_reader` is beyond that stamp. A reader that is held up
// holds up the freeing, nobody else.
//
// Where the kernel can put a barrier into all threads of the process at once (membarrier), the reader's store needs none
// of its own, which is most of what reading would cost; the writer asks for it before it looks at the records.
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
  std::uint32_t number = 0;  ///< from 0; of no other thread that runs
  Record* next = nullptr;
};

// A plain pointer beside what gives the record back: reading it needs no check whether that was made.
inline thread_local constinit Record* mine = nullptr;
[[nodiscard]] Record& first_record() noexcept;
/// The record of this thread.
[[nodiscard]] inline Record& record() noexcept { return mine != nullptr ? *mine : first_record(); }

/// Whether writers make readers' stores visible. Settled before `main`, never changed.
extern const bool kWritersFence;

extern std::atomic<std::uint64_t> current;

/// While it lives, what this thread can reach is not freed. Not nested.
///
/// Either the writer's look at the records finds this reader, or this reader finds the link already gone: between the
/// reader's store and its look at the links, and between the writer's unlinking and its look at the records, stands a
/// full barrier, be it that all these accesses are sequentially consistent, or that the writer has one put into both.
class Reading {
 public:
  Reading() noexcept : record_(record()) {
    const std::uint64_t now = current.load(std::memory_order_acquire);
    if (kWritersFence) {
      record_.reading.store(now, std::memory_order_release);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      record_.reading.store(now, std::memory_order_seq_cst);
    }
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  /// Of the thread that reads.
  [[nodiscard]] std::uint32_t number() const noexcept { return record_.number; }
  ~Reading() { record_.reading.store(0, std::memory_order_release); }

 private:
  Record& record_;
};

/// Called after unlinking.
[[nodiscard]] inline std::uint64_t retire_stamp() noexcept { return current.fetch_add(1, std::memory_order_seq_cst); }
/// What was retired with a smaller stamp is seen by nobody any more. A system call.
[[nodiscard]] std::uint64_t oldest_reader() noexcept;

}  // namespace epoch
}  // namespace cache
}  // namespace v1
}  // namespace echomq
