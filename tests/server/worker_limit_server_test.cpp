// Runs that take too long, runs that somebody wants ended, handlers that do not stop, and coroutines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/proxy.hpp"
#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WorkerLimit : public WorkerTest {
 protected:
  [[nodiscard]] static WorkerOptions limited(Milliseconds timeout, std::uint32_t concurrency = 1) {
    WorkerOptions options = quick_options(concurrency);
    options.timeout = timeout;
    options.stop_patience = 100ms;
    options.max_attempts = 1;
    return options;
  }
  /// What runs that may be left behind share with their test.
  struct Runs {
    std::atomic<bool> begun{false}, go{false};
    std::atomic<int> others{0};
  };
  /// Returns once its token is stopped.
  static void wait_for_stop(const Job& job) {
    const std::stop_token token = job.stop_token();
    while (!token.stop_requested())
      std::this_thread::sleep_for(1ms);
  }
};

TEST_F(WorkerLimit, ARunWhoseTimeIsOverIsAskedToStopAndWhatItReturnsCounts) {
  const JobId id = enqueue();
  struct Run {
    std::atomic<bool> had_deadline{false};
    std::atomic<StopCause> cause{StopCause::none};
  };
  const auto run = std::make_shared<Run>();
  WorkerOptions options = limited(50ms);
  options.stop_patience = 10s;
  Worker worker = start(
      [run](Job& job) {
        run->had_deadline = job.deadline().has_value();
        wait_for_stop(job);
        run->cause = job.stop_cause();
        return Done("half");
      },
      options);
  ASSERT_TRUE(eventually([&] { return counts().completed == 1; }));
  EXPECT_TRUE(run->had_deadline);
  EXPECT_EQ(run->cause, StopCause::timeout);
  EXPECT_EQ(state(id), JobState::absent);
  EXPECT_TRUE(eventually([&] { return worker.stats().timed_out == 1; }));
  EXPECT_EQ(worker.stats().leaked, 0U);
}

TEST_F(WorkerLimit, AHandlerThatDoesNotStopLeavesItsSlotAndItsJobFails) {
  const auto runs = std::make_shared<Runs>();
  const JobId stuck = enqueue("stuck");
  Worker worker = start(
      [runs](Job& job) {
        if (job.payload() == "stuck") {
          while (!runs->go)
            std::this_thread::sleep_for(1ms);
        } else {
          ++runs->others;
        }
        return Done();
      },
      limited(500ms));
  ASSERT_TRUE(eventually([&] { return state(stuck) == JobState::dead; }));
  EXPECT_THAT(field(stuck, "last_error"), HasSubstr("timed out after 500ms"));
  EXPECT_EQ(worker.stats().leaked, 1U);
  EXPECT_TRUE(worker.stats().healthy);
  enqueue("other");
  EXPECT_TRUE(eventually([&] { return runs->others == 1; })) << "the slot is free again";
  runs->go = true;
  EXPECT_TRUE(eventually([&] { return worker.stats().leaked == 0; }));
  EXPECT_TRUE(eventually([&] { return worker.stats().completed == 1; }));
  EXPECT_EQ(counts().completed, 1) << "what the leaked run returned counts for nothing";
}

TEST_F(WorkerLimit, TooManyLeakedHandlersAndTheWorkerClaimsNothingMore) {
  auto go = std::make_shared<std::atomic<bool>>(false);
  WorkerOptions options = limited(30ms);
  options.max_leaked = 2;
  for (int i = 0; i < 4; ++i)
    enqueue();
  Worker worker = start(
      [go](Job&) {
        while (!*go)
          std::this_thread::sleep_for(1ms);
        return Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return !worker.stats().healthy; }));
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(worker.stats().claimed, 2U);
  EXPECT_EQ(counts().pending, 2);
  *go = true;
  EXPECT_TRUE(eventually([&] { return worker.stats().healthy; }));
  EXPECT_TRUE(eventually([&] { return counts().pending == 0; })) << "it goes on once they have returned";
  EXPECT_TRUE(eventually([&] { return counts().active == 0; }));
}

