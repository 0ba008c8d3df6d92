// The worker of batches: when a batch is handed out and of what, how its members end, leases, and stopping.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "echomq/batch.hpp"
#include "echomq/events.hpp"
#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

[[nodiscard]] BatchVerdicts all_done(std::span<Job> jobs) {
  BatchVerdicts verdicts;
  for (const Job& job : jobs)
    verdicts.emplace(job.id(), Done());
  return verdicts;
}

[[nodiscard]] std::vector<JobId> ids_of(std::span<Job> jobs) {
  std::vector<JobId> ids;
  for (const Job& job : jobs)
    ids.push_back(job.id());
  return ids;
}

class BatchWorkerTest : public WorkerTest {
 protected:
  /// What the handler was called with, and what was reported. Shared with the handlers, which may outlive a test that fails.
  struct Seen {
    std::mutex mutex;
    std::vector<std::vector<JobId>> batches;
    std::vector<BatchReport> reports;

    void add(std::span<Job> jobs) {
      const std::lock_guard lock(mutex);
      batches.push_back(ids_of(jobs));
    }
    [[nodiscard]] std::vector<std::vector<JobId>> all() {
      const std::lock_guard lock(mutex);
      return batches;
    }
    [[nodiscard]] std::size_t count() { return all().size(); }
    [[nodiscard]] std::vector<BatchReport> reported() {
      const std::lock_guard lock(mutex);
      return reports;
    }
  };
  const std::shared_ptr<Seen> seen_ = std::make_shared<Seen>();

  [[nodiscard]] BatchWorkerOptions options(std::uint32_t min_size, Milliseconds timeout, std::uint32_t max_size = 100) {
    BatchWorkerOptions out;
    out.shape = {.min_size = min_size, .timeout = timeout};
    out.max_size = max_size;
    out.worker = quick_options();
    out.on_batch = [seen = seen_](const BatchReport& report) {
      const std::lock_guard lock(seen->mutex);
      seen->reports.push_back(report);
    };
    return out;
  }
  [[nodiscard]] static BatchWorker start_on(const Queue& queue, BatchHandler handler, BatchWorkerOptions options) {
    auto worker = BatchWorker::start(queue, std::move(handler), std::move(options));
    if (!worker)
      throw std::runtime_error(worker.error().message());
    return *std::move(worker);
  }
  [[nodiscard]] BatchWorker start_batches(BatchHandler handler, BatchWorkerOptions options) {
    return start_on(*queue_, std::move(handler), std::move(options));
  }
  /// Notes the batch, and is done with all of it.
  [[nodiscard]] BatchHandler noting() {
    return [seen = seen_](std::span<Job> jobs) {
      seen->add(jobs);
      return all_done(jobs);
    };
  }
  void enqueue_lane(LaneId lane, int count) {
    for (int i = 0; i < count; ++i)
      enqueue("x", {.lane = lane});
  }
};

TEST_F(BatchWorkerTest, TheLeastSizeIsWaitedForAndThenNoLonger) {
  BatchWorker worker = start_batches(noting(), options(3, 60s));
  const JobId a = enqueue();
  const JobId b = enqueue();
  ASSERT_TRUE(eventually([&] { return worker.stats().jobs.running == 2; }));
  std::this_thread::sleep_for(200ms);
  EXPECT_EQ(seen_->count(), 0U);
  const auto third = std::chrono::steady_clock::now();
  const JobId c = enqueue();
  ASSERT_TRUE(eventually([&] { return seen_->count() == 1; }));
  EXPECT_LT(since(third), bound(1s));
  EXPECT_THAT(seen_->all()[0], ElementsAre(a, b, c));
  ASSERT_TRUE(eventually([&] { return seen_->reported().size() == 1; }));
  EXPECT_THAT(seen_->reported()[0].completed, ElementsAre(a, b, c));
  EXPECT_EQ(counts().completed, 3);
  EXPECT_EQ(counts().active, 0);
  EXPECT_EQ(worker.stats().batches, 1U);
}

TEST_F(BatchWorkerTest, AfterTheTimeOutFewerAreEnough) {
  BatchWorker worker = start_batches(noting(), options(10, 300ms));
  std::this_thread::sleep_for(500ms);  // without a job no time runs
  const auto first = std::chrono::steady_clock::now();
  // Both at one moment, however long this thread is kept waiting.
  const std::vector<NewJob> both(2, NewJob{.payload = "x", .id = {}});
  const auto admitted = queue_->enqueue_many(both).get();
  ASSERT_TRUE(admitted) << admitted.error().message();
  const JobId a = admitted->at(0).value().id;
  const JobId b = admitted->at(1).value().id;
  ASSERT_TRUE(eventually([&] { return seen_->count() == 1; }));
  EXPECT_GE(since(first), 290ms);
  EXPECT_LT(since(first), bound(2s));
  EXPECT_THAT(seen_->all()[0], ElementsAre(a, b));
  EXPECT_TRUE(eventually([&] { return counts().completed == 2; }));
}

