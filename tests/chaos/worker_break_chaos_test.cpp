// Attempts to break a worker: a server that is paused, full, a replica or refuses what it is told; links that are cut in
// the middle of the one call that settles and claims; stops, cancels and time-outs at the worst moment.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "echomq/flow.hpp"
#include "support/proxy.hpp"
#include "support/worker_harness.hpp"
#include "worker_places.hpp"

namespace echomq::test {
namespace {

class WorkerBreak : public WorkerTest {
 protected:
  [[nodiscard]] static WorkerOptions options(std::uint32_t concurrency = 8) {
    WorkerOptions out = quick_options(concurrency);
    out.lease = 1s;
    out.sweep_period = 250ms;
    out.beat = 500ms;
    out.max_stalled = 1000;
    return out;
  }
  /// Runs that came to their end, by job.
  Outcome once(Job& job) {
    const std::lock_guard lock(mutex_);
    ++runs_[std::string(job.id().text())];
    return Done();
  }
  [[nodiscard]] std::string check() { return misplaced(*client_, "work"); }
  [[nodiscard]] std::string where() {
    const QueueCounts now = counts();
    return std::to_string(now.pending) + " pending, " + std::to_string(now.active) + " active, " +
           std::to_string(now.scheduled) + " scheduled, " + std::to_string(now.dead) + " dead, " +
           std::to_string(now.completed) + " completed; " + check();
  }
  [[nodiscard]] bool all_done(std::int64_t jobs, std::chrono::milliseconds limit = 30s) {
    return eventually([&] { return counts().completed == jobs; }, limit);
  }

  std::mutex mutex_;
  std::map<std::string, int> runs_;
};

TEST_F(WorkerBreak, AServerPausedForLongerThanALeaseLosesAndDoublesNothing) {
  constexpr int kJobs = 3000;
  Client far = open();
  Worker one = start([&](Job& job) { return once(job); }, options());
  Worker two = start_on(far.queue("work"), [&](Job& job) { return once(job); }, options());
  std::thread producer([&] {
    for (int i = 0; i < kJobs; i += 100) {
      enqueue_many(100);
      std::this_thread::sleep_for(50ms);
    }
  });
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(300ms);
    (void)client_->command("CLIENT", "PAUSE", round == 1 ? "300" : "1500", "ALL").get();
  }
  producer.join();
  EXPECT_TRUE(all_done(kJobs)) << where();
  EXPECT_EQ(runs_.size(), std::size_t{kJobs});
  one.stop();
  two.stop();
  EXPECT_EQ(check(), "");
  EXPECT_EQ(counts().active, 0);
}

// A whole process's server may also be stopped without a word: nothing is answered, connections stay open.
TEST_F(WorkerBreak, AServerThatIsStoppedForThreeLeasesIsWorkedOnAfterwards) {
  constexpr int kJobs = 500;
  enqueue_many(kJobs);
  Worker worker = start(
      [&](Job& job) {
        std::this_thread::sleep_for(5ms);
        return once(job);
      },
      options());
  ASSERT_TRUE(eventually([&] { return counts().completed > 20; }));
  server_->pause();
  std::this_thread::sleep_for(3s);
  server_->resume();
  EXPECT_TRUE(all_done(kJobs)) << where();
  EXPECT_EQ(runs_.size(), std::size_t{kJobs});
  EXPECT_EQ(check(), "");
}

TEST_F(WorkerBreak, AFullServerIsWorkedOffBySettlesAndClaims) {
  constexpr int kJobs = 2000;
  const LaneId tenant = lane();
  for (int i = 0; i < kJobs; i += 10) {
    const std::string payload(2000, 'p');
    const std::vector<NewJob> jobs(10, NewJob{.payload = payload, .id = {}});
    EnqueueManyOptions how;
    if (i % 20 == 0)
      how.lane = tenant;
    ASSERT_TRUE(queue_->enqueue_many(jobs, how).get());
  }
  ASSERT_TRUE(client_->command("CONFIG", "SET", "maxmemory", "1mb").get());
  const auto refused = queue_->enqueue("no room").get();
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(Errc::out_of_memory)) << refused.error().message();
  Worker worker = start(
      [&](Job& job) -> Outcome {
        if (job.attempt() == 1 && job.id().text().back() == 'A')
          return Retry("once", 1ms);
        return once(job);
      },
      options());
  EXPECT_TRUE(all_done(kJobs)) << where();
  EXPECT_EQ(runs_.size(), std::size_t{kJobs});
  worker.stop();
  EXPECT_EQ(check(), "");
}