TEST_F(WorkerLimit, ACancelledRunIsStoppedAndEndsAsDead) {
  std::atomic<bool> begun{false};
  const JobId id = enqueue();
  Worker worker = start(
      [&](Job& job) -> Outcome {
        begun = true;
        wait_for_stop(job);
        throw std::runtime_error(std::string(to_string(job.stop_cause())));
      },
      quick_options());
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  worker.cancel(id);
  ASSERT_TRUE(eventually([&] { return state(id) == JobState::dead; }));
  EXPECT_EQ(field(id, "last_error"), "cancelled");
  EXPECT_TRUE(eventually([&] { return worker.stats().cancelled == 1; }));
}

TEST_F(WorkerLimit, ACancelledRunThatIsDoneAllTheSameIsDone) {
  std::atomic<bool> begun{false};
  const JobId id = enqueue();
  Worker worker = start([&](Job& job) {
    begun = true;
    wait_for_stop(job);
    return Done();
  });
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  worker.cancel(id);
  EXPECT_TRUE(eventually([&] { return counts().completed == 1; }));
}

TEST_F(WorkerLimit, ErrorsThatAreNotWorthAnotherRunEndTheJob) {
  WorkerOptions options = quick_options();
  options.max_attempts = 5;
  options.unrecoverable = [](const Job&, std::string_view error) { return error == "bad input"; };
  const JobId thrown = enqueue("thrown");
  const JobId judged = enqueue("judged");
  const JobId retried = enqueue("retried");
  Worker worker = start(
      [](Job& job) -> Outcome {
        if (job.payload() == "thrown")
          throw Unrecoverable("never again");
        if (job.payload() == "judged")
          throw std::runtime_error("bad input");
        return job.failures() < 2 ? Retry("again") : Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return counts().dead == 2 && counts().completed == 1; }));
  EXPECT_EQ(field(thrown, "last_error"), "never again");
  EXPECT_EQ(field(judged, "last_error"), "bad input");
  EXPECT_EQ(state(retried), JobState::absent);
}

TEST_F(WorkerLimit, AHandlerMayKeepItsLeaseLongerThanTheWorkerDoes) {
  WorkerOptions options = quick_options();
  options.lease = 1s;
  std::atomic<bool> extended{false}, go{false};
  const JobId id = enqueue();
  Worker worker = start(
      [&](Job& job) {
        EXPECT_TRUE(job.extend(60s));
        EXPECT_FALSE(job.extend(0ms));
        extended = true;
        while (!go)
          std::this_thread::sleep_for(1ms);
        return Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return extended.load(); }));
  std::this_thread::sleep_for(1500ms);  // a few renewals would have come
  const Value score = client_->command("ZSCORE", "emq:{work}:active", id.text()).get().value();
  const auto now = std::chrono::duration<double, std::milli>(std::chrono::system_clock::now().time_since_epoch());
  EXPECT_GT(score.as_double().value_or(0) - now.count(), 50'000);
  go = true;
  EXPECT_TRUE(eventually([&] { return counts().completed == 1; }));
}

TEST_F(WorkerLimit, AfterALongerLeaseTheRenewalsGoOn) {
  WorkerOptions options = quick_options();
  options.lease = 900ms;
  std::atomic<bool> extended{false};
  enqueue();
  Worker worker = start(
      [&](Job& job) {
        EXPECT_TRUE(job.extend(1500ms));
        extended = true;
        std::this_thread::sleep_for(4s);
        return Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return extended.load(); }));
  Worker other = start([](Job&) { return Dead("taken away"); }, options);
  ASSERT_TRUE(eventually([&] { return counts().completed == 1; }));
  EXPECT_EQ(worker.stats().leases_lost + other.stats().claimed, 0U);
}

TEST_F(WorkerLimit, AShortExtensionDoesNotShortenTheLease) {
  std::atomic<bool> go{false};
  const JobId id = enqueue();
  WorkerOptions options = quick_options();
  options.lease = 30s;
  Worker worker = start(
      [&](Job& job) {
        EXPECT_TRUE(job.extend(100ms));
        go = true;
        std::this_thread::sleep_for(400ms);
        return Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return go.load(); }));
  std::this_thread::sleep_for(200ms);
  EXPECT_TRUE(queue_->sweep_stalled().get()->recovered.empty());
  EXPECT_TRUE(eventually([&] { return state(id) == JobState::absent; }));
  EXPECT_EQ(worker.stats().settles_refused, 0U);
}

