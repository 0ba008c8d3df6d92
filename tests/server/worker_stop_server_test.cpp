// Stopping: what is finished, what is handed back, and that nothing hangs.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "queue/exchange.hpp"
#include "queue/swept.hpp"
#include "support/proxy.hpp"
#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

class WorkerStop : public WorkerTest {
 protected:
  static Outcome until_stopped(Job& job) {
    while (!job.stop_token().stop_requested())
      std::this_thread::sleep_for(1ms);
    return Done();
  }
};

// Case 3: a handler that throws while close() is running left its job in active.
TEST_F(WorkerStop, AHandlerOfThreeLeasesThatThrowsWhileStoppingLeavesNothingActive) {
  WorkerOptions options = quick_options();
  options.lease = 1s;
  options.backoff = Backoff::fixed(1h);
  std::atomic<bool> begun{false};
  const JobId id = enqueue();
  Worker worker = start(
      [&](Job& job) -> Outcome {
        begun = true;
        std::this_thread::sleep_for(3 * 1s);
        EXPECT_FALSE(job.stop_token().stop_requested());
        throw std::runtime_error("at the end");
      },
      options);
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  std::this_thread::sleep_for(200ms);
  const StopReport report = worker.stop(10s);
  EXPECT_EQ(report.finished, 1U);
  EXPECT_EQ(report.handed_back, 0U);
  EXPECT_EQ(counts().active, 0);
  EXPECT_EQ(state(id), JobState::scheduled);
  EXPECT_EQ(field(id, "last_error"), "at the end");
  EXPECT_EQ(worker.stats().leases_lost, 0U);
}

// Case 4: a forced close orphaned the jobs.
TEST_F(WorkerStop, AForcedStopHandsFiftyRunningJobsBackAtOnce) {
  WorkerOptions options = quick_options(50);
  options.lease = 60s;
  options.max_attempts = 1;
  std::atomic<int> running{0};
  enqueue_many(50);
  Worker worker = start(
      [&](Job& job) {
        ++running;
        return until_stopped(job);
      },
      options);
  ASSERT_TRUE(eventually([&] { return running == 50; }));
  const auto start_of_stop = std::chrono::steady_clock::now();
  const StopReport report = worker.stop(0ms);
  EXPECT_LT(since(start_of_stop), bound(1s));
  EXPECT_EQ(report.handed_back, 50U);
  EXPECT_EQ(report.unsettled, 0U);
  EXPECT_EQ(report.leaked, 0U);
  EXPECT_EQ(counts().pending, 50);
  EXPECT_EQ(counts().active, 0);

  // Not held against the maximum: the one attempt that they have is still theirs.
  std::atomic<int> failed_once{0};
  Worker next = start(
      [&](Job& job) {
        EXPECT_EQ(job.attempt(), 2U);
        ++failed_once;
        return Done();
      },
      options);
  EXPECT_TRUE(eventually([&] { return counts().completed == 50; }));
  EXPECT_EQ(failed_once, 50);
}

TEST_F(WorkerStop, LaneJobsGoBackToTheirLaneAndItsSlotsAreFree) {
  const LaneId tenant = lane();
  ASSERT_TRUE(queue_->limit_lane(tenant, 2).get());
  for (int i = 0; i < 4; ++i)
    enqueue("x", {.lane = tenant});
  std::atomic<int> running{0};
  Worker worker = start(
      [&](Job& job) {
        ++running;
        return until_stopped(job);
      },
      quick_options(4));
  ASSERT_TRUE(eventually([&] { return running == 2; }));
  EXPECT_EQ(worker.stop(0ms).handed_back, 2U);
  EXPECT_EQ(queue_->lane_depth(tenant).get().value(), 4);
  EXPECT_EQ(integer("HEXISTS", "emq:{work}:gactive", tenant.text()), 0);
  Worker next = start([](Job&) { return Done(); });
  EXPECT_TRUE(eventually([&] { return counts().completed == 4; }));
}