TEST_F(WorkerBreak, AMasterThatIsAReadOnlyReplicaForAWhileLosesNothing) {
  constexpr int kJobs = 1000;
  enqueue_many(kJobs);
  auto other = testing::PrivateServer::start();
  ASSERT_TRUE(other);
  Worker worker = start(
      [&](Job& job) {
        std::this_thread::sleep_for(3ms);
        return once(job);
      },
      options());
  ASSERT_TRUE(eventually([&] { return counts().completed > 50; }));
  // Of a master that is not there, so that it keeps what it has.
  const std::uint16_t nobody = other->port();
  other->kill();
  ASSERT_TRUE(client_->command("REPLICAOF", "127.0.0.1", std::to_string(nobody)).get());
  std::this_thread::sleep_for(1500ms);
  const std::int64_t meanwhile = counts().completed;
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(counts().completed, meanwhile);
  ASSERT_TRUE(client_->command("REPLICAOF", "NO", "ONE").get());
  EXPECT_TRUE(all_done(kJobs)) << where();
  EXPECT_EQ(runs_.size(), std::size_t{kJobs});
  EXPECT_GT(worker.stats().errors, 0U);
  worker.stop();
  EXPECT_EQ(check(), "");
}

// CASES 25: the script cache is emptied under load, and the settle that finds it empty may not be done twice.
TEST_F(WorkerBreak, FlushedScriptsUnderRetriesAndLanesDoNothingTwice) {
  constexpr int kJobs = 2000;
  const LaneId tenant = lane();
  ASSERT_TRUE(queue_->limit_lane(tenant, 2).get());
  std::atomic<bool> go_on{true};
  std::thread saboteur([&] {
    Client third = open();
    while (go_on) {
      EXPECT_TRUE(third.command("SCRIPT", "FLUSH", "SYNC").get());
      std::this_thread::sleep_for(5ms);
    }
  });
  Worker worker = start(
      [&](Job& job) -> Outcome {
        if (job.attempt() == 1 && job.id().text().back() % 3 == 0)
          return Retry("once", 1ms);
        return once(job);
      },
      options());
  for (int i = 0; i < kJobs; i += 50) {
    const std::vector<NewJob> jobs(50, NewJob{.payload = "x", .id = {}});
    EnqueueManyOptions how;
    if (i % 100 == 0)
      how.lane = tenant;
    ASSERT_TRUE(queue_->enqueue_many(jobs, how).get());
  }
  EXPECT_TRUE(all_done(kJobs)) << where();
  go_on = false;
  saboteur.join();
  EXPECT_EQ(runs_.size(), std::size_t{kJobs});
  for (const auto& [id, times] : runs_)
    EXPECT_EQ(times, 1) << id;
  EXPECT_EQ(worker.stats().errors, 0U);
}