TEST_F(WorkerLimit, AHandlerThatHangsAfterItsLeaseWasLostLeavesItsSlotToo) {
  const auto runs = std::make_shared<Runs>();
  WorkerOptions options = limited(400ms);
  const JobId stuck = enqueue("stuck");
  Worker worker = start(
      [runs](Job& job) {
        if (job.payload() == "stuck") {
          runs->begun = true;
          while (!runs->go)
            std::this_thread::sleep_for(1ms);
        } else {
          ++runs->others;
        }
        return Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return runs->begun.load(); }));
  ASSERT_TRUE(queue_->remove(stuck).get());  // the next renewal says that it is gone
  enqueue("other");
  EXPECT_TRUE(eventually([&] { return runs->others == 1; }));
  EXPECT_GE(worker.stats().leaked, 1U);
  runs->go = true;
  EXPECT_TRUE(eventually([&] { return worker.stats().leaked == 0; }));
}

// Its job is somebody else's, so what it comes to is told late, and refused.
TEST_F(WorkerLimit, AHandlerWithoutATimeOutThatHangsAfterItsLeaseWasLostLeavesItsSlotToo) {
  const auto runs = std::make_shared<Runs>();
  WorkerOptions options = limited(0ms);
  const JobId stuck = enqueue("stuck");
  Worker worker = start(
      [runs](Job& job) {
        if (job.payload() == "stuck") {
          runs->begun = true;
          while (!runs->go)
            std::this_thread::sleep_for(1ms);
        } else {
          ++runs->others;
        }
        return Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return runs->begun.load(); }));
  ASSERT_TRUE(queue_->remove(stuck).get());  // the next renewal says that it is gone
  enqueue("other");
  EXPECT_TRUE(eventually([&] { return runs->others == 1; }));
  EXPECT_TRUE(eventually([&] { return worker.stats().leaked == 1; }));
  EXPECT_EQ(worker.stats().settles_refused, 0U);
  runs->go = true;
  EXPECT_TRUE(eventually([&] { return worker.stats().leaked == 0 && worker.stats().settles_refused == 1; }));
  EXPECT_EQ(counts().completed, 1);
}

TEST_F(WorkerLimit, AStopDoesNotWaitForAHandlerThatWasGivenUpAfterItsLeaseWasLost) {
  const auto runs = std::make_shared<Runs>();
  WorkerOptions options = limited(0ms);
  const JobId stuck = enqueue("stuck");
  Worker worker = start(
      [runs](Job&) {
        runs->begun = true;
        while (!runs->go)
          std::this_thread::sleep_for(1ms);
        return Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return runs->begun.load(); }));
  ASSERT_TRUE(queue_->remove(stuck).get());
  ASSERT_TRUE(eventually([&] { return worker.stats().leaked == 1; }));
  const auto start_of_stop = std::chrono::steady_clock::now();
  const StopReport report = worker.stop(60s);
  EXPECT_LT(since(start_of_stop), 30s);
  EXPECT_EQ(report.leaked, 1U);
  EXPECT_EQ(report.unsettled + report.handed_back + report.finished, 0U);
  runs->go = true;
}

TEST_F(WorkerLimit, ACancellationIsCountedOnceHoweverOftenItIsAskedFor) {
  std::atomic<bool> begun{false};
  const JobId id = enqueue();
  Worker worker = start([&](Job& job) {
    begun = true;
    wait_for_stop(job);
    std::this_thread::sleep_for(200ms);
    return Retry("stopped");
  });
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  for (int i = 0; i < 3; ++i)
    worker.cancel(id);
  EXPECT_TRUE(queue_->cancel(id).get());
  ASSERT_TRUE(eventually([&] { return state(id) == JobState::dead; }));
  EXPECT_EQ(worker.stats().cancelled, 1U);
}

// The worker was away when the job was cancelled, and the server would not say so when it was back.
TEST_F(WorkerLimit, RequestsToCancelAreAskedForAgainWhenTheAskingFailed) {
  Proxy proxy(server_->url());
  ClientOptions client_options;
  client_options.backoff_initial = 5ms;
  client_options.backoff_max = 20ms;
  Client far = open(proxy.url(), client_options);
  WorkerOptions options = quick_options();
  options.lease = 60s;
  std::atomic<bool> begun{false};
  const JobId id = enqueue();
  Worker worker = start_on(
      far.queue("work"),
      [&](Job& job) {
        begun = true;
        wait_for_stop(job);
        return Retry("stopped");
      },
      options);
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  proxy.refuse_new(true);
  proxy.cut();
  const auto asked = queue_->cancel(id).get();
  ASSERT_TRUE(asked) << asked.error().message();
  EXPECT_EQ(*asked, CancelVerdict::requested);
  ASSERT_TRUE(client_->command("ACL", "SETUSER", "default", "-hexists").get());  // what `marks` looks with
  proxy.heal();
  const auto refused = [&] {
    return client_->command("ACL", "LOG").get().value().to_string().find("hexists") != std::string::npos;
  };
  EXPECT_TRUE(eventually(refused));
  ASSERT_TRUE(client_->command("ACL", "SETUSER", "default", "+hexists").get());
  EXPECT_TRUE(eventually([&] { return counts().dead == 1; }));
  EXPECT_EQ(field(id, "last_error"), "cancelled");
}

