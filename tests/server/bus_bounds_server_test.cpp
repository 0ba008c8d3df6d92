// Case 39 and its kind: what is told of jobs carries none of their bytes, and bounded streams stay bounded.
#include <atomic>
#include <mutex>
#include <stdexcept>

#include "bus_fixture.hpp"
#include "echomq/event_log.hpp"
#include "echomq/events.hpp"
#include "echomq/queue.hpp"
#include "echomq/worker.hpp"

namespace echomq::test {
namespace {

class BusBounds : public BusServerTest {
 protected:
  [[nodiscard]] std::int64_t memory_of(std::string_view key) {
    return raw("MEMORY", "USAGE", key, "SAMPLES", "0").as_integer().value_or(0);
  }

  /// Jobs with 10 KB of data and 10 KB of results, whose events fill a stream of at most 1,000 records.
  void run_jobs(int count) {
    const std::string data(10'240, 'd');
    const std::string result(10'240, 'r');
    const Queue jobs = client().queue("q");
    std::atomic<int> heard = 0;
    std::atomic<std::size_t> largest = 0;
    std::atomic<int> with_bytes = 0;
    EventListenerOptions listening;
    std::mutex mutex;
    std::vector<Reply<EventId>> sent;
    listening.most_waiting = 1'000'000;
    listening.on_event = [&](const JobEvent& event) {
      largest = std::max(largest.load(), event.text.size());
      with_bytes += event.text.find("dddddddddd") != std::string_view::npos ||
                            event.text.find("rrrrrrrrrr") != std::string_view::npos
                        ? 1
                        : 0;
      const std::string_view job = event.job.text();
      const Field fields[] = {{"event", event.name}, {"job", job}};
      const std::lock_guard lock(mutex);
      sent.push_back(stream().append(fields));
      if (sent.size() % 500 == 0)
        stream().trim_to(1000, Trim::approximate).detach();
      ++heard;
    };
    const QueueName names[] = {"q"};
    auto listener = EventListener::open(client(), names, std::move(listening));
    ASSERT_TRUE(listener) << listener.error().message();
    WorkerOptions options;
    options.concurrency = 4;
    std::atomic<int> done = 0;
    auto worker = Worker::start(
        jobs,
        [&](Job&) {
          ++done;
          return Done(result);
        },
        options);
    ASSERT_TRUE(worker);
    for (int i = 0; i < count; ++i)
      ASSERT_TRUE(jobs.enqueue(data).get());
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(5);
    while ((done < count || heard < count) && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(5ms);
    worker->stop();
    EXPECT_GE(heard, count);
    EXPECT_EQ(with_bytes, 0);
    EXPECT_LT(largest, 512U);
    const std::lock_guard lock(mutex);
    for (auto& one : sent)
      ASSERT_TRUE(one.get());
    const auto trimmed = stream().trim_to(1000, Trim::approximate).get();
    ASSERT_TRUE(trimmed);
    EXPECT_LE(stream().length().get().value_or(0), 1000U + 100U) << "the limit and one node of the server's tree";
    EXPECT_LT(memory_of(kKey), 1'000'000);
  }

  /// Adds jobs with 10 KB of data, and runs what is there: every `one_in`-th fails for good with 10 KB of error text, the others have 10 KB of
  /// results. Looks at the queue's log until all have ended; how often.
  std::size_t run_failing(int count, int one_in) {
    constexpr std::string_view kLog = "emq:{q}:log";
    const Queue jobs = client().queue("q");
    std::atomic<int> begun = 0;
    WorkerOptions options;
    options.concurrency = 4;
    options.max_attempts = 1;
    auto worker = Worker::start(
        jobs,
        [&](Job&) -> Outcome {
          if (++begun % one_in == 0)
            throw std::runtime_error(std::string(10'240, 'e'));
          return Done(std::string(10'240, 'r'));
        },
        options);
    EXPECT_TRUE(worker);
    std::size_t looks = 0;
    const auto look = [&] {
      // Beside a node of the server's tree, a call may add a hundred that it settles and a hundred that it claims.
      EXPECT_LE(raw("XLEN", kLog).as_integer().value_or(0), 1000 + 100 + 2 * 100);
      EXPECT_LT(memory_of(kLog), 1'000'000);
      ++looks;
    };
    const std::string data(10'240, 'd');
    for (int i = 0; i < count; ++i) {
      EXPECT_TRUE(jobs.enqueue(data).get());
      if (i % 50 == 0)
        look();
    }
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    for (bool over = false; !over && std::chrono::steady_clock::now() < until;) {
      const auto counts = jobs.counts().get();
      over = counts && counts->pending == 0 && counts->active == 0;
      look();
      std::this_thread::sleep_for(5ms);
    }
    worker->stop();
    look();
    return looks;
  }
};

TEST_F(BusBounds, EventsCarryNoPayloadAndTheirStreamStaysSmall) { run_jobs(2'000); }

// The log of a queue is the product's own stream of events. Half of the jobs fail with long errors; the log is looked at while they run.
TEST_F(BusBounds, TheLogOfAQueueCarriesNoPayloadAndStaysSmallWhileJobsRun) {
  constexpr int kJobs = 2'000;
  const EventLog log(client(), "q");
  ASSERT_TRUE(log.turn_on({.most = 1000, .age = {}, .claims = true, .deadline = {}}).get());
  EXPECT_GT(run_failing(kJobs, 2), 0U);
  const LogInfo info = log.info().get().value();
  EXPECT_GE(info.added, kJobs * 3U) << "added, claimed, ended";
  EXPECT_EQ(info.lost, 0U);
  const LogPage page = log.read(LogCursor::beginning(), {.count = 1000, .until = {}, .deadline = {}}).get().value();
  ASSERT_EQ(page.entries.size(), 1000U);
  for (const LogEntry& entry : page.entries) {
    for (const auto& [name, value] : entry.extra) {
      ASSERT_LE(value.size(), 512U) << name;
      ASSERT_TRUE(value.find("ddd") == std::string::npos && value.find("rrr") == std::string::npos) << name;
    }
  }
}

// The most that it can hold: each entry the end of a job that has failed with a long error.
TEST_F(BusBounds, TheLogOfAQueueStaysSmallWhenEveryJobFails) {
  constexpr int kJobs = 1'500;
  const Queue jobs = client().queue("q");
  for (int i = 0; i < kJobs; ++i)
    ASSERT_TRUE(jobs.enqueue("x").get());
  const EventLog log(client(), "q");
  ASSERT_TRUE(log.turn_on({.most = 1000, .age = {}, .claims = false, .deadline = {}}).get());
  EXPECT_GT(run_failing(0, 1), 0U);
  const LogPage page = log.read(LogCursor::beginning(), {.count = 1000, .until = {}, .deadline = {}}).get().value();
  ASSERT_EQ(page.entries.size(), 1000U);
  std::size_t dead = 0;
  for (const LogEntry& entry : page.entries) {
    if (entry.event == "handed_back")
      continue;  // fetched ahead by a slow worker, and no thread came to it in time
    ASSERT_EQ(entry.event, "dead");
    ASSERT_EQ(entry.find("error")->size(), 512U);
    ++dead;
  }
  EXPECT_GE(dead, 500U);
}

// Without an exact trim: the length stays within the limit and a node, however fast the writer, and not 10,000 an attempt.
TEST_F(BusBounds, AnApproximateTrimKeepsUpWithAFastWriter) {
  const std::string value(100, 'v');
  for (int round = 0; round < 4; ++round) {
    std::vector<Reply<EventId>> sent;
    for (int i = 0; i < 15'000; ++i) {
      const One one(value);
      sent.push_back(stream().append(one.fields()));
    }
    for (auto& one : sent)
      ASSERT_TRUE(one.get());
    ASSERT_TRUE(stream().trim_to(1000, Trim::approximate).get());
    EXPECT_LE(stream().length().get().value_or(0), 1100U);
  }
  EXPECT_LT(memory_of(kKey), 1'000'000);
}

// Case 39 as it stands: 100,000 jobs.
using LongRunBusBounds = BusBounds;
TEST_F(LongRunBusBounds, AHundredThousandJobsWithTenKilobytesEach) { run_jobs(100'000); }

}  // namespace
}  // namespace echomq::test