// CASES 10, 12, for the call that settles and claims: cut at a byte of the request or of the answer.
TEST_F(WorkerBreak, TheExchangeIsCutAtTwoHundredBytesAndEachJobCountsOnce) {
  constexpr int kRounds = 200;
  constexpr int kJobs = 6;
  Proxy proxy(server_->tcp_url());
  ClientOptions hasty;
  hasty.backoff_initial = 1ms;
  hasty.backoff_max = 10ms;
  Client far = open(proxy.url(), hasty);
  WorkerOptions how = options(2);
  how.lease = 200ms;
  how.sweep_period = 50ms;
  how.beat = 100ms;
  Worker worker = start_on(
      far.queue("work"),
      [&](Job& job) -> Outcome {
        if (job.failures() == 0 && job.payload() == "fails")
          return Retry("once", 0ms);
        return once(job);
      },
      how);
  std::mt19937 random{11};
  const LaneId tenant = lane();
  ASSERT_TRUE(queue_->limit_lane(tenant, 1).get());
  int expected = 0;
  for (int round = 0; round < kRounds; ++round) {
    proxy.cut_after(random() % 2 == 0 ? Direction::to_server : Direction::to_client, random() % 900);
    for (int i = 0; i < kJobs; ++i) {
      EnqueueOptions target;
      if (i % 2 == 0)
        target.lane = tenant;
      enqueue(i % 3 == 0 ? "fails" : "x", target);
    }
    expected += kJobs;
    ASSERT_TRUE(all_done(expected, 20s)) << "round " << round << ": " << where();
    proxy.heal();
    if (round % 10 == 0) {
      ASSERT_EQ(check(), "");
    }
  }
  EXPECT_EQ(runs_.size(), static_cast<std::size_t>(expected));
  EXPECT_GT(proxy.counters().cut, 100U);
  worker.stop();
  EXPECT_EQ(check(), "");
  EXPECT_EQ(counts().active, 0);
  std::printf("%llu cuts, %llu recovered, %llu settles refused, %llu errors\n",
              static_cast<unsigned long long>(proxy.counters().cut),
              static_cast<unsigned long long>(worker.stats().recovered),
              static_cast<unsigned long long>(worker.stats().settles_refused),
              static_cast<unsigned long long>(worker.stats().errors));
}

// The settle of one job fails in the script each time (its parent's count is no number): the others are not held up.
TEST_F(WorkerBreak, ASettleThatTheServerCannotDoStopsNobodyElse) {
  std::vector<FlowJob> children(1);
  children[0].payload = "poison";
  FlowJob root;
  root.payload = "parent";
  root.children = children;
  const FlowAdded added = Flow(*queue_).add(root).get().value();
  const std::string count = "emq:{work}:job:" + std::string(added.parent.text()) + ":dependencies";
  ASSERT_TRUE(client_->command("DEL", count).get());
  ASSERT_TRUE(client_->command("HSET", count, "no", "number").get());
  constexpr int kJobs = 500;
  enqueue_many(kJobs);
  Worker worker = start([&](Job& job) { return once(job); }, options());
  EXPECT_TRUE(eventually([&] { return counts().completed >= kJobs; }, 30s)) << where();
  enqueue_many(100);
  EXPECT_TRUE(eventually([&] { return counts().completed >= kJobs + 100; }, 30s)) << where();
  const auto begin = std::chrono::steady_clock::now();
  worker.stop(500ms);
  EXPECT_LE(since(begin), bound(5s));
}

// A result larger than the server takes: it closes the connection at the sight of it, and does so each time.
TEST_F(WorkerBreak, AResultThatTheServerDoesNotTakeEndsAsAFailureAndStopsNobodyElse) {
  ASSERT_TRUE(client_->command("CONFIG", "SET", "proto-max-bulk-len", "1mb").get());
  constexpr int kJobs = 300;
  const JobId poison = enqueue("poison");
  enqueue_many(kJobs);
  WorkerOptions how = options(4);
  how.max_attempts = 1;
  std::string told;
  how.on_settled = [&](const Job& job, std::string_view verdict) {
    if (job.id() == poison)
      told += std::string(verdict) + "; ";
  };
  Worker worker = start(
      [&](Job& job) -> Outcome {
        if (job.payload() == "poison")
          return Done(std::string(3 << 20, 'r'));
        return once(job);
      },
      how);
  EXPECT_TRUE(eventually([&] { return counts().completed >= kJobs; }, 30s)) << where();
  const bool ends = eventually([&] { return state(poison) == JobState::dead; }, 20s);
  EXPECT_TRUE(ends) << where() << ", errors " << worker.stats().errors << ", told " << told;
  EXPECT_NE(field(poison, "last_error").find("does not take a result of"), std::string::npos)
      << field(poison, "last_error");
  enqueue_many(100);
  EXPECT_TRUE(eventually([&] { return counts().completed >= kJobs + 100; }, 30s)) << where();
}