TEST_F(BatchWorkerTest, WhatWaitsFillsABatchUpToItsGreatestSize) {
  enqueue_many(25);
  BatchWorker worker = start_batches(noting(), options(2, 200ms, 10));
  ASSERT_TRUE(eventually([&] { return counts().completed == 25; }));
  std::vector<std::size_t> sizes;
  for (const auto& batch : seen_->all())
    sizes.push_back(batch.size());
  EXPECT_THAT(sizes, ElementsAre(10, 10, 5));
}

TEST_F(BatchWorkerTest, ABatchLargerThanAUsualExchangeIsOneCallOfTheHandler) {
  enqueue_many(700);
  BatchWorker worker = start_batches(noting(), options(700, 60s, 1000));
  ASSERT_TRUE(eventually([&] { return counts().completed == 700; }));
  EXPECT_EQ(seen_->count(), 1U);
}

TEST_F(BatchWorkerTest, EveryKindOfVerdictEndsItsMemberAndIsReported) {
  std::vector<JobId> ids;
  for (int i = 0; i < 7; ++i)
    ids.push_back(enqueue(std::to_string(i)));
  BatchWorkerOptions how = options(7, 60s);
  how.worker.backoff = Backoff::fixed(1h);
  how.worker.keep_results = 1min;
  std::atomic<int> calls{0};
  std::optional<BatchWorker> worker = start_batches(
      [&](std::span<Job> jobs) {
        if (++calls > 1)
          return BatchVerdicts();  // what was handed back: again and again, without a verdict
        BatchVerdicts verdicts;
        verdicts.emplace(jobs[0].id(), Done());
        verdicts.emplace(jobs[1].id(), Done("result"));
        verdicts.emplace(jobs[2].id(), Retry("not now"));
        verdicts.emplace(jobs[3].id(), Delay(1h));
        verdicts.emplace(jobs[4].id(), Dead("never"));
        verdicts.emplace(jobs[5].id(), HandBack());
        verdicts.emplace(JobId(client_->mint("JOB").value()), Dead("nobody's"));
        return verdicts;
      },
      how);
  ASSERT_TRUE(eventually([&] { return seen_->reported().size() == 1; }));
  worker->stop();
  const BatchReport report = seen_->reported()[0];
  EXPECT_THAT(report.completed, ElementsAre(ids[0], ids[1]));
  EXPECT_THAT(report.retried, ElementsAre(ids[2], ids[5], ids[6]));
  EXPECT_THAT(report.delayed, ElementsAre(ids[3]));
  EXPECT_THAT(report.dead, ElementsAre(ids[4]));
  EXPECT_EQ(state(ids[2]), JobState::scheduled);
  EXPECT_EQ(field(ids[2], "last_error"), "not now");
  EXPECT_EQ(state(ids[3]), JobState::scheduled);
  EXPECT_EQ(field(ids[3], "last_error"), "");
  EXPECT_EQ(state(ids[4]), JobState::dead);
  EXPECT_EQ(field(ids[4], "last_error"), "never");
  EXPECT_EQ(state(ids[5]), JobState::pending);
  EXPECT_EQ(state(ids[6]), JobState::scheduled);
  EXPECT_EQ(field(ids[6], "last_error"), "missing verdict");
  const WorkerStats stats = worker->stats().jobs;
  EXPECT_EQ(stats.completed, 2U);
  EXPECT_EQ(stats.retried, 2U);
  EXPECT_EQ(stats.delayed, 1U);
  EXPECT_EQ(stats.dead, 1U);
  EXPECT_EQ(counts().active, 0);
  EXPECT_EQ(integer("EXISTS", "emq:{work}:result:" + std::string(ids[1].text())), 1);
}