// What no clock can add to now.
TEST_F(WorkerLimit, ATimeOutOfCenturiesIsALongOne) {
  for (const char* timeout : {"9999999999999", "9223372036854775807"}) {
    const JobId id = enqueue("x", {.in = 1h});
    ASSERT_EQ(integer("HSET", "emq:{work}:job:" + std::string(id.text()), "timeout", timeout), 1);
    ASSERT_EQ(integer("ZADD", "emq:{work}:schedule", "XX", "CH", "0", id.text()), 1);
  }
  std::atomic<int> sound{0};
  Worker worker = start([&](Job& job) {
    std::this_thread::sleep_for(100ms);
    const auto deadline = job.deadline();
    if (deadline && *deadline > std::chrono::steady_clock::now() + 24h && job.stop_cause() == StopCause::none)
      ++sound;
    return Done();
  });
  ASSERT_TRUE(eventually([&] { return counts().completed == 2; }));
  EXPECT_EQ(sound, 2);
  EXPECT_EQ(worker.stats().timed_out, 0U);
}

TEST_F(WorkerLimit, AJobThatNobodyCanReadHoldsUpNoOthers) {
  ASSERT_TRUE(
      client_->command("HSET", "emq:{work}:job:JOBx", "state", "pending", "attempts", "0", "payload", "x").get());
  ASSERT_TRUE(client_->command("ZADD", "emq:{work}:pending", "0", "JOBx").get());
  WorkerOptions options = quick_options();
  options.lease = 1s;
  options.sweep_period = 50ms;
  options.max_stalled = 2;
  for (int i = 0; i < 20; ++i)
    enqueue();
  Worker worker = start([](Job&) { return Done(); }, options);
  EXPECT_TRUE(eventually([&] { return counts().completed == 20; }));
  EXPECT_TRUE(eventually([&] { return counts().dead == 1; })) << "it ends by its leases";
  EXPECT_EQ(worker.stats().recovered, 0U);
  EXPECT_GT(worker.stats().errors, 0U);
}

class WorkerAsync : public WorkerTest {};

TEST_F(WorkerAsync, AThousandCoroutinesWaitOnAFewThreads) {
  constexpr int kJobs = 1000;
  std::atomic<int> inside{0}, most{0};
  const Queue other = client_->queue("other");
  for (int i = 0; i < kJobs; ++i)
    enqueue(std::to_string(i));
  WorkerOptions options = quick_options(kJobs);
  options.threads = 2;
  auto worker = Worker::start(
      *queue_,
      [&, other](Job& job) -> Task<Outcome> {
        const int now = ++inside;
        int seen = most;
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        // Long enough for all of them to be inside together.
        for (int i = 0; i < 200 && most < kJobs; ++i) {
          const auto counted = co_await other.counts();
          if (!counted)
            co_return Retry(counted.error().message());
        }
        --inside;
        co_return Done(std::string(job.payload()));
      },
      options);
  ASSERT_TRUE(worker) << worker.error().message();
  EXPECT_TRUE(eventually([&] { return counts().completed == kJobs; }, 60s));
  EXPECT_GT(most, 500);
}