TEST_F(WorkerBreak, AThousandJobsOfAllOutcomesEndAsTheyShould) {
  constexpr int kJobs = 1000;
  const std::vector<std::string> kinds = {"done", "retry", "delay", "dead", "back", "throw", "unrecoverable", "result"};
  const LaneId tenant = lane();
  std::map<std::string, std::vector<JobId>> ids;
  for (int i = 0; i < kJobs; ++i) {
    const std::string& kind = kinds[static_cast<std::size_t>(i) % kinds.size()];
    EnqueueOptions how;
    if (i % 3 == 0)
      how.lane = tenant;
    ids[kind].push_back(enqueue(kind, how));
  }
  WorkerOptions how = options(16);
  how.max_attempts = 2;
  how.backoff = Backoff::fixed(1ms);
  std::atomic<int> delayed{0};
  Worker worker = start(
      [&](Job& job) -> Outcome {
        const std::string_view kind = job.payload();
        if (kind == "retry")
          return Retry("always");
        if (kind == "dead")
          return Dead("at once");
        if (kind == "throw")
          throw std::runtime_error("thrown");
        if (kind == "unrecoverable")
          throw Unrecoverable("no use");
        if (kind == "back" && job.attempt() == 1)
          return HandBack();
        if (kind == "delay" && job.attempt() == 1) {
          ++delayed;
          return Delay(20ms);
        }
        return kind == "result" ? Done("a result") : Done();
      },
      how);
  constexpr int kEnd = kJobs / 8;
  EXPECT_TRUE(eventually(
      [&] {
        const QueueCounts now = counts();
        return now.completed == 4 * kEnd && now.dead == 4 * kEnd;
      },
      20s))
      << where();
  worker.stop();
  const WorkerStats stats = worker.stats();
  EXPECT_EQ(stats.completed, std::uint64_t{4 * kEnd});
  EXPECT_EQ(stats.dead, std::uint64_t{4 * kEnd});
  EXPECT_EQ(stats.retried, std::uint64_t{2 * kEnd});
  EXPECT_EQ(stats.delayed, std::uint64_t{kEnd});
  EXPECT_EQ(stats.settles_refused, 0U);
  EXPECT_EQ(delayed, kEnd);
  for (const auto& [kind, error] : std::map<std::string, std::string>{
           {"retry", "always"}, {"dead", "at once"}, {"throw", "thrown"}, {"unrecoverable", "no use"}}) {
    for (const JobId& id : ids[kind]) {
      EXPECT_EQ(state(id), JobState::dead) << kind;
      EXPECT_EQ(field(id, "last_error"), error);
    }
  }
  for (const std::string kind : {"done", "delay", "back", "result"}) {
    for (const JobId& id : ids[kind])
      EXPECT_EQ(state(id), JobState::absent) << kind;
  }
  EXPECT_EQ(check(), "");
  EXPECT_EQ(integer("EXISTS", "emq:{work}:gactive", "emq:{work}:ring"), 0);
}