TEST_F(BatchWorkerTest, AnExceptionIsARetryOfAllAndTheMaximumEndsThem) {
  BatchWorkerOptions how = options(3, 50ms);
  how.worker.max_attempts = 2;
  enqueue_many(3);
  std::atomic<int> calls{0};
  BatchWorker worker = start_batches(
      [&](std::span<Job>) -> BatchVerdicts {
        ++calls;
        throw std::runtime_error("no disk");
      },
      how);
  ASSERT_TRUE(eventually([&] { return counts().dead == 3; }));
  EXPECT_GE(calls, 2);
  ASSERT_TRUE(eventually([&] { return seen_->reported().size() >= 2; }));  // told after the answer
  const auto reports = seen_->reported();
  EXPECT_THAT(reports[0].retried, SizeIs(3));
  EXPECT_EQ(field(reports[0].retried[0], "last_error"), "no disk");
  EXPECT_TRUE(eventually([&] { return worker.stats().jobs.retried == 3; }));
}

TEST_F(BatchWorkerTest, ABatchOfLanesIsOfOneLaneAndLaneJobsAloneAreTaken) {
  std::vector<LaneId> lanes;
  std::map<JobId, LaneId> lane_of;
  for (int lane_number = 0; lane_number < 5; ++lane_number)
    lanes.push_back(lane());
  for (int i = 0; i < 40; ++i) {
    for (const LaneId& one : lanes)
      lane_of.emplace(enqueue("x", {.lane = one}), one);
  }
  const JobId flat = enqueue();
  BatchWorkerOptions how = options(10, 100ms, 20);
  how.source = BatchSource::lanes;
  how.worker.concurrency = 3;
  std::atomic<int> mixed{0};
  BatchWorker worker = start_batches(
      [&, seen = seen_](std::span<Job> jobs) {
        seen->add(jobs);
        for (const Job& job : jobs)
          mixed += job.lane() && job.lane() == jobs[0].lane() ? 0 : 1;
        return all_done(jobs);
      },
      how);
  ASSERT_TRUE(eventually([&] { return counts().completed == 200; }));
  EXPECT_EQ(mixed, 0);
  // Turns are as large as a batch, so most batches are full.
  EXPECT_LE(seen_->count(), 20U);
  std::set<JobId> once;
  for (const auto& batch : seen_->all()) {
    EXPECT_LE(batch.size(), 20U);
    for (const JobId& id : batch) {
      EXPECT_TRUE(once.insert(id).second);
      EXPECT_EQ(lane_of.at(id), lane_of.at(batch[0]));
    }
  }
  EXPECT_EQ(once.size(), 200U);
  EXPECT_EQ(state(flat), JobState::pending);
  EXPECT_EQ(integer("EXISTS", "emq:{work}:gactive"), 0);
}

TEST_F(BatchWorkerTest, ManySmallLanesEachGetABatchOfTheirOwnAfterTheTimeOut) {
  BatchWorkerOptions how = options(10, 200ms, 20);
  how.source = BatchSource::lanes;
  std::map<JobId, LaneId> lane_of;
  for (int i = 0; i < 12; ++i) {
    const LaneId one = lane();
    for (int j = 0; j < 3; ++j)
      lane_of.emplace(enqueue("x", {.lane = one}), one);
  }
  BatchWorker worker = start_batches(noting(), how);
  ASSERT_TRUE(eventually([&] { return counts().completed == 36; }));
  // The last lane of a claim may be cut off by the room that is left, and then has two.
  EXPECT_GE(seen_->count(), 12U);
  EXPECT_LE(seen_->count(), 14U);
  for (const auto& batch : seen_->all()) {
    EXPECT_LE(batch.size(), 3U);
    for (const JobId& id : batch)
      EXPECT_EQ(lane_of.at(id), lane_of.at(batch[0]));
  }
}

TEST_F(BatchWorkerTest, TheCeilingOfALaneIsKeptAndItsNextBatchFollows) {
  const LaneId tenant = lane();
  ASSERT_TRUE(queue_->limit_lane(tenant, 4).get());
  enqueue_lane(tenant, 10);
  BatchWorkerOptions how = options(4, 200ms, 20);
  how.source = BatchSource::lanes;
  BatchWorker worker = start_batches(noting(), how);
  ASSERT_TRUE(eventually([&] { return counts().completed == 10; }));
  std::vector<std::size_t> sizes;
  for (const auto& batch : seen_->all())
    sizes.push_back(batch.size());
  EXPECT_THAT(sizes, ElementsAre(4, 4, 2));
}