// Case 14: after a clean disconnect the message waited for the whole lease.
TEST_F(WorkerStop, AfterAPoliteCloseAnotherWorkerHasTheJobAtOnceThoughTheLeaseIsAMinute) {
  WorkerOptions options = quick_options();
  options.lease = 60s;
  std::atomic<int> begun{0};
  enqueue();
  std::optional<Worker> first = start(
      [&](Job& job) {
        ++begun;
        return until_stopped(job);
      },
      options);
  ASSERT_TRUE(eventually([&] { return begun == 1; }));
  Client other = open();
  std::atomic<bool> again{false};
  Worker second = start_on(other.queue("work"), [&](Job&) {
    again = true;
    return Done();
  });
  ASSERT_TRUE(eventually([&] { return parked(1); }));
  first->stop(0ms);
  EXPECT_TRUE(eventually([&] { return again.load(); }, 500ms));
}

TEST_F(WorkerStop, RunsThatEndWithinTheDeadlineAreFinishedAndNothingNewIsClaimed) {
  std::atomic<int> begun{0};
  std::atomic<bool> stopping{false};
  ClientOptions telling;
  telling.log = [&](LogLevel, std::string_view event, std::span<const LogField>) {
    if (event == "worker_stopping")
      stopping = true;
  };
  Client client = open({}, std::move(telling));
  for (int i = 0; i < 20; ++i)
    enqueue();
  Worker worker = start_on(
      client.queue("work"),
      [&](Job&) {
        ++begun;
        // One that ends before the stop has begun makes room for another.
        EXPECT_TRUE(eventually([&] { return stopping.load(); }));
        std::this_thread::sleep_for(300ms);
        return Done();
      },
      quick_options(4));
  ASSERT_TRUE(eventually([&] { return begun == 4; }));
  const StopReport report = worker.stop();
  EXPECT_EQ(report.finished, 4U);
  EXPECT_EQ(report.handed_back, 0U);
  EXPECT_EQ(begun, 4);
  EXPECT_EQ(counts().completed, 4);
  EXPECT_EQ(counts().pending, 16);
}

