// Epochs of readers.
#include "cache/epoch.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <limits>

namespace echomq {
inline namespace v1 {
namespace cache {
namespace epoch {

std::atomic<std::uint64_t> current{1};
// A table that an initializer of another file opens sees it false while it is not settled: readers fence then, and what
// writers do is the same.
const bool kWritersFence = ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;

namespace {

std::atomic<Record*> records{nullptr};
std::atomic<std::uint32_t> numbers{0};

[[nodiscard]] Record* take_record() {
  for (Record* one = records.load(std::memory_order_acquire); one != nullptr; one = one->next) {
    bool free = false;
    if (one->taken.compare_exchange_strong(free, true, std::memory_order_acq_rel))
      return one;
  }
  auto* fresh = new Record;  // reachable for ever
  fresh->taken.store(true, std::memory_order_relaxed);
  fresh->number = numbers.fetch_add(1, std::memory_order_relaxed);
  fresh->next = records.load(std::memory_order_relaxed);
  while (!records.compare_exchange_weak(fresh->next, fresh, std::memory_order_seq_cst)) {
  }
  return fresh;
}

/// Gives the record back when the thread ends.
struct Holder {
  Record* record = take_record();
  ~Holder() { record->taken.store(false, std::memory_order_release); }
};

}  // namespace

Record& first_record() noexcept {
  thread_local const Holder holder;
  mine = holder.record;
  return *mine;
}

std::uint64_t oldest_reader() noexcept {
  // After a fork the child has to register again: the call itself tells.
  if (kWritersFence && ::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0)
    return 0;
  std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
  for (const Record* one = records.load(std::memory_order_seq_cst); one != nullptr; one = one->next) {
    const std::uint64_t reading = one->reading.load(std::memory_order_seq_cst);
    if (reading != 0 && reading < oldest)
      oldest = reading;
  }
  return oldest;
}

}  // namespace epoch
}  // namespace cache
}  // namespace v1
}  // namespace echomq