TEST_F(BatchWorkerTest, LeasesRenewWhileABatchGathersForLongerThanALease) {
  BatchWorkerOptions how = options(10, 3500ms);
  how.worker.lease = 1s;
  BatchWorker worker = start_batches(noting(), how);
  // Whoever sweeps finds no lease that is over.
  WorkerOptions sweeping = quick_options();
  sweeping.sweep_period = 20ms;
  const JobId a = enqueue();
  ASSERT_TRUE(eventually([&] { return worker.stats().jobs.running == 1; }));
  std::atomic<int> stolen{0};
  Worker other = start(
      [&](Job&) {
        ++stolen;
        return Done();
      },
      sweeping);
  ASSERT_TRUE(eventually([&] { return seen_->count() == 1; }));
  EXPECT_THAT(seen_->all()[0], ElementsAre(a));
  ASSERT_TRUE(eventually([&] { return counts().completed == 1; }));
  EXPECT_EQ(stolen, 0);
  EXPECT_EQ(worker.stats().jobs.leases_lost, 0U);
  EXPECT_TRUE(eventually([&] { return worker.stats().jobs.completed == 1; }));  // the answer comes after the deed
}

TEST_F(BatchWorkerTest, LeasesRenewWhileAHandlerRunsForThreeOfThem) {
  BatchWorkerOptions how = options(5, 60s);
  how.worker.lease = 1s;
  how.worker.sweep_period = 20ms;
  enqueue_many(5);
  BatchWorker worker = start_batches(
      [](std::span<Job> jobs) {
        std::this_thread::sleep_for(3 * 1s);
        return all_done(jobs);
      },
      how);
  ASSERT_TRUE(eventually([&] { return counts().completed == 5; }));
  EXPECT_EQ(worker.stats().jobs.leases_lost, 0U);
  EXPECT_EQ(worker.stats().jobs.claimed, 5U);
}

TEST_F(BatchWorkerTest, StoppingHandsBackWhatGathersAtOnceForAnotherWorker) {
  BatchWorkerOptions how = options(10, 60s);
  how.worker.lease = 60s;
  BatchWorker worker = start_batches(noting(), how);
  enqueue_many(4);
  ASSERT_TRUE(eventually([&] { return worker.stats().jobs.running == 4; }));
  const auto begun = std::chrono::steady_clock::now();
  const StopReport report = worker.stop(30s);
  EXPECT_LT(since(begun), bound(1s));
  EXPECT_EQ(report.handed_back, 4U);
  EXPECT_EQ(report.finished, 0U);
  EXPECT_EQ(report.unsettled, 0U);
  EXPECT_EQ(seen_->count(), 0U);
  EXPECT_EQ(counts().pending, 4);
  EXPECT_EQ(counts().active, 0);
  BatchWorker next = start_batches(noting(), options(4, 60s));
  EXPECT_TRUE(eventually([&] { return counts().completed == 4; }));
}

TEST_F(BatchWorkerTest, ABatchThatRunsIsFinishedWhileStopping) {
  BatchWorkerOptions how = options(3, 60s);
  how.worker.lease = 1s;
  enqueue_many(3);
  std::atomic<bool> begun{false};
  BatchWorker worker = start_batches(
      [&](std::span<Job> jobs) {
        begun = true;
        std::this_thread::sleep_for(2s);
        EXPECT_FALSE(jobs[0].stop_token().stop_requested());
        return all_done(jobs);
      },
      how);
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  const StopReport report = worker.stop(10s);
  EXPECT_EQ(report.finished, 3U);
  EXPECT_EQ(report.handed_back, 0U);
  EXPECT_EQ(report.leaked, 0U);
  EXPECT_EQ(counts().completed, 3);
  ASSERT_THAT(seen_->reported(), SizeIs(1));
  EXPECT_THAT(seen_->reported()[0].completed, SizeIs(3));
}

TEST_F(BatchWorkerTest, AtTheStopDeadlineARunningBatchGoesBackAndItsTokensStop) {
  BatchWorkerOptions how = options(3, 60s);
  how.worker.lease = 60s;
  how.worker.max_attempts = 1;
  enqueue_many(3);
  struct Run {
    std::atomic<bool> begun{false};
    std::atomic<int> stopped{0};
  };
  const auto run = std::make_shared<Run>();
  BatchWorker worker = start_batches(
      [run](std::span<Job> jobs) {
        run->begun = true;
        for (const Job& job : jobs) {
          while (!job.stop_token().stop_requested())
            std::this_thread::sleep_for(1ms);
          run->stopped += job.stop_cause() == StopCause::worker_stopped ? 1 : 0;
        }
        return all_done(jobs);
      },
      how);
  ASSERT_TRUE(eventually([&] { return run->begun.load(); }));
  const StopReport report = worker.stop(50ms);
  EXPECT_EQ(report.handed_back, 3U);
  EXPECT_EQ(report.unsettled, 0U);
  EXPECT_EQ(report.leaked, 0U);
  EXPECT_EQ(run->stopped, 3);
  EXPECT_EQ(counts().pending, 3);
  EXPECT_EQ(counts().completed, 0);
  ASSERT_THAT(seen_->reported(), SizeIs(1));
  EXPECT_THAT(seen_->reported()[0].retried, SizeIs(3));
}

