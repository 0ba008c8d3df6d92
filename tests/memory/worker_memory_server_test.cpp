// What a worker's loop costs in memory: no allocation for a job but its payload and what its handler makes, and a
// resident size that stays where it is. A program of its own, for it counts every `operator new`.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <string>
#include <vector>

#include "support/worker_harness.hpp"

namespace {

std::atomic<std::uint64_t> allocations{0};

void* counted(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* block = std::malloc(size))
    return block;
  throw std::bad_alloc();
}

void* counted(std::size_t size, std::align_val_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const auto unit = static_cast<std::size_t>(alignment);
  if (void* block = std::aligned_alloc(unit, (size + unit - 1) / unit * unit))
    return block;
  throw std::bad_alloc();
}

}  // namespace

// The other forms (arrays, nothrow, sized) call these.
void* operator new(std::size_t size) { return counted(size); }
void* operator new(std::size_t size, std::align_val_t alignment) { return counted(size, alignment); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }

namespace echomq::test {
namespace {

/// Of this process, in bytes.
[[nodiscard]] std::int64_t resident() {
  std::int64_t size = 0, pages = 0;
  std::ifstream("/proc/self/statm") >> size >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

struct Flow {
  int rounds = 0;
  int jobs_a_round = 0;
  std::size_t payload = 0;  ///< bytes
  std::uint32_t concurrency = 100;
};

class WorkerMemory : public WorkerTest {
 protected:
  struct Seen {
    double allocations = 0;            ///< a job, all threads, after the first fifth of the rounds
    std::int64_t least = 0, most = 0;  ///< resident after a round, of the last four fifths
  };

  /// Rounds of jobs that are admitted while the queue is paused, so that only the worker's own doing is counted.
  [[nodiscard]] Seen run(const Flow& flow) {
    WorkerOptions options = quick_options(flow.concurrency);
    options.lease = 15s;
    Worker worker = start([](Job&) { return Done(); }, options);
    const std::string payload(flow.payload, 'x');
    const std::vector<NewJob> jobs(1000, NewJob{.payload = payload, .id = {}});
    Seen seen;
    std::uint64_t counted = 0, counted_jobs = 0, expected = 0;
    const int warm = flow.rounds / 5;
    for (int round = 0; round < flow.rounds; ++round) {
      EXPECT_TRUE(queue_->pause().get());
      for (int at = 0; at < flow.jobs_a_round; at += 1000)
        EXPECT_TRUE(queue_->enqueue_many(jobs).get());
      const std::uint64_t before = allocations.load();
      EXPECT_TRUE(queue_->resume().get());
      expected += static_cast<std::uint64_t>(flow.jobs_a_round);
      EXPECT_TRUE(eventually([&] { return worker.stats().completed >= expected; }, 120s));
      if (round >= warm) {
        counted += allocations.load() - before;
        counted_jobs += static_cast<std::uint64_t>(flow.jobs_a_round);
      }
      if (round + 1 == warm) {
        seen.least = seen.most = resident();
      } else if (round >= warm) {
        seen.least = std::min(seen.least, resident());
        seen.most = std::max(seen.most, resident());
      }
    }
    EXPECT_EQ(worker.stats().completed, expected);
    EXPECT_EQ(worker.stats().errors, 0U);
    seen.allocations = static_cast<double>(counted) / static_cast<double>(counted_jobs);
    std::printf("%llu jobs of %zu bytes: %.3f allocations a job, resident %.2f to %.2f MB after the first fifth\n",
                static_cast<unsigned long long>(expected), flow.payload, seen.allocations,
                static_cast<double>(seen.least) / 1e6, static_cast<double>(seen.most) / 1e6);
    return seen;
  }
};

constexpr std::int64_t kFlat = 2'000'000;  // a megabyte to either side

// A payload of eight bytes lives within its string: what is left is of a batch, not of a job.
TEST_F(WorkerMemory, AJobCostsNoAllocationInTheLoop) {
  const Seen seen = run({.rounds = 20, .jobs_a_round = 10'000, .payload = 8});
  EXPECT_LE(seen.allocations, 0.2);
  EXPECT_LE(seen.most - seen.least, kFlat);
}

TEST_F(WorkerMemory, APayloadCostsOneAllocation) {
  const Seen seen = run({.rounds = 5, .jobs_a_round = 10'000, .payload = 100});
  EXPECT_GE(seen.allocations, 1.0) << "the counter does not count";
  EXPECT_LE(seen.allocations, 1.2);
}

class LongRunWorkerMemory : public WorkerMemory {};

TEST_F(LongRunWorkerMemory, StaysFlatOverTenMillionJobs) {
  const Seen seen = run({.rounds = 100, .jobs_a_round = 100'000, .payload = 8});
  EXPECT_LE(seen.allocations, 0.2);
  EXPECT_LE(seen.most - seen.least, kFlat);
}

}  // namespace
}  // namespace echomq::test