TEST_F(WorkerBreak, TwoHundredStopsAtRandomMomentsUnderLoadLoseNothing) {
  std::mt19937 random{3};
  const LaneId lanes[] = {lane(), lane()};
  ASSERT_TRUE(queue_->limit_lane(lanes[0], 2).get());
  std::int64_t enqueued = 0;
  const auto handler = [&](Job& job) -> Outcome {
    thread_local std::mt19937 dice{std::random_device{}()};
    if (dice() % 4 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds{dice() % 3000});
    if (dice() % 8 == 0)
      return Retry("now and then", Milliseconds{dice() % 5});
    if (dice() % 16 == 0)
      return HandBack();
    return once(job);
  };
  WorkerOptions how = options();
  how.max_attempts = 1'000'000;
  how.stop_grace = 5s;
  for (int round = 0; round < 200; ++round) {
    if (counts().pending < 400) {
      for (const LaneId* target : {static_cast<const LaneId*>(nullptr), &lanes[0], &lanes[1]}) {
        const std::vector<NewJob> jobs(200, NewJob{.payload = "x", .id = {}});
        EnqueueManyOptions into;
        if (target != nullptr)
          into.lane = *target;
        ASSERT_TRUE(queue_->enqueue_many(jobs, into).get());
        enqueued += 200;
      }
    }
    Worker worker = start(handler, how);
    std::this_thread::sleep_for(std::chrono::microseconds{random() % 8000});
    const Milliseconds deadline{random() % 3 == 0 ? 5000 : random() % 3};
    StopReport report;
    if (random() % 2 == 0) {
      // Two at once, with different deadlines: one report for both.
      StopReport other;
      std::thread second([&] { other = worker.stop(5s); });
      report = worker.stop(deadline);
      second.join();
      EXPECT_EQ(other.finished, report.finished);
      EXPECT_EQ(other.handed_back, report.handed_back);
    } else {
      report = worker.stop(deadline);
    }
    ASSERT_EQ(report.unsettled, 0U) << round;
    ASSERT_EQ(report.leaked, 0U) << round;
    ASSERT_EQ(counts().active, 0) << round << ": " << where();
    ASSERT_EQ(integer("EXISTS", "emq:{work}:gactive"), 0) << round;
    ASSERT_EQ(integer("ZCARD", "emq:{work}:parked"), 0) << round;
    if (round % 10 == 0) {
      ASSERT_EQ(check(), "") << round;
    }
  }
  Worker last = start([&](Job& job) { return once(job); }, how);
  EXPECT_TRUE(all_done(enqueued)) << where();
  EXPECT_EQ(runs_.size(), static_cast<std::size_t>(enqueued));
}

TEST_F(WorkerBreak, AWorkerThatIsDestroyedInItsOwnHandlerEndsByItself) {
  for (int round = 0; round < 20; ++round) {
    constexpr int kJobs = 50;
    enqueue_many(kJobs);
    const std::int64_t before = counts().completed;
    std::mutex mutex;
    std::unique_ptr<Worker> worker;
    std::atomic<int> returned{0};
    {
      const std::lock_guard lock(mutex);  // a handler finds the pointer set
      worker = std::make_unique<Worker>(start(
          [&](Job&) {
            std::unique_ptr<Worker> mine;
            {
              const std::lock_guard inner(mutex);
              mine = std::move(worker);
            }
            mine.reset();
            ++returned;
            return Done();
          },
          options(4)));
    }
    ASSERT_TRUE(eventually([&] { return counts().active == 0 && counts().completed > before && parked(0); }))
        << where();
    EXPECT_GE(returned, 1);
    // What it did not begin is there for the next one.
    Worker next = start([](Job&) { return Done(); }, options());
    ASSERT_TRUE(eventually([&] { return counts().completed == std::int64_t{kJobs} * (round + 1); })) << where();
  }
}