TEST_F(BatchWorkerTest, AHandlerThatNeverReturnsIsLeakedAsOneAndItsJobsGoBack) {
  BatchWorkerOptions how = options(2, 60s);
  how.worker.stop_grace = 50ms;
  enqueue_many(2);
  struct Gate {
    std::atomic<bool> begun{false}, open{false}, left{false};
  };
  auto gate = std::make_shared<Gate>();
  std::optional<BatchWorker> worker = start_batches(
      [gate](std::span<Job> jobs) {
        gate->begun = true;
        while (!gate->open)
          std::this_thread::sleep_for(1ms);
        gate->left = true;
        return all_done(jobs);
      },
      how);
  ASSERT_TRUE(eventually([&] { return gate->begun.load(); }));
  const StopReport report = worker->stop(0ms);
  EXPECT_EQ(report.leaked, 1U);
  EXPECT_EQ(report.handed_back, 2U);
  worker.reset();
  gate->open = true;
  EXPECT_TRUE(eventually([&] { return gate->left.load(); }));
  EXPECT_EQ(counts().pending, 2);
}

TEST_F(BatchWorkerTest, AHandlerThatHangsAfterAllItsJobsAreLostLeavesItsSlot) {
  BatchWorkerOptions how = options(2, 60s, 2);
  how.worker.stop_patience = 100ms;
  struct Gate {
    std::atomic<bool> begun{false}, open{false};
    std::atomic<int> others{0};
  };
  const auto gate = std::make_shared<Gate>();
  const std::vector<JobId> lost = {enqueue(), enqueue()};
  BatchWorker worker = start_batches(
      [gate](std::span<Job> jobs) {
        if (gate->begun.exchange(true)) {
          ++gate->others;
        } else {
          while (!gate->open)
            std::this_thread::sleep_for(1ms);
        }
        return all_done(jobs);
      },
      how);
  ASSERT_TRUE(eventually([&] { return gate->begun.load(); }));
  for (const JobId& id : lost)
    ASSERT_TRUE(queue_->remove(id).get());  // the next renewal says that they are gone
  enqueue_many(2);
  EXPECT_TRUE(eventually([&] { return gate->others == 1; }));
  EXPECT_TRUE(eventually([&] { return worker.stats().jobs.leaked == 1; }));
  gate->open = true;
  EXPECT_TRUE(eventually([&] {
    const WorkerStats stats = worker.stats().jobs;
    return stats.leaked == 0 && stats.settles_refused == 2;
  }));
  EXPECT_EQ(counts().completed, 2);
}

TEST_F(BatchWorkerTest, AMemberThatSomebodyElseHasMeanwhileIsRefusedAndTheOthersAreDone) {
  BatchWorkerOptions how = options(3, 60s);
  how.worker.lease = 60s;
  std::vector<JobId> ids;
  for (int i = 0; i < 3; ++i)
    ids.push_back(enqueue());
  std::atomic<bool> begun{false}, go_on{false};
  BatchWorker worker = start_batches(
      [&](std::span<Job> jobs) {
        begun = true;
        while (!go_on)
          std::this_thread::sleep_for(1ms);
        return all_done(jobs);
      },
      how);
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  // As if its lease had lapsed: another claim raises the token.
  (void)integer("HINCRBY", "emq:{work}:job:" + std::string(ids[1].text()), "attempts", "1");
  go_on = true;
  ASSERT_TRUE(eventually([&] { return seen_->reported().size() == 1; }));
  const BatchReport report = seen_->reported()[0];
  EXPECT_THAT(report.completed, ElementsAre(ids[0], ids[2]));
  EXPECT_THAT(report.retried, ElementsAre(ids[1]));
  EXPECT_EQ(worker.stats().jobs.settles_refused, 1U);
  EXPECT_EQ(state(ids[1]), JobState::active);
}

