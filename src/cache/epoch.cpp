// Epochs of readers.
#include "cache/epoch.hpp"

#include <limits>

namespace echomq {
inline namespace v1 {
namespace cache {
namespace epoch {

std::atomic<std::uint64_t> current{1};

namespace {

std::atomic<Record*> records{nullptr};

[[nodiscard]] Record* take_record() {
  for (Record* one = records.load(std::memory_order_acquire); one != nullptr; one = one->next) {
    bool free = false;
    if (one->taken.compare_exchange_strong(free, true, std::memory_order_acq_rel))
      return one;
  }
  auto* fresh = new Record;  // reachable for ever
  fresh->taken.store(true, std::memory_order_relaxed);
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

// A plain pointer beside the holder: reading it needs no check whether the holder was made.
thread_local constinit Record* mine = nullptr;

[[nodiscard]] Record& first_time() noexcept {
  thread_local const Holder holder;
  mine = holder.record;
  return *mine;
}

}  // namespace

Record& record() noexcept { return mine != nullptr ? *mine : first_time(); }

std::uint64_t oldest_reader() noexcept {
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
