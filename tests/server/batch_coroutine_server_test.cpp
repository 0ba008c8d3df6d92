// The worker of batches whose handler is a coroutine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "echomq/batch.hpp"
#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

using ::testing::HasSubstr;

class BatchCoroutine : public WorkerTest {
 protected:
  [[nodiscard]] static BatchWorkerOptions options(std::uint32_t min_size, std::uint32_t max_size = 100) {
    BatchWorkerOptions out;
    out.shape = {.min_size = min_size, .timeout = 10s};
    out.max_size = max_size;
    out.worker = quick_options();
    return out;
  }
  template <typename F>
  [[nodiscard]] BatchWorker start_batches(F handler, BatchWorkerOptions options) {
    auto worker = BatchWorker::start(*queue_, std::move(handler), std::move(options));
    if (!worker)
      throw std::runtime_error(worker.error().message());
    return *std::move(worker);
  }
  [[nodiscard]] static BatchVerdicts all_done(std::span<Job> jobs) {
    BatchVerdicts verdicts;
    for (const Job& job : jobs)
      verdicts.emplace(job.id(), Done());
    return verdicts;
  }
};

TEST_F(BatchCoroutine, EachMemberEndsByItsVerdictAndTheJobsLiveToItsEnd) {
  BatchWorkerOptions how = options(4);
  how.worker.backoff = Backoff::fixed(1h);
  std::atomic<int> calls{0};
  BatchWorker worker = start_batches(
      [&](std::span<Job> jobs) -> Task<BatchVerdicts> {
        ++calls;
        EXPECT_EQ(jobs.size(), 4U);
        for (int i = 0; i < 10; ++i)
          (void)co_await queue_->counts();
        BatchVerdicts verdicts;
        for (const Job& job : jobs) {
          if (job.payload() == "dead")
            verdicts.emplace(job.id(), Dead("by " + std::string(job.payload())));
          if (job.payload() == "done")
            verdicts.emplace(job.id(), Done());
          if (job.payload() == "delay")
            verdicts.emplace(job.id(), Delay(1h));
        }
        co_return verdicts;
      },
      how);
  const JobId done = enqueue("done");
  const JobId dead = enqueue("dead");
  const JobId delay = enqueue("delay");
  const JobId missing = enqueue("missing");
  ASSERT_TRUE(eventually([&] { return state(dead) == JobState::dead; }));
  EXPECT_TRUE(eventually([&] { return state(done) == JobState::absent; }));
  EXPECT_EQ(field(dead, "last_error"), "by dead");
  EXPECT_TRUE(eventually([&] { return state(delay) == JobState::scheduled; }));
  EXPECT_TRUE(eventually([&] { return state(missing) == JobState::scheduled; }));
  EXPECT_EQ(field(missing, "last_error"), "missing verdict");
  EXPECT_EQ(calls, 1);
}

TEST_F(BatchCoroutine, BatchesWaitSideBySideOnOneThread) {
  BatchWorkerOptions how = options(5, 5);
  how.worker.concurrency = 20;
  how.worker.threads = 1;
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  BatchWorker worker = start_batches(
      [&](std::span<Job> jobs) -> Task<BatchVerdicts> {
        const int now = ++inside;
        for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
        }
        // Long enough for all of them to be inside together.
        for (int i = 0; i < 2000 && most < 20; ++i)
          (void)co_await queue_->counts();
        --inside;
        co_return all_done(jobs);
      },
      how);
  enqueue_many(100);
  ASSERT_TRUE(eventually([&] { return counts().completed == 100; }));
  EXPECT_EQ(most, 20);
  EXPECT_EQ(worker.stats().batches, 20U);
}

