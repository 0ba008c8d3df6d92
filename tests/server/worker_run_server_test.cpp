// What a handler sees, and what each way of ending a run does to the job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

class WorkerRun : public WorkerTest {};

TEST_F(WorkerRun, ServesFlatAndLaneJobsAndShowsThemToTheHandler) {
  const LaneId tenant = lane();
  std::mutex mutex;
  std::vector<std::string> seen;
  const JobId flat = enqueue("flat");
  const JobId laned = enqueue("laned", {.lane = tenant});
  Worker worker = start([&](Job& job) {
    const std::lock_guard lock(mutex);
    seen.push_back(std::string(job.payload()) + " " + std::to_string(job.attempt()) + " " +
                   std::string(job.queue().text()) + " " + (job.lane() ? std::string(job.lane()->text()) : "none"));
    EXPECT_EQ(job.id(), job.payload() == "flat" ? flat : laned);
    EXPECT_FALSE(job.stop_token().stop_requested());
    return Done();
  });
  ASSERT_TRUE(eventually([&] { return counts().completed == 2; }));
  EXPECT_THAT(seen, UnorderedElementsAre("flat 1 work none", "laned 1 work " + std::string(tenant.text())));
  EXPECT_EQ(state(flat), JobState::absent);
  EXPECT_TRUE(eventually([&] { return worker.stats().completed == 2; }));
  EXPECT_EQ(worker.stats().claimed, 2U);
}

TEST_F(WorkerRun, BinaryPayloadsArriveByteForByte) {
  const std::string payload("\0\r\n\xff{}", 6);
  std::string seen;
  enqueue(payload);
  Worker worker = start([&](Job& job) {
    seen = job.payload();
    return Done();
  });
  ASSERT_TRUE(eventually([&] { return counts().completed == 1; }));
  EXPECT_TRUE(worker.stop().finished <= 1);
  EXPECT_EQ(seen, payload);
}

TEST_F(WorkerRun, ProgressAndLogReachTheRowWhileTheHandlerRuns) {
  std::atomic<bool> told{false}, go{false};
  const JobId id = enqueue();
  Worker worker = start([&](Job& job) {
    EXPECT_TRUE(job.progress("50%"));
    EXPECT_TRUE(job.log("first"));
    EXPECT_TRUE(job.log("second", 1));
    told = true;
    while (!go)
      std::this_thread::sleep_for(1ms);
    return Done();
  });
  ASSERT_TRUE(eventually([&] { return told.load(); }));
  EXPECT_EQ(field(id, "progress"), "50%");
  EXPECT_THAT(queue_->logs(id).get().value(), ElementsAre("second"));
  go = true;
  EXPECT_TRUE(eventually([&] { return counts().completed == 1; }));
}

TEST_F(WorkerRun, ARetryRunsAgainAfterItsDelayAndTheTokenRises) {
  std::vector<std::uint64_t> attempts;
  enqueue();
  Worker worker = start([&](Job& job) {
    attempts.push_back(job.attempt());
    return job.attempt() < 3 ? Retry("not yet", 20ms) : Done();
  });
  ASSERT_TRUE(eventually([&] { return counts().completed == 1; }));
  worker.stop();
  EXPECT_THAT(attempts, ElementsAre(1, 2, 3));
  EXPECT_EQ(worker.stats().retried, 2U);
  EXPECT_EQ(counts().failed, 0);
}