TEST_F(BatchWorkerTest, AMemberWhoseLeaseIsLostWhileItGathersIsNoMemberAnyMore) {
  BatchWorkerOptions how = options(3, 60s);
  how.worker.lease = 1s;
  BatchWorker worker = start_batches(noting(), how);
  const JobId a = enqueue();
  const JobId b = enqueue();
  ASSERT_TRUE(eventually([&] { return worker.stats().jobs.running == 2; }));
  ASSERT_EQ(integer("DEL", "emq:{work}:job:" + std::string(a.text())), 1);
  ASSERT_EQ(integer("ZREM", "emq:{work}:active", a.text()), 1);
  ASSERT_TRUE(eventually([&] { return worker.stats().jobs.leases_lost == 1; }));
  EXPECT_TRUE(eventually([&] { return worker.stats().jobs.running == 1; }));
  const JobId c = enqueue();
  const JobId d = enqueue();
  ASSERT_TRUE(eventually([&] { return seen_->count() == 1; }));
  EXPECT_THAT(seen_->all()[0], ElementsAre(b, c, d));
}

TEST_F(BatchWorkerTest, CancellingAMemberEndsItAloneWhetherItGathersOrRuns) {
  BatchWorkerOptions how = options(2, 60s);
  std::atomic<bool> begun{false};
  BatchWorker worker = start_batches(
      [&](std::span<Job> jobs) {
        begun = true;
        BatchVerdicts verdicts;
        while (!jobs[1].stop_token().stop_requested())
          std::this_thread::sleep_for(1ms);
        verdicts.emplace(jobs[0].id(), Done());
        verdicts.emplace(jobs[1].id(), Retry("was told to stop"));
        return verdicts;
      },
      how);
  const JobId early = enqueue();
  ASSERT_TRUE(eventually([&] { return worker.stats().jobs.running == 1; }));
  worker.cancel(early);
  ASSERT_TRUE(eventually([&] { return state(early) == JobState::dead; }));
  EXPECT_FALSE(begun);
  const JobId a = enqueue();
  const JobId b = enqueue();
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  ASSERT_TRUE(queue_->cancel(b).get());
  ASSERT_TRUE(eventually([&] { return seen_->reported().size() == 1; }));
  EXPECT_THAT(seen_->reported()[0].completed, ElementsAre(a));
  EXPECT_THAT(seen_->reported()[0].dead, ElementsAre(b));
  EXPECT_EQ(field(b, "last_error"), "cancelled");
}

TEST_F(BatchWorkerTest, AHandlerPastTheTimeOutIsLeakedAndItsSlotIsFree) {
  BatchWorkerOptions how = options(2, 60s);
  how.worker.timeout = 500ms;  // the second batch must not need so long
  how.worker.stop_patience = 50ms;
  how.worker.backoff = Backoff::fixed(1h);
  auto open = std::make_shared<std::atomic<bool>>(false);
  auto calls = std::make_shared<std::atomic<int>>(0);
  BatchWorker worker = start_batches(
      [open, calls](std::span<Job> jobs) {
        if (++*calls == 1) {
          while (!*open)
            std::this_thread::sleep_for(1ms);
        }
        return all_done(jobs);
      },
      how);
  const JobId a = enqueue();
  const JobId b = enqueue();
  ASSERT_TRUE(eventually([&] { return worker.stats().jobs.leaked == 1; }));
  ASSERT_TRUE(eventually([&] { return seen_->reported().size() == 1; }));
  EXPECT_THAT(seen_->reported()[0].retried, ElementsAre(a, b));
  EXPECT_EQ(field(a, "last_error"), "timed out after 500ms");
  EXPECT_EQ(state(b), JobState::scheduled);
  enqueue_many(2);
  EXPECT_TRUE(eventually([&] { return counts().completed == 2; }));
  *open = true;
  EXPECT_TRUE(eventually([&] { return worker.stats().jobs.leaked == 0; }));
  EXPECT_TRUE(eventually([&] { return worker.stats().running == 0; }));
}

TEST_F(BatchWorkerTest, WhileAllSlotsAreTakenNothingIsClaimed) {
  enqueue_many(30);
  std::atomic<bool> go_on{false};
  std::atomic<int> begun{0};
  BatchWorkerOptions how = options(5, 50ms, 10);
  how.worker.concurrency = 2;
  BatchWorker worker = start_batches(
      [&](std::span<Job> jobs) {
        ++begun;
        while (!go_on)
          std::this_thread::sleep_for(1ms);
        return all_done(jobs);
      },
      how);
  ASSERT_TRUE(eventually([&] { return begun == 2; }));
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(begun, 2);
  EXPECT_EQ(worker.stats().running, 2U);
  EXPECT_EQ(counts().active, 20);
  EXPECT_EQ(counts().pending, 10);
  go_on = true;
  EXPECT_TRUE(eventually([&] { return counts().completed == 30; }));
}

