// Epochs of readers.
#include "cache/epoch.hpp"

#include <linux/membarrier.h>
#include <pthread.h>
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

/// Gives a thread's record back behind all of its thread_local objects, whose destructors may read too: values of keys are
/// destroyed after them. Who reads later still takes another one; where there is no key the record stays taken.
class Returns {
 public:
  Returns() noexcept { made.store(::pthread_key_create(&key, &end) == 0); }
  ~Returns() {
    if (made.exchange(false))
      ::pthread_key_delete(key);
  }
  static void note(Record* record) noexcept {
    if (made.load())
      (void)::pthread_setspecific(key, record);
  }

 private:
  static void end(void* record) {
    mine = nullptr;
    static_cast<Record*>(record)->taken.store(false, std::memory_order_release);
  }

  static inline constinit pthread_key_t key{};
  static inline constinit std::atomic<bool> made{false};
};

}  // namespace

Record& first_record() noexcept {
  static const Returns returns;
  mine = take_record();
  Returns::note(mine);
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