TEST_F(BatchCoroutine, AnExceptionIsARetryOfAllAndAnUnrecoverableTheirDeath) {
  BatchWorkerOptions how = options(2, 2);
  how.worker.max_attempts = 3;
  how.worker.backoff = Backoff::fixed(1h);
  BatchWorker worker = start_batches(
      [&](std::span<Job> jobs) -> Task<BatchVerdicts> {
        const bool fatal = jobs[0].payload() == "fatal";
        (void)co_await queue_->counts();
        if (fatal)
          throw Unrecoverable("no use");
        throw std::runtime_error("no luck");
      },
      how);
  const JobId a = enqueue();
  const JobId b = enqueue();
  ASSERT_TRUE(eventually([&] { return state(a) == JobState::scheduled && state(b) == JobState::scheduled; }));
  EXPECT_EQ(field(a, "last_error"), "no luck");
  EXPECT_EQ(field(b, "last_error"), "no luck");
  const JobId c = enqueue("fatal");
  const JobId d = enqueue("fatal");
  ASSERT_TRUE(eventually([&] { return state(c) == JobState::dead && state(d) == JobState::dead; }));
  EXPECT_EQ(field(d, "last_error"), "no use");
}

TEST_F(BatchCoroutine, OneThatDoesNotEndIsGivenUpAndItsSlotIsFree) {
  BatchWorkerOptions how = options(2, 2);
  how.worker.timeout = 500ms;  // the second batch must not need so long
  how.worker.stop_patience = 50ms;
  how.worker.backoff = Backoff::fixed(1h);
  auto open = std::make_shared<std::atomic<bool>>(false);
  auto calls = std::make_shared<std::atomic<int>>(0);
  BatchWorker worker = start_batches(
      [queue = *queue_, open, calls](std::span<Job> jobs) -> Task<BatchVerdicts> {
        // What a lambda has captured is the lambda's: it outlives the coroutine here, since the worker keeps it.
        const std::shared_ptr<std::atomic<bool>> until = open;
        if (++*calls == 1) {
          while (!*until)
            (void)co_await queue.counts();
        }
        co_return all_done(jobs);
      },
      how);
  const JobId a = enqueue();
  const JobId b = enqueue();
  ASSERT_TRUE(eventually([&] { return worker.stats().jobs.leaked == 1; }));
  ASSERT_TRUE(eventually([&] { return state(a) == JobState::scheduled && state(b) == JobState::scheduled; }));
  EXPECT_EQ(field(a, "last_error"), "timed out after 500ms");
  enqueue_many(2);
  EXPECT_TRUE(eventually([&] { return counts().completed == 2; })) << "the slot is free again";
  *open = true;
  EXPECT_TRUE(eventually([&] { return worker.stats().jobs.leaked == 0; }));
  EXPECT_EQ(counts().completed, 2) << "what the leaked run returned counts for nothing";
}

TEST_F(BatchCoroutine, AStopWaitsForWhatRunsAndHandsTheRestBack) {
  BatchWorkerOptions how = options(2, 2);
  std::atomic<bool> begun{false};
  BatchWorker worker = start_batches(
      [&](std::span<Job> jobs) -> Task<BatchVerdicts> {
        begun = true;
        for (int i = 0; i < 100; ++i)
          (void)co_await queue_->counts();
        co_return all_done(jobs);
      },
      how);
  enqueue_many(2);
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  const StopReport report = worker.stop(10s);
  EXPECT_EQ(report.finished, 2U);
  EXPECT_EQ(report.leaked, 0U);
  EXPECT_EQ(counts().completed, 2);
}

TEST_F(BatchCoroutine, OptionsAreCheckedAsEver) {
  EXPECT_TRUE(BatchWorker::start_async(*queue_, AsyncBatchHandler(), options(1)).error().is(Errc::invalid_argument));
  const auto coroutine = [](std::span<Job>) -> Task<BatchVerdicts> { co_return BatchVerdicts(); };
  for (const std::uint32_t concurrency : {0U, 1025U}) {
    BatchWorkerOptions how = options(1);
    how.worker.concurrency = concurrency;
    const auto refused = BatchWorker::start(*queue_, coroutine, how);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().text, HasSubstr("concurrency must be 1 to 1024, got " + std::to_string(concurrency)));
  }
  BatchWorkerOptions how = options(5, 4);
  EXPECT_FALSE(BatchWorker::start(*queue_, coroutine, how));
}

}  // namespace
}  // namespace echomq::test