TEST_F(WorkerBreak, AStormOfCancelsEndsEachJobOnce) {
  constexpr int kJobs = 2000;
  std::vector<JobId> ids;
  Client far = open();
  std::atomic<int> done{0};
  std::atomic<bool> storm{false};
  const auto handler = [&](Job& job) -> Outcome {
    // However late the cancels begin, the jobs are there still.
    while (!storm && !job.stop_token().stop_requested())
      std::this_thread::sleep_for(300us);
    for (int i = 0; i < 10 && !job.stop_token().stop_requested(); ++i)
      std::this_thread::sleep_for(300us);
    if (job.stop_cause() == StopCause::cancelled)
      return Retry("stopped");
    ++done;
    return Done();
  };
  const LaneId tenant = lane();
  for (int i = 0; i < kJobs; ++i) {
    EnqueueOptions how;
    if (i % 2 == 0)
      how.lane = tenant;
    ids.push_back(enqueue("x", how));
  }
  Worker one = start(handler, options());
  Worker two = start_on(far.queue("work"), handler, options());
  std::vector<std::thread> threads;
  std::atomic<int> told{0};
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      // Each job is asked for twice, by threads that walk in different directions.
      for (std::size_t i = 0; i < ids.size(); ++i) {
        storm = storm || i == 50;  // the first ones run
        const JobId id = t % 2 == 0 ? ids[i] : ids[ids.size() - 1 - i];
        const auto verdict = queue_->cancel(id).get();
        if (!verdict) {
          EXPECT_TRUE(verdict.error().is(Errc::job_gone)) << verdict.error().message();
        } else if (*verdict == CancelVerdict::cancelled || *verdict == CancelVerdict::requested) {
          ++told;
        }
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_TRUE(eventually([&] { return counts().completed + counts().dead == kJobs; }, 30s)) << where();
  one.stop();
  two.stop();
  EXPECT_EQ(counts().completed, done.load());
  EXPECT_GT(counts().dead, 0);
  EXPECT_GT(one.stats().cancelled + two.stats().cancelled, 0U);
  EXPECT_EQ(counts().active, 0);
  EXPECT_EQ(counts().scheduled, 0);
  for (const JobId& id : ids) {
    if (state(id) == JobState::dead) {
      EXPECT_EQ(field(id, "last_error"), "cancelled");
    }
  }
  EXPECT_EQ(check(), "");
  EXPECT_EQ(integer("EXISTS", "emq:{work}:gactive", "emq:{work}:ring"), 0);
  std::printf("%lld done, %lld dead, %d asked\n", static_cast<long long>(counts().completed),
              static_cast<long long>(counts().dead), told.load());
}

TEST_F(WorkerBreak, TimeOutsAtTheMomentOfCompletionCountEachJobOnce) {
  constexpr int kJobs = 1000;
  enqueue_many(kJobs);
  WorkerOptions how = options(8);
  how.timeout = 4ms;
  how.stop_patience = 0ms;
  how.max_leaked = 1'000;
  how.max_attempts = 1'000'000;
  how.backoff = Backoff::fixed(0ms);
  std::atomic<std::uint64_t> settled{0};
  how.on_settled = [&](const Job&, std::string_view verdict) { settled += verdict == "done" ? 1 : 0; };
  Worker worker = start(
      [&](Job&) {
        thread_local std::mt19937 dice{std::random_device{}()};
        std::this_thread::sleep_for(std::chrono::microseconds{3600 + dice() % 800});
        return Done();
      },
      how);
  EXPECT_TRUE(all_done(kJobs, 60s)) << where();
  EXPECT_TRUE(eventually([&] { return worker.stats().leaked == 0; })) << worker.stats().leaked << " leaked";
  worker.stop();
  EXPECT_EQ(worker.stats().completed, std::uint64_t{kJobs});
  EXPECT_EQ(settled, std::uint64_t{kJobs});
  EXPECT_GT(worker.stats().timed_out, 0U) << "none was over its time: this shows nothing";
  EXPECT_EQ(worker.stats().running, 0U);
  EXPECT_EQ(counts().active, 0);
  EXPECT_EQ(check(), "");
  std::printf("%llu timed out, %llu retried\n", static_cast<unsigned long long>(worker.stats().timed_out),
              static_cast<unsigned long long>(worker.stats().retried));
}

}  // namespace
}  // namespace echomq::test