// The end of one claim was told twice: as handed back, and as refused when its handler had returned.
TEST_F(WorkerStop, AHandlerThatEndsAfterTheHandBackHasItsSettleDroppedAndCounted) {
  WorkerOptions options = quick_options();
  options.stop_grace = 2s;
  std::atomic<bool> begun{false};
  std::mutex mutex;
  std::vector<std::string> verdicts;
  options.on_settled = [&](const Job&, std::string_view verdict) {
    const std::lock_guard lock(mutex);
    verdicts.emplace_back(verdict);
  };
  const JobId id = enqueue();
  Worker worker = start(
      [&](Job& job) {
        begun = true;
        (void)until_stopped(job);
        std::this_thread::sleep_for(100ms);
        EXPECT_FALSE(job.progress("too late"));
        return Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  const StopReport report = worker.stop(0ms);
  EXPECT_EQ(report.handed_back, 1U);
  EXPECT_EQ(report.leaked, 0U);
  EXPECT_EQ(worker.stats().settles_refused, 1U);
  EXPECT_EQ(worker.stats().completed, 0U);
  EXPECT_EQ(verdicts, std::vector<std::string>{"hand_back"});
  EXPECT_EQ(state(id), JobState::pending);
  EXPECT_EQ(field(id, "handbacks"), "1");
}

// The handler has ended while its hand-back was on its way: it was told as refused at once, and as handed back with the answer.
TEST_F(WorkerStop, AHandlerThatEndsBeforeItsHandBackIsAnsweredIsToldOnceByTheAnswer) {
  Proxy proxy(server_->tcp_url());
  Client far = open(proxy.url());
  WorkerOptions options = quick_options();
  options.stop_grace = 5s;
  std::atomic<bool> begun{false}, returns{false};
  std::mutex mutex;
  std::vector<std::string> verdicts;
  options.on_settled = [&](const Job&, std::string_view verdict) {
    const std::lock_guard lock(mutex);
    verdicts.emplace_back(verdict);
  };
  const JobId id = enqueue();
  Worker worker = start_on(
      far.queue("work"),
      [&](Job& job) {
        begun = true;
        (void)until_stopped(job);
        returns = true;
        return Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  proxy.hold();
  auto stopping = std::async(std::launch::async, [&] { return worker.stop(0ms); });
  EXPECT_TRUE(eventually([&] { return returns.load() && worker.stats().settles_refused == 1; }));
  EXPECT_EQ(state(id), JobState::active) << "the hand-back is held";
  proxy.release();
  const StopReport report = stopping.get();
  EXPECT_EQ(report.handed_back, 1U);
  EXPECT_EQ(report.refused, 0U);
  EXPECT_EQ(verdicts, std::vector<std::string>{"hand_back"});
  EXPECT_EQ(state(id), JobState::pending);
}

// Nothing was handed back of a run whose lease was lost: that its handler has ended is all that is told of its end, once.
TEST_F(WorkerStop, ARunThatLostItsLeaseAndOutlivesTheStopIsToldOnce) {
  Proxy proxy(server_->tcp_url());
  std::atomic<bool> is_stopping{false};
  ClientOptions telling;
  telling.log = [&](LogLevel, std::string_view event, std::span<const LogField>) {
    if (event == "worker_stopping")
      is_stopping = true;
  };
  Client far = open(proxy.url(), std::move(telling));
  WorkerOptions options = quick_options();
  options.lease = 1s;
  options.stop_grace = 5s;
  std::atomic<bool> begun{false}, lost{false}, go{false};
  std::mutex mutex;
  std::vector<std::string> verdicts;
  options.on_settled = [&](const Job&, std::string_view verdict) {
    const std::lock_guard lock(mutex);
    verdicts.emplace_back(verdict);
  };
  options.on_lease_lost = [&](const Job&) { lost = true; };
  enqueue();
  Worker worker = start_on(
      far.queue("work"),
      [&](Job&) {
        begun = true;
        while (!go)
          std::this_thread::sleep_for(1ms);
        return Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  proxy.hold();
  ASSERT_TRUE(eventually([&] { return lost.load(); }));
  proxy.release();
  auto stopping = std::async(std::launch::async, [&] { return worker.stop(0ms); });
  EXPECT_TRUE(eventually([&] { return is_stopping.load(); }));
  std::this_thread::sleep_for(200ms);
  go = true;
  const StopReport report = stopping.get();
  EXPECT_EQ(report.handed_back, 0U);
  EXPECT_EQ(report.leaked, 0U);
  EXPECT_EQ(verdicts, std::vector<std::string>{"its lease was lost, and the worker has stopped"});
}

TEST_F(WorkerStop, AHandlerThatNeverReturnsIsLeftBehindAndTheProcessGoesOn) {
  struct Shared {
    std::promise<void> go;
    std::promise<std::string> ended;
  };
  auto shared = std::make_shared<Shared>();
  auto done = shared->ended.get_future();
  WorkerOptions options = quick_options(2);
  options.stop_grace = 100ms;
  std::atomic<bool> begun{false};
  const JobId id = enqueue("kept");
  std::optional<Worker> worker = start(
      [shared, &begun](Job& job) {
        begun = true;
        shared->go.get_future().wait();
        shared->ended.set_value(std::string(job.payload()));
        return Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  const auto start_of_stop = std::chrono::steady_clock::now();
  const StopReport report = worker->stop(50ms);
  EXPECT_LT(since(start_of_stop), bound(2s));
  EXPECT_EQ(report.leaked, 1U);
  EXPECT_EQ(report.handed_back, 1U);
  EXPECT_EQ(worker->stats().leaked, 1U);
  EXPECT_EQ(state(id), JobState::pending);
  worker.reset();
  client_->close();
  shared->go.set_value();
  EXPECT_EQ(done.get(), "kept");
}

TEST_F(WorkerStop, StopIsIdempotentAndEveryCallerGetsTheReport) {
  std::atomic<bool> begun{false};
  enqueue();
  Worker worker = start([&](Job& job) {
    begun = true;
    return until_stopped(job);
  });
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  auto patient = std::async(std::launch::async, [&] { return worker.stop(1h); });
  std::this_thread::sleep_for(50ms);
  const StopReport forced = worker.stop(0ms);
  EXPECT_EQ(forced.handed_back, 1U);
  EXPECT_EQ(patient.get().handed_back, 1U) << "the earliest deadline counts for all";
  EXPECT_EQ(worker.stop().handed_back, 1U);
}

TEST_F(WorkerStop, StopFromAHandlerOnlyBeginsTheStop) {
  std::atomic<Worker*> self{nullptr};
  std::atomic<int> runs{0};
  enqueue();
  enqueue();
  Worker worker = start([&](Job&) {
    ++runs;
    while (self.load() == nullptr)
      std::this_thread::sleep_for(1ms);
    self.load()->stop(5s);
    return Done();
  });
  self = &worker;
  ASSERT_TRUE(eventually([&] { return counts().completed == 1; }))
      << runs << " runs, completed " << counts().completed << ", active " << counts().active << ", pending "
      << counts().pending << "; by the worker: claimed " << worker.stats().claimed << ", completed "
      << worker.stats().completed << ", unsettled " << worker.stats().unsettled << ", refused "
      << worker.stats().settles_refused << ", errors " << worker.stats().errors;
  EXPECT_EQ(worker.stop().finished, 1U);
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(counts().pending, 1);
}

TEST_F(WorkerStop, StopFromACallbackOfTheWorkerOrTheClientDoesNotDeadlock) {
  std::atomic<Worker*> self{nullptr};
  WorkerOptions options = quick_options();
  options.on_settled = [&](const Job&, std::string_view) { self.load()->stop(1s); };
  Worker worker = start([](Job&) { return Done(); }, options);
  self = &worker;
  enqueue();
  ASSERT_TRUE(eventually([&] { return counts().completed == 1; }));
  worker.stop();

  Worker second = start([](Job&) { return Done(); });
  std::promise<void> called;
  queue_->pending_size().then([&](Result<std::int64_t>) {
    second.stop(1s);
    called.set_value();
  });
  EXPECT_EQ(called.get_future().wait_for(10s), std::future_status::ready);
  second.stop();
}

TEST_F(WorkerStop, StopFromAThreadThatIsTheClientsExecutorIsAnswered) {
  // A program with one event loop: continuations are run by the very thread that waits in stop().
  std::mutex mutex;
  std::vector<Continuation> posted;
  ClientOptions client_options;
  client_options.executor = [&](Continuation continuation) {
    const std::lock_guard lock(mutex);
    posted.push_back(continuation);
  };
  Client client = open({}, client_options);
  std::atomic<int> running{0};
  enqueue_many(3);
  Worker worker = start_on(
      client.queue("work"),
      [&](Job& job) {
        ++running;
        return until_stopped(job);
      },
      quick_options(3));
  ASSERT_TRUE(eventually([&] { return running == 3; }));
  EXPECT_EQ(worker.stop(0ms).handed_back, 3U);
  EXPECT_EQ(counts().pending, 3);
}

TEST_F(WorkerStop, TheDestructorStopsAndMovingGivesTheWorkerAway) {
  std::atomic<int> begun{0};
  WorkerOptions options = quick_options();
  options.stop_deadline = 0ms;
  enqueue();
  {
    Worker worker = start(
        [&](Job& job) {
          ++begun;
          return until_stopped(job);
        },
        options);
    ASSERT_TRUE(eventually([&] { return begun == 1; }));
    Worker moved = std::move(worker);
    EXPECT_EQ(worker.stop().handed_back, 0U);  // NOLINT(bugprone-use-after-move): answers as one that does nothing
    EXPECT_EQ(worker.stats().claimed, 0U);
    Worker assigned = start([](Job&) { return Done(); }, options);
    assigned.stop(0ms);
    assigned = std::move(moved);
    EXPECT_GE(assigned.stats().claimed, 1U);
  }
  EXPECT_EQ(counts().active, 0);
}

TEST_F(WorkerStop, WithoutAServerTheStopEndsAndSaysWhatIsLeftToItsLease) {
  Proxy proxy(server_->tcp_url());
  Client far = open(proxy.url());
  std::atomic<bool> begun{false};
  enqueue();
  Worker worker = start_on(far.queue("work"), [&](Job& job) {
    begun = true;
    return until_stopped(job);
  });
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  proxy.refuse_new(true);
  proxy.cut();
  const auto start_of_stop = std::chrono::steady_clock::now();
  const StopReport report = worker.stop(200ms);
  EXPECT_LT(since(start_of_stop), bound(5s));
  EXPECT_EQ(report.unsettled, 1U);
  EXPECT_EQ(report.handed_back, 0U);
  EXPECT_EQ(counts().active, 1);
}

TEST_F(WorkerStop, AfterTheClientIsClosedTheWorkerStillStops) {
  std::atomic<bool> begun{false};
  enqueue();
  Client second = open();
  Worker worker = start_on(second.queue("work"), [&](Job& job) {
    begun = true;
    return until_stopped(job);
  });
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  second.close();
  const auto start_of_stop = std::chrono::steady_clock::now();
  EXPECT_EQ(worker.stop(100ms).unsettled, 1U);
  EXPECT_LT(since(start_of_stop), bound(3s));
}

TEST_F(WorkerStop, AnIdleWorkerStopsAtOnce) {
  Worker worker = start([](Job&) { return Done(); });
  ASSERT_TRUE(eventually([&] { return parked(1); }));
  const auto start_of_stop = std::chrono::steady_clock::now();
  worker.stop();
  EXPECT_LT(since(start_of_stop), bound(500ms));
}

TEST_F(WorkerStop, ManyStartsAndStopsUnderLoadLoseNothing) {
  enqueue_many(2000);
  std::set<std::string> done;
  std::mutex mutex;
  for (int round = 0; round < 20; ++round) {
    WorkerOptions options = quick_options(8);
    Worker worker = start(
        [&](Job& job) {
          const std::lock_guard lock(mutex);
          done.insert(std::string(job.id().text()));
          return Done();
        },
        options);
    std::this_thread::sleep_for(5ms);
    const StopReport report = worker.stop(Milliseconds{round % 2 == 0 ? 0 : 5000});
    EXPECT_EQ(report.unsettled, 0U);
    EXPECT_EQ(counts().active, 0);
  }
  Worker last = start(
      [&](Job& job) {
        const std::lock_guard lock(mutex);
        done.insert(std::string(job.id().text()));
        return Done();
      },
      quick_options(8));
  EXPECT_TRUE(eventually([&] { return counts().completed == 2000; }, 30s));
  EXPECT_EQ(done.size(), 2000U);
}

// The threads of a worker do not exist in a forked child: its copy must neither join them nor talk to the server.
TEST_F(WorkerStop, TheCopyInAForkedChildDoesNothing) {
  auto worker = std::make_unique<Worker>(start([](Job&) { return Done(); }));
  ASSERT_TRUE(eventually([&] { return parked(1); }));
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(10);
    const bool empty = worker->stop().finished == 0;
    worker.reset();
    ::_exit(empty ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  enqueue();
  EXPECT_TRUE(eventually([&] { return counts().completed == 1; }));
}

// What was done for the queue while the worker stopped was done all the same.
TEST_F(WorkerStop, WhatASweepGaveIsCountedWhileStoppingToo) {
  ASSERT_TRUE(queue::sweep_lapsed(*queue_, {}).get());  // the script is known before the link is held
  const JobId id = enqueue();
  ASSERT_TRUE(queue_->claim({.lease = 1500ms}).get().value());
  Proxy proxy(server_->url());
  Client far = open(proxy.url());
  WorkerOptions options = quick_options();
  options.max_stalled = 1;
  options.sweep_period = 1h;
  Worker worker = start_on(far.queue("work"), [](Job&) { return Done(); }, options);
  ASSERT_TRUE(eventually([&] { return parked(1); }));
  std::this_thread::sleep_for(100ms);  // it has read when that lease lapses
  proxy.hold(Direction::to_client);
  ASSERT_TRUE(eventually([&] { return state(id) == JobState::dead; }));
  auto stopping = std::async(std::launch::async, [&] { return worker.stop(10s); });
  std::this_thread::sleep_for(50ms);
  proxy.release();
  (void)stopping.get();
  EXPECT_EQ(worker.stats().dead_stalled, 1U);
}

TEST_F(WorkerStop, ARunThatIsGivenUpWhileStoppingIsNoHandBack) {
  struct Shared {
    std::atomic<bool> begun{false}, go{false};
  };
  const auto shared = std::make_shared<Shared>();
  WorkerOptions options = quick_options();
  options.stop_patience = 500ms;
  options.stop_grace = 100ms;
  const JobId id = enqueue();
  Worker worker = start(
      [shared](Job&) {
        shared->begun = true;
        while (!shared->go)
          std::this_thread::sleep_for(1ms);
        return Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return shared->begun.load(); }));
  auto stopping = std::async(std::launch::async, [&] { return worker.stop(30s); });
  std::this_thread::sleep_for(50ms);
  worker.cancel(id);
  const StopReport report = stopping.get();
  EXPECT_EQ(report.handed_back, 0U);
  EXPECT_EQ(report.finished, 1U);
  EXPECT_EQ(report.unsettled + report.refused, 0U);
  EXPECT_EQ(report.leaked, 1U);
  EXPECT_EQ(state(id), JobState::dead);
  shared->go = true;
}

TEST_F(WorkerStop, ARunThatHasLostItsJobIsReportedAsRefused) {
  std::atomic<bool> begun{false}, go{false};
  WorkerOptions options = quick_options();
  options.lease = 60s;
  const JobId id = enqueue();
  Worker worker = start(
      [&](Job&) {
        begun = true;
        while (!go)
          std::this_thread::sleep_for(1ms);
        return Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  // As if another claim had come.
  EXPECT_EQ(integer("HINCRBY", "emq:{work}:job:" + std::string(id.text()), "attempts", "1"), 2);
  auto stopping = std::async(std::launch::async, [&] { return worker.stop(30s); });
  std::this_thread::sleep_for(100ms);
  go = true;
  const StopReport report = stopping.get();
  EXPECT_EQ(report.refused, 1U);
  EXPECT_EQ(report.finished + report.handed_back + report.unsettled, 0U);
}

// The hand-back was carried out and its answer is lost: what the second try finds is the first one's work.
TEST_F(WorkerStop, AHandBackWhoseAnswerIsLostIsNeverToldAsRefused) {
  // The script is known before the link is held.
  enqueue("first");
  const auto first = queue_->claim().get().value();
  ASSERT_TRUE(first);
  const queue::Settlement settlement{.id = first->id, .token = first->token};
  ASSERT_TRUE(queue::exchange(*queue_, std::span(&settlement, 1), std::nullopt).get());

  Proxy proxy(server_->url());
  ClientOptions client_options;
  client_options.backoff_initial = 5ms;
  client_options.backoff_max = 20ms;
  Client far = open(proxy.url(), client_options);
  std::mutex mutex;
  std::vector<std::string> verdicts;
  WorkerOptions options = quick_options();
  options.lease = 60s;
  options.on_settled = [&](const Job&, std::string_view verdict) {
    const std::lock_guard lock(mutex);
    verdicts.emplace_back(verdict);
  };
  std::atomic<bool> begun{false};
  const JobId id = enqueue();
  Worker worker = start_on(
      far.queue("work"),
      [&](Job& job) {
        begun = true;
        return until_stopped(job);
      },
      options);
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  proxy.hold(Direction::to_client);
  auto stopping = std::async(std::launch::async, [&] { return worker.stop(0ms); });
  ASSERT_TRUE(eventually([&] { return field(id, "handbacks") == "1"; }));
  EXPECT_GE(proxy.cut(), 1U);
  proxy.heal();
  const StopReport report = stopping.get();
  EXPECT_EQ(report.handed_back, 1U);
  EXPECT_EQ(report.refused + report.unsettled, 0U);
  EXPECT_EQ(worker.stats().handed_back, 1U);
  EXPECT_EQ(state(id), JobState::pending);
  const std::lock_guard lock(mutex);
  EXPECT_EQ(verdicts, std::vector<std::string>{"hand_back"});
}

// The call that settles a job, and would claim the next one, is lost with its connection after the stop deadline. The server is there
// again at once, and the job was left to its lease all the same.
TEST_F(WorkerStop, WhatALostConnectionHasTakenIsSettledAfterTheDeadlineToo) {
  Proxy proxy(server_->url());
  std::atomic<bool> stops{false}, go{false}, begun{false};
  ClientOptions client_options;
  client_options.backoff_initial = 5ms;
  client_options.backoff_max = 20ms;
  client_options.log = [&](LogLevel, std::string_view event, std::span<const LogField>) {
    stops = stops || event == "worker_stopping";
  };
  Client far = open(proxy.url(), client_options);
  WorkerOptions options = quick_options();
  options.lease = 60s;
  const JobId id = enqueue();
  enqueue();  // so that the call would claim
  Worker worker = start_on(
      far.queue("work"),
      [&](Job&) {
        begun = true;
        while (!go)
          std::this_thread::sleep_for(1ms);
        return Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  proxy.hold();
  go = true;
  ASSERT_TRUE(eventually([&] { return worker.stats().running == 0; }));
  auto stopping = std::async(std::launch::async, [&] { return worker.stop(0ms); });
  ASSERT_TRUE(eventually([&] { return stops.load(); }));
  std::this_thread::sleep_for(20ms);
  EXPECT_GE(proxy.cut(), 1U);
  proxy.heal();
  const StopReport report = stopping.get();
  EXPECT_EQ(report.finished, 1U);
  EXPECT_EQ(report.unsettled + report.refused, 0U);
  EXPECT_EQ(state(id), JobState::absent);
  EXPECT_EQ(counts().completed, 1);
  EXPECT_EQ(counts().pending, 1);
}

}  // namespace
}  // namespace echomq::test