TEST_F(BatchWorkerTest, EventsAreThoseOfSingleJobs) {
  std::mutex mutex;
  std::multiset<std::string> events;
  EventListenerOptions hearing;
  hearing.on_event = [&](const JobEvent& event) {
    const std::lock_guard lock(mutex);
    events.insert(std::string(event.name) + (event.will_retry() ? " again" : ""));
  };
  auto listener = EventListener::open(*client_, queue_->name(), hearing);
  ASSERT_TRUE(listener) << listener.error().message();
  for (int i = 0; i < 4; ++i)
    enqueue();
  BatchWorkerOptions how = options(4, 60s);
  how.worker.backoff = Backoff::fixed(1h);
  BatchWorker worker = start_batches(
      [&](std::span<Job> jobs) {
        return BatchVerdicts{
            {jobs[0].id(), Done()}, {jobs[1].id(), Retry("r")}, {jobs[2].id(), Delay(1h)}, {jobs[3].id(), Dead("d")}};
      },
      how);
  EXPECT_TRUE(eventually([&] {
    const std::lock_guard lock(mutex);
    return events.size() >= 5;
  }));
  const std::lock_guard lock(mutex);
  EXPECT_THAT(events, UnorderedElementsAre("completed", "failed again", "delayed", "failed", "dead"));
}

TEST_F(BatchWorkerTest, TwoWorkersSideBySideLoseNothing) {
  Client other = open();
  BatchWorkerOptions how = options(7, 100ms, 25);
  how.worker.concurrency = 2;
  std::mutex mutex;
  std::map<JobId, int> runs;
  const BatchHandler handler = [&](std::span<Job> jobs) {
    const std::lock_guard lock(mutex);
    for (const Job& job : jobs)
      ++runs[job.id()];
    return all_done(jobs);
  };
  BatchWorker first = start_batches(handler, how);
  BatchWorker second = start_on(other.queue("work"), handler, how);
  for (int i = 0; i < 20; ++i) {
    enqueue_many(99);
    enqueue();
  }
  ASSERT_TRUE(eventually([&] { return counts().completed == 2000; }, 60s));
  EXPECT_EQ(runs.size(), 2000U);
  EXPECT_TRUE(std::all_of(runs.begin(), runs.end(), [](const auto& run) { return run.second == 1; }));
  EXPECT_EQ(counts().active, 0);
  EXPECT_EQ(counts().pending, 0);
}

// A worker that serves only flat jobs takes the token of a lane job, and the other way round.
TEST_F(BatchWorkerTest, AFlatAndALaneWorkerParkedOnOneQueueLoseNoWake) {
  BatchWorkerOptions flat = options(1, 1s);
  BatchWorkerOptions lanes = flat;
  lanes.source = BatchSource::lanes;
  BatchWorker of_flat = start_batches(noting(), flat);
  BatchWorker of_lanes = start_batches(noting(), lanes);
  const LaneId tenant = lane();
  std::chrono::milliseconds longest{0};
  for (std::int64_t done = 1; done <= 60; ++done) {
    ASSERT_TRUE(eventually([&] { return parked(2); }));
    const auto begun = std::chrono::steady_clock::now();
    enqueue("x", done % 3 == 0 ? EnqueueOptions{} : EnqueueOptions{.lane = tenant});
    ASSERT_TRUE(eventually([&] { return counts().completed == done; })) << done;
    longest = std::max(longest, since(begun));
  }
  EXPECT_LT(longest, bound(2s));  // the beat is 30 s
}

TEST_F(BatchWorkerTest, WorkOfOthersDoesNotKeepAWorkerBusy) {
  enqueue_lane(lane(), 5);
  BatchWorker worker = start_batches(noting(), options(1, 1s));
  ASSERT_TRUE(eventually([&] { return parked(1); }));
  std::this_thread::sleep_for(300ms);
  const std::int64_t calls = integer("EVAL",
                                     "return tonumber(string.match(redis.call('INFO', 'stats'), "
                                     "'total_commands_processed:(%d+)'))",
                                     "0");
  std::this_thread::sleep_for(1s);
  const std::int64_t later = integer("EVAL",
                                     "return tonumber(string.match(redis.call('INFO', 'stats'), "
                                     "'total_commands_processed:(%d+)'))",
                                     "0");
  EXPECT_LT(later - calls, 1000);
  EXPECT_EQ(worker.stats().jobs.claimed, 0U);
  const JobId mine = enqueue();
  EXPECT_TRUE(eventually([&] { return seen_->count() == 1; }));
  EXPECT_THAT(seen_->all(), ElementsAre(ElementsAre(mine)));
}