TEST_F(WorkerAsync, AnExceptionOfACoroutineIsARetryAndAStopWaitsForThem) {
  const JobId failing = enqueue("fail");
  std::atomic<int> runs{0};
  WorkerOptions options = quick_options(8);
  options.max_attempts = 1;
  auto worker = Worker::start(
      *queue_,
      [&](Job& job) -> Task<Outcome> {
        ++runs;
        (void)co_await queue_->counts();
        if (job.payload() == "fail")
          throw std::runtime_error("no luck");
        co_return Done();
      },
      options);
  ASSERT_TRUE(worker);
  ASSERT_TRUE(eventually([&] { return state(failing) == JobState::dead; }));
  EXPECT_EQ(field(failing, "last_error"), "no luck");
  for (int i = 0; i < 100; ++i)
    enqueue();
  ASSERT_TRUE(eventually([&] { return runs > 1; }));
  const StopReport report = worker->stop();
  EXPECT_EQ(report.leaked, 0U);
  EXPECT_EQ(report.unsettled, 0U);
  EXPECT_EQ(counts().active, 0);
  EXPECT_EQ(counts().completed + counts().pending, 100);
}

// What was fetched ahead while runs were quick waits for a slot as in a worker of threads.
TEST_F(WorkerAsync, NoMoreThanConcurrencyAreInsideHoweverManyWereFetchedAhead) {
  std::atomic<int> inside{0}, most{0};
  const Queue other = client_->queue("other");
  auto worker = Worker::start(
      *queue_,
      [&, other](Job& job) -> Task<Outcome> {
        if (job.payload() != "slow")
          co_return Done();
        const int now = ++inside;
        int seen = most;
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        for (int i = 0; i < 10; ++i)
          (void)co_await other.counts();
        --inside;
        co_return Done();
      },
      quick_options());
  ASSERT_TRUE(worker) << worker.error().message();
  enqueue_many(2000);
  ASSERT_TRUE(eventually([&] { return counts().completed == 2000; }, 30s));
  const std::vector<NewJob> slow(100, NewJob{.payload = "slow", .id = {}});
  ASSERT_TRUE(queue_->enqueue_many(slow).get());
  EXPECT_TRUE(eventually([&] { return counts().completed == 2100; }, 30s));
  EXPECT_EQ(most, 1);
}

TEST_F(WorkerAsync, ACoroutineThatIsGivenUpLeavesItsSlot) {
  Proxy proxy(server_->url());
  Client far = open(proxy.url());
  const Queue away = far.queue("other");
  ASSERT_TRUE(away.counts().get());
  proxy.hold();
  WorkerOptions options = quick_options();
  options.timeout = 50ms;
  options.stop_patience = 50ms;
  options.max_attempts = 1;
  const JobId stuck = enqueue("stuck");
  auto others = std::make_shared<std::atomic<int>>(0);
  auto worker = Worker::start(
      *queue_,
      [others, away](Job& job) -> Task<Outcome> {
        if (job.payload() == "stuck")
          (void)co_await away.counts();
        else
          ++*others;
        co_return Done();
      },
      options);
  ASSERT_TRUE(worker) << worker.error().message();
  ASSERT_TRUE(eventually([&] { return state(stuck) == JobState::dead; }));
  EXPECT_EQ(worker->stats().leaked, 1U);
  enqueue("other");
  EXPECT_TRUE(eventually([&] { return *others == 1; }));
  proxy.release();
  EXPECT_TRUE(eventually([&] { return worker->stats().leaked == 0; }));
}

class WorkerPrefetch : public WorkerTest {};

TEST_F(WorkerPrefetch, WhatWaitsBehindASlowJobGoesBackToOthers) {
  // Quick jobs teach the worker to fetch ahead; then one is slow while others wait behind it.
  WorkerOptions options = quick_options();
  std::atomic<bool> slow{false}, go{false};
  std::atomic<int> quick{0};
  for (int i = 0; i < 2000; ++i)
    enqueue("quick");
  enqueue("slow");
  for (int i = 0; i < 100; ++i)
    enqueue("quick");
  Worker worker = start(
      [&](Job& job) {
        if (job.payload() == "slow") {
          slow = true;
          while (!go)
            std::this_thread::sleep_for(1ms);
        } else {
          ++quick;
        }
        return Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return slow.load(); }, 30s));
  ASSERT_TRUE(eventually([&] { return counts().active == 1; })) << counts().active << " are held";
  std::atomic<int> helped{0};
  Worker other = start([&](Job&) {
    ++helped;
    return Done();
  });
  EXPECT_TRUE(eventually([&] { return quick + helped == 2100; }, 30s));
  EXPECT_EQ(helped, 100);
  go = true;
  EXPECT_TRUE(eventually([&] { return counts().completed == 2101; }));
  EXPECT_EQ(counts().dead, 0);
}

}  // namespace
}  // namespace echomq::test