TEST_F(WorkerRun, WithoutADelayOfItsOwnARetryWaitsAsTheBackoffSays) {
  WorkerOptions options = quick_options();
  options.backoff = Backoff::custom([](std::uint64_t attempt) { return Milliseconds{attempt == 1 ? 300 : 60'000}; });
  std::vector<std::chrono::steady_clock::time_point> runs;
  std::atomic<int> count{0};
  const JobId id = enqueue();
  Worker worker = start(
      [&](Job&) {
        runs.push_back(std::chrono::steady_clock::now());
        ++count;
        return Retry("again");
      },
      options);
  ASSERT_TRUE(eventually([&] { return count == 2; }));
  ASSERT_TRUE(eventually([&] { return state(id) == JobState::scheduled; }));
  worker.stop();
  EXPECT_GE(runs[1] - runs[0], 299ms);
  EXPECT_LE(runs[1] - runs[0], 10s) << "long before a beat";
}

TEST_F(WorkerRun, AnExceptionIsARetryWithItsMessageAndTheLastOneIsDeath) {
  WorkerOptions options = quick_options();
  options.max_attempts = 2;
  const JobId id = enqueue();
  Worker worker =
      start([](Job& job) -> Outcome { throw std::runtime_error("boom " + std::to_string(job.attempt())); }, options);
  ASSERT_TRUE(eventually([&] { return state(id) == JobState::dead; }));
  EXPECT_EQ(field(id, "last_error"), "boom 2");
  EXPECT_EQ(counts().failed, 1);
  ASSERT_TRUE(eventually([&] { return worker.stats().dead == 1; }));
  EXPECT_EQ(worker.stats().retried, 1U);
}

TEST_F(WorkerRun, DeadEndsTheJobAtItsFirstAttempt) {
  const JobId id = enqueue();
  Worker worker = start([](Job&) { return Dead("malformed"); });
  ASSERT_TRUE(eventually([&] { return state(id) == JobState::dead; }));
  EXPECT_EQ(field(id, "last_error"), "malformed");
  EXPECT_EQ(field(id, "attempts"), "1");
}

// A peer that completes the job keeps nothing of it: who waited was told of the death before.
TEST_F(WorkerRun, AKeptDeathIsForgottenWithTheJobsNextChance) {
  const JobId id = enqueue("x", {.run = {.keep = 1min}});
  {
    Worker worker = start([](Job&) { return Dead("malformed"); });
    ASSERT_TRUE(eventually([&] { return state(id) == JobState::dead; }));
  }
  EXPECT_EQ(queue_->wait(id, {.timeout = 1s}).get().value().how, EndedAs::dead);
  ASSERT_TRUE(queue_->reprocess(id).get());
  const auto job = queue_->claim().get().value();
  ASSERT_TRUE(job);
  ASSERT_TRUE(queue_->complete(id, job->token).get());
  EXPECT_EQ(queue_->wait(id, {.timeout = 1s}).get().value().how, EndedAs::gone);
}

TEST_F(WorkerRun, DelayPutsTheJobOffWithoutCallingItAFailure) {
  std::vector<std::chrono::steady_clock::time_point> runs;
  const JobId id = enqueue();
  Worker worker = start([&](Job&) {
    runs.push_back(std::chrono::steady_clock::now());
    return runs.size() == 1 ? Delay(200ms) : Done();
  });
  ASSERT_TRUE(eventually([&] { return counts().completed == 1; }));
  worker.stop();
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_GE(runs[1] - runs[0], 199ms);
  EXPECT_LE(runs[1] - runs[0], 10s) << "long before a beat";
  EXPECT_EQ(worker.stats().delayed, 1U);
  EXPECT_EQ(counts().failed, 0);
  EXPECT_EQ(state(id), JobState::absent);
}

TEST_F(WorkerRun, AHandBackRunsAgainAtOnceAndIsNotHeldAgainstTheMaximum) {
  WorkerOptions options = quick_options();
  options.max_attempts = 2;
  std::atomic<int> runs{0};
  const JobId id = enqueue();
  Worker worker = start(
      [&](Job&) {
        // Five hand-backs, then one failure: the second failure would be death.
        const int run = ++runs;
        return run <= 5 ? HandBack() : run == 6 ? Retry("first failure", 0ms) : Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return counts().completed == 1; }));
  EXPECT_EQ(runs, 7);
  EXPECT_EQ(counts().dead, 0);
  ASSERT_TRUE(eventually([&] { return worker.stats().completed == 1; }));
  EXPECT_EQ(worker.stats().handed_back, 5U);
  EXPECT_EQ(state(id), JobState::absent);
}

// Others have the time to take what this worker cannot run.
TEST_F(WorkerRun, AHandlerThatDoesNothingButHandBackIsNoHotLoop) {
  std::atomic<int> runs{0};
  std::atomic<bool> go{false};
  enqueue_many(2);
  Worker worker = start(
      [&](Job&) {
        ++runs;
        return go ? Done() : HandBack();
      },
      quick_options(2));
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(eventually([&] { return runs > 0; }));
  std::this_thread::sleep_for(1s);
  const int then = runs;
  const auto took = since(begin);
  // Both jobs every 50 ms, and what it takes to notice.
  EXPECT_LT(then, 20 + 4 * (took / 50ms));
  EXPECT_GT(then, 4);
  go = true;
  EXPECT_TRUE(eventually([&] { return counts().completed == 2; }));
}

TEST_F(WorkerRun, EventsThatTheServerRefusesAreCounted) {
  ASSERT_TRUE(client_->command("ACL", "SETUSER", "default", "-publish").get());
  enqueue();
  Worker worker = start([](Job&) { return Done(); });
  EXPECT_TRUE(eventually([&] { return worker.stats().events_failed == 1; }));
  EXPECT_EQ(worker.stats().events_dropped, 0U);
  EXPECT_EQ(counts().completed, 1);
}

TEST_F(WorkerRun, ALongErrorKeepsItsLastBytesOnAUtf8Boundary) {
  WorkerOptions options = quick_options();
  options.max_error_bytes = 100;
  const JobId id = enqueue();
  Worker worker = start([](Job&) { return Dead(std::string(20'000, 'a') + "é" + std::string(99, 'b')); }, options);
  ASSERT_TRUE(eventually([&] { return state(id) == JobState::dead; }));
  EXPECT_EQ(field(id, "last_error"), std::string(99, 'b'));
}

TEST_F(WorkerRun, TheJobsRowStaysSmallAfterManyLongErrors) {
  WorkerOptions options = quick_options();
  options.max_attempts = 25;
  options.backoff = Backoff::fixed(1ms);
  const JobId id = enqueue();
  Worker worker = start([](Job&) -> Outcome { throw std::runtime_error(std::string(20'000, 'e')); }, options);
  ASSERT_TRUE(eventually([&] { return state(id) == JobState::dead; }, 20s));
  std::size_t bytes = 0;
  const auto row = queue_->job(id).get().value();
  for (const auto& [name, value] : row->fields)
    bytes += name.size() + value.size();
  EXPECT_LT(bytes, 8192U);
}

TEST_F(WorkerRun, OnSettledTellsEachVerdictOnce) {
  std::mutex mutex;
  std::vector<std::string> verdicts;
  WorkerOptions options = quick_options();
  options.max_attempts = 1;
  options.on_settled = [&](const Job& job, std::string_view verdict) {
    const std::lock_guard lock(mutex);
    verdicts.push_back(std::string(job.payload()) + "=" + std::string(verdict));
  };
  for (const char* payload : {"done", "dead", "fail", "delay"})
    enqueue(payload);
  Worker worker = start(
      [](Job& job) {
        if (job.payload() == "dead")
          return Dead("x");
        if (job.payload() == "fail")
          return Retry("x");
        if (job.payload() == "delay")
          return Delay(1h);
        return Done("result");
      },
      options);
  ASSERT_TRUE(eventually([&] {
    const std::lock_guard lock(mutex);
    return verdicts.size() == 4;
  }));
  worker.stop();
  EXPECT_THAT(verdicts, UnorderedElementsAre("done=done", "dead=dead", "fail=dead", "delay=delay"));
}

TEST_F(WorkerRun, ACallbackThatThrowsIsCountedAndTheWorkerGoesOn) {
  WorkerOptions options = quick_options();
  options.on_settled = [](const Job&, std::string_view) { throw std::runtime_error("callback"); };
  options.backoff = Backoff::custom([](std::uint64_t) -> Milliseconds { throw std::runtime_error("backoff"); });
  enqueue("a");
  enqueue("b");
  Worker worker = start([](Job& job) { return job.payload() == "a" ? Retry("x") : Done(); }, options);
  ASSERT_TRUE(eventually([&] { return worker.stats().completed == 1 && worker.stats().retried == 1; }));
  // A settle is counted before its callback is called.
  EXPECT_TRUE(eventually([&] { return worker.stats().errors >= 3; }));
  worker.stop();
  EXPECT_EQ(worker.stats().errors, 3U);
}

TEST_F(WorkerRun, EventsAreToldAfterTheServerHasAcceptedTheSettle) {
  std::mutex mutex;
  std::vector<std::string> events;
  auto subscription =
      client_
          ->subscribe("emq:{work}:events", {.on_message =
                                                [&](std::string_view, std::string_view payload) {
                                                  const std::lock_guard lock(mutex);
                                                  const std::size_t at = payload.find("\"event\":\"") + 9;
                                                  events.emplace_back(payload.substr(at, payload.find('"', at) - at));
                                                },
                                            .on_gap = {}})
          .get();
  ASSERT_TRUE(subscription) << subscription.error().message();
  for (const char* payload : {"done", "fail", "delay", "back"})
    enqueue(payload);
  std::atomic<bool> back{false};
  Worker worker = start([&](Job& job) {
    if (job.payload() == "fail")
      return Retry("x", 1h);
    if (job.payload() == "delay")
      return Delay(1h);
    if (job.payload() == "back" && !back.exchange(true))
      return HandBack();
    return Done();
  });
  ASSERT_TRUE(eventually([&] {
    const std::lock_guard lock(mutex);
    return events.size() >= 4;
  }));
  worker.stop();
  std::this_thread::sleep_for(20ms);
  const std::lock_guard lock(mutex);
  EXPECT_THAT(events, UnorderedElementsAre("completed", "failed", "delayed", "completed"));
}

TEST_F(WorkerRun, EventsCanBeTurnedOff) {
  WorkerOptions options = quick_options();
  options.events = WorkerEvents::nothing;
  enqueue();
  Worker worker = start([](Job&) { return Done(); }, options);
  ASSERT_TRUE(eventually([&] { return counts().completed == 1; }));
  worker.stop();
  const std::string stats(client_->command("INFO", "commandstats").get().value().as_text().value());
  EXPECT_EQ(stats.find("cmdstat_publish"), std::string::npos);
}

TEST_F(WorkerRun, OptionsOutOfRangeAreRefusedByName) {
  const auto refused = [&](const std::function<void(WorkerOptions&)>& change) {
    WorkerOptions options;
    change(options);
    const auto worker = Worker::start(*queue_, [](Job&) { return Done(); }, options);
    return worker ? std::string("accepted") : worker.error().text;
  };
  EXPECT_NE(refused([](WorkerOptions& o) { o.concurrency = 0; }).find("concurrency"), std::string::npos);
  EXPECT_NE(refused([](WorkerOptions& o) { o.concurrency = 1025; }).find("1025"), std::string::npos);
  EXPECT_NE(refused([](WorkerOptions& o) { o.lease = 99ms; }).find("lease"), std::string::npos);
  EXPECT_NE(refused([](WorkerOptions& o) { o.lease = Milliseconds::max(); }).find("lease"), std::string::npos);
  EXPECT_NE(refused([](WorkerOptions& o) { o.beat = 0ms; }).find("beat"), std::string::npos);
  EXPECT_NE(refused([](WorkerOptions& o) { o.sweep_period = -1s; }).find("sweep_period"), std::string::npos);
  EXPECT_NE(refused([](WorkerOptions& o) { o.max_stalled = 0; }).find("max_stalled"), std::string::npos);
  EXPECT_NE(refused([](WorkerOptions& o) { o.max_attempts = 0; }).find("max_attempts"), std::string::npos);
  EXPECT_NE(refused([](WorkerOptions& o) { o.backoff = Backoff::fixed(-1ms); }).find("backoff"), std::string::npos);
  EXPECT_NE(refused([](WorkerOptions& o) { o.stop_grace = -1ms; }).find("stop_grace"), std::string::npos);
  EXPECT_FALSE(Worker::start(*queue_, nullptr));
  client_->close();
  const auto closed = Worker::start(*queue_, [](Job&) { return Done(); });
  ASSERT_FALSE(closed);
  EXPECT_TRUE(closed.error().is(Errc::client_closed));
}

}  // namespace
}  // namespace echomq::test