TEST_F(BatchWorkerTest, TenThousandJobsAreEachInOneBatch) {
  BatchWorkerOptions how = options(50, 100ms, 200);
  how.worker.concurrency = 4;
  how.worker.events = WorkerEvents::nothing;
  how.worker.lease = 15s;
  std::mutex mutex;
  std::map<JobId, int> runs;
  std::size_t batches = 0;
  BatchWorker worker = start_batches(
      [&](std::span<Job> jobs) {
        const std::lock_guard lock(mutex);
        ++batches;
        for (const Job& job : jobs)
          ++runs[job.id()];
        return all_done(jobs);
      },
      how);
  for (int i = 0; i < 10; ++i)
    enqueue_many(1000);
  ASSERT_TRUE(eventually([&] { return counts().completed == 10'000; }, 60s));
  ASSERT_TRUE(eventually([&] { return worker.stats().jobs.completed == 10'000; }));
  worker.stop();
  EXPECT_EQ(runs.size(), 10'000U);
  EXPECT_TRUE(std::all_of(runs.begin(), runs.end(), [](const auto& run) { return run.second == 1; }));
  EXPECT_EQ(worker.stats().jobs.claimed, 10'000U);
  EXPECT_EQ(worker.stats().batches, batches);
  std::size_t reported = 0;
  for (const BatchReport& report : seen_->reported())
    reported += report.completed.size();
  EXPECT_EQ(reported, 10'000U);
  EXPECT_EQ(seen_->reported().size(), batches);
  EXPECT_EQ(counts().active, 0);
}

TEST_F(BatchWorkerTest, ACallbackThatThrowsIsCountedAndTheWorkerGoesOn) {
  BatchWorkerOptions how = options(1, 50ms);
  how.on_batch = [](const BatchReport&) { throw std::runtime_error("x"); };
  BatchWorker worker = start_batches(noting(), how);
  enqueue();
  ASSERT_TRUE(eventually([&] { return worker.stats().jobs.errors == 1; }));
  enqueue();
  EXPECT_TRUE(eventually([&] { return counts().completed == 2; }));
}

TEST_F(BatchWorkerTest, BadOptionsAreRefusedByNameAndValue) {
  const auto refused = [&](BatchWorkerOptions how, BatchHandler handler) {
    const auto worker = BatchWorker::start(*queue_, std::move(handler), std::move(how));
    EXPECT_FALSE(worker);
    if (worker)
      return std::string();
    EXPECT_TRUE(worker.error().is(Errc::invalid_argument));
    return std::string(worker.error().message());
  };
  EXPECT_THAT(refused(options(0, 1s), noting()), HasSubstr("min_size must be 1 or more, got 0"));
  EXPECT_THAT(refused(options(1, 0ms), noting()), HasSubstr("timeout must be 1ms"));
  EXPECT_THAT(refused(options(1, 0ms), noting()), HasSubstr("got 0ms"));
  EXPECT_THAT(refused(options(1, -5ms), noting()), HasSubstr("got -5ms"));
  EXPECT_THAT(refused(options(1, std::chrono::days{366}), noting()), HasSubstr("timeout must be at most a year"));
  EXPECT_THAT(refused(options(1, 1s, 0), noting()), HasSubstr("max_size must be 1 to 1000, got 0"));
  EXPECT_THAT(refused(options(1, 1s, 1001), noting()), HasSubstr("max_size must be 1 to 1000, got 1001"));
  EXPECT_THAT(refused(options(11, 1s, 10), noting()), HasSubstr("min_size must be at most max_size (10), got 11"));
  EXPECT_THAT(refused(options(1, 1s), {}), HasSubstr("the handler is empty"));
  BatchWorkerOptions how = options(1, 1s);
  how.source = static_cast<BatchSource>(7);
  EXPECT_THAT(refused(how, noting()), HasSubstr("source must be flat or lanes, got 7"));
  how = options(1, 1s);
  how.worker.concurrency = 1025;
  EXPECT_THAT(refused(how, noting()), HasSubstr("concurrency must be 1 to 1024, got 1025"));
  how = options(1, 1s);
  how.worker.lease = 50ms;
  EXPECT_THAT(refused(how, noting()), HasSubstr("lease must be 100ms to a year, got 50ms"));
  EXPECT_THAT(seen_->all(), IsEmpty());
}

}  // namespace
}  // namespace echomq::test
