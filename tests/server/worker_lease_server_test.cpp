// Leases: kept as long as a run takes, and what happens to a run that has lost its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "queue/exchange.hpp"
#include "script/registry.hpp"
#include "support/proxy.hpp"
#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;

class WorkerLease : public WorkerTest {
 protected:
  /// Sleeps, but no longer than until the stop of the job is requested.
  static bool sleep_or_stop(const Job& job, std::chrono::milliseconds time) {
    const auto until = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < until) {
      if (job.stop_token().stop_requested())
        return false;
      std::this_thread::sleep_for(1ms);
    }
    return true;
  }
};

TEST_F(WorkerLease, AJobOfManyLeasesRunsOnceWhileOthersSweep) {
  WorkerOptions options = quick_options(4);
  options.lease = 1s;
  options.sweep_period = 50ms;
  std::atomic<int> runs{0};
  const auto handler = [&](Job& job) {
    ++runs;
    EXPECT_TRUE(sleep_or_stop(job, 4s));
    return Done();
  };
  for (int i = 0; i < 4; ++i)
    enqueue();
  Client other = open();
  Worker first = start(handler, options), second = start_on(other.queue("work"), handler, options);
  ASSERT_TRUE(eventually([&] { return counts().completed == 4; }));
  EXPECT_EQ(runs, 4);
  EXPECT_EQ(first.stats().leases_lost + second.stats().leases_lost, 0U);
  EXPECT_EQ(first.stats().recovered + second.stats().recovered, 0U);
}

// The settle was carried out, its answer is lost, and the link is away for longer than a call may be sent again: the
// worker asks once more, finds the job gone and knows that it was this very settle.
TEST_F(WorkerLease, ADoneJobWhoseAnswerIsLostIsNeverToldAsRefused) {
  Proxy proxy(server_->url());
  ClientOptions client_options;
  client_options.resend_window = 200ms;
  client_options.backoff_initial = 5ms;
  client_options.backoff_max = 20ms;
  Client far = open(proxy.url(), client_options);
  WorkerOptions options = quick_options();
  options.lease = 20s;
  std::mutex mutex;
  std::vector<std::string> verdicts;
  options.on_settled = [&](const Job&, std::string_view verdict) {
    const std::lock_guard lock(mutex);
    verdicts.emplace_back(verdict);
  };
  std::atomic<bool> hold{false};
  Worker worker = start_on(
      far.queue("work"),
      [&](Job&) {
        if (hold)
          proxy.hold(Direction::to_client);
        return Done();
      },
      options);
  enqueue();  // loads the scripts
  ASSERT_TRUE(eventually([&] { return worker.stats().completed == 1 && parked(1); }));
  hold = true;
  const JobId id = enqueue();
  ASSERT_TRUE(eventually([&] { return counts().completed == 2; }));
  proxy.refuse_new(true);
  EXPECT_GE(proxy.cut(), 1U);
  std::this_thread::sleep_for(600ms);  // three windows
  proxy.heal();
  ASSERT_TRUE(eventually([&] { return worker.stats().completed == 2; })) << worker.stats().settles_refused;
  EXPECT_EQ(worker.stats().settles_refused, 0U);
  EXPECT_GE(far.stats().outcomes_unknown, 1U);
  EXPECT_EQ(state(id), JobState::absent);
  // A settle is counted before its callback is called.
  EXPECT_TRUE(eventually([&] {
    const std::lock_guard lock(mutex);
    return verdicts.size() == 2;
  }));
  const std::lock_guard lock(mutex);
  EXPECT_THAT(verdicts, ElementsAre("done", "done"));
}

// The settle was carried out and its answer is lost; before the worker asks once more the job has been claimed by somebody else, or
// has even ended. It was told, and counted, as refused.
TEST_F(WorkerLease, ARetryOrADelayWhoseAnswerIsLostIsNeverToldAsRefused) {
  ClientOptions client_options;
  client_options.backoff_initial = 5ms;
  client_options.backoff_max = 20ms;
  for (const bool retries : {true, false}) {
    for (const bool ends : {true, false}) {
      Proxy proxy(server_->url());
      Client far = open(proxy.url(), client_options);
      WorkerOptions options = quick_options();
      options.lease = 60s;
      std::mutex mutex;
      std::vector<std::string> verdicts;
      options.on_settled = [&](const Job&, std::string_view verdict) {
        const std::lock_guard lock(mutex);
        verdicts.emplace_back(verdict);
      };
      std::atomic<bool> hold{false};
      Worker worker = start_on(
          far.queue("work"),
          [&](Job&) {
            if (!hold)
              return Done();
            proxy.hold(Direction::to_client);
            return retries ? Retry("once more", 0ms) : Delay(0ms);
          },
          options);
      enqueue();  // loads the scripts
      ASSERT_TRUE(eventually([&] { return worker.stats().completed == 1 && parked(1); }));
      hold = true;
      const JobId id = enqueue();
      ASSERT_TRUE(eventually([&] { return field(id, "attempts") == "1" && state(id) != JobState::active; }));
      std::optional<ClaimedJob> claimed;
      ASSERT_TRUE(eventually([&] {
        (void)queue_->promote().get().value();
        claimed = queue_->claim().get().value();
        return claimed.has_value();
      }));
      EXPECT_EQ(claimed->token.value(), 2U);
      if (ends) {
        ASSERT_TRUE(queue_->complete(id, claimed->token).get());
      }
      EXPECT_GE(proxy.cut(), 1U);
      proxy.heal();
      const auto told = [&] { return retries ? worker.stats().retried : worker.stats().delayed; };
      EXPECT_TRUE(eventually([&] { return told() + worker.stats().settles_refused == 1; }));
      EXPECT_EQ(told(), 1U);
      EXPECT_EQ(worker.stats().leases_lost, 0U);
      worker.stop();
      if (!ends) {
        ASSERT_TRUE(queue_->complete(id, claimed->token).get());
      }
      const std::lock_guard lock(mutex);
      EXPECT_THAT(verdicts, ElementsAre("done", retries ? "retry" : "delay"));
    }
  }
}

// The same, and it is this very worker that has claimed the job again before it asks once more, in about every other round: that was
// counted as a lost lease and as a refused settle. The call claims a second job, so that it is not sent again as it is; that one's
// claim is lost.
TEST_F(WorkerLease, ARetryWhoseAnswerIsLostIsNoLostLeaseWhenItsWorkerHasTheJobAgain) {
  constexpr int kRounds = 12;
  Proxy proxy(server_->url());
  ClientOptions client_options;
  client_options.backoff_initial = 1ms;
  client_options.backoff_max = 5ms;
  Client far = open(proxy.url(), client_options);
  WorkerOptions options = quick_options();
  options.lease = 60s;
  Worker worker = start_on(
      far.queue("work"),
      [&](Job& job) {
        std::this_thread::sleep_for(30ms);  // one that is slow is given one job at a time
        if (job.payload() != "twice" || job.attempt() > 1)
          return Done();
        proxy.hold(Direction::to_client);
        return Retry("once more", 0ms);
      },
      options);
  enqueue_many(3);  // loads the scripts
  ASSERT_TRUE(eventually([&] { return worker.stats().completed == 3; }));
  for (int round = 1; round <= kRounds; ++round) {
    ASSERT_TRUE(eventually([&] { return parked(1); }));
    const std::vector<NewJob> jobs = {{.payload = "twice", .id = {}}, {.payload = "lost", .id = {}}};
    const auto admitted = queue_->enqueue_many(jobs).get();
    ASSERT_TRUE(admitted && admitted->front());
    ASSERT_TRUE(eventually([&] { return !field(admitted->front()->id, "last_error").empty(); }));
    (void)queue_->promote().get().value();
    EXPECT_GE(proxy.cut(), 1U);
    proxy.heal();
    ASSERT_TRUE(eventually([&] { return worker.stats().completed >= 3U + static_cast<unsigned>(round); }));
  }
  EXPECT_TRUE(eventually([&] { return worker.stats().retried + worker.stats().settles_refused >= kRounds; }));
  EXPECT_EQ(worker.stats().leases_lost, 0U);
  EXPECT_EQ(worker.stats().settles_refused, 0U);
}

// A run hands its job back, and the answer takes its time. The claim that rides behind the BLPOP, on the other connection, has the job here
// once more meanwhile. Both were renewed by one call; the server refused the earlier run by its id, and the later one was told that its
// lease was lost.
TEST_F(WorkerLease, ARunIsNotLostWithTheEarlierRunOfItsJob) {
  // The scripts are known before the link is held.
  enqueue();
  const auto taken = queue::exchange(*queue_, {}, queue::TakeRequest{.most = 1, .lease = 60s}).get();
  ASSERT_TRUE(taken && taken->jobs.size() == 1);
  const echomq::Held held{taken->jobs.front().job.id, taken->jobs.front().job.token};
  ASSERT_TRUE(queue_->extend_many(std::span(&held, 1), 60s).get());
  const queue::Settlement done{.id = held.id, .token = held.token};
  ASSERT_TRUE(queue::exchange(*queue_, std::span(&done, 1), std::nullopt).get());

  std::atomic<std::uint64_t> main{~std::uint64_t{0}};
  std::atomic<bool> second{false};
  std::atomic<int> renewals{0};
  const std::string_view renewal = script::find_script("extend_locks")->sha1;
  Proxy proxy(server_->url(), {.tap = [&](std::uint64_t connection, Direction direction, std::string_view bytes) {
                auto none = ~std::uint64_t{0};
                main.compare_exchange_strong(none, connection);
                if (second && direction == Direction::to_server && bytes.find(renewal) != std::string_view::npos)
                  ++renewals;
              }});
  Client far = open(proxy.url());
  WorkerOptions options = quick_options(2);
  options.lease = 6s;
  std::atomic<bool> first{false}, go{false}, end{false}, stopped{false};
  const JobId id = enqueue();
  Worker worker = start_on(
      far.queue("work"),
      [&](Job& job) {
        if (job.attempt() == 1) {
          first = true;
          while (!go)
            std::this_thread::sleep_for(1ms);
          return HandBack();
        }
        second = true;
        while (!end) {
          std::this_thread::sleep_for(1ms);
          stopped = stopped || job.stop_token().stop_requested();
        }
        return Done();
      },
      options);
  // The second slot sleeps, with its claim on the server.
  ASSERT_TRUE(eventually([&] { return first && parked(1); }));
  std::this_thread::sleep_for(100ms);
  proxy.hold(Direction::to_client, main);
  go = true;
  ASSERT_TRUE(eventually([&] { return second.load(); }, 1500ms)) << "no claim waited on the server";
  ASSERT_TRUE(eventually([&] { return renewals > 0; }));
  std::this_thread::sleep_for(50ms);
  proxy.release();
  ASSERT_TRUE(eventually([&] { return worker.stats().handed_back == 1; }));
  std::this_thread::sleep_for(100ms);
  end = true;
  EXPECT_TRUE(eventually([&] { return worker.stats().completed == 1; }));
  EXPECT_EQ(state(id), JobState::absent);
  EXPECT_FALSE(stopped);
  EXPECT_EQ(worker.stats().leases_lost, 0U);
  EXPECT_EQ(worker.stats().settles_refused, 0U);
}

// Case 1: a worker whose link hangs for three leases; its job goes to another worker meanwhile.
TEST_F(WorkerLease, ARunWhoseLinkWasHeldForThreeLeasesIsRefusedAndToldAtOnce) {
  std::mutex mutex;
  std::vector<std::string> events;
  auto subscription = client_
                          ->subscribe("emq:{work}:events", {.on_message =
                                                                [&](std::string_view, std::string_view payload) {
                                                                  const std::lock_guard lock(mutex);
                                                                  events.emplace_back(payload);
                                                                },
                                                            .on_gap = {}})
                          .get();
  ASSERT_TRUE(subscription);

  Proxy proxy(server_->tcp_url());
  Client far = open(proxy.url());
  WorkerOptions options = quick_options();
  options.beat = 500ms;
  options.lease = 2s;
  // The run whose lease is lost goes on for longer than a worker may wait for it.
  struct Run {
    std::atomic<std::int64_t> told_after{-1};
    std::atomic<bool> begun{false}, lease_lost{false};
    std::atomic<std::chrono::steady_clock::time_point> held_at{};
    std::promise<void> released;
    const std::shared_future<void> go_on = released.get_future().share();
  };
  const auto run = std::make_shared<Run>();
  std::atomic<int> lost_calls{0};
  WorkerOptions options_a = options;
  options_a.on_lease_lost = [&](const Job&) { ++lost_calls; };
  const JobId id = enqueue();
  Worker a = start_on(
      far.queue("work"),
      [run](Job& job) {
        run->begun = true;
        if (!sleep_or_stop(job, 60s))
          run->told_after = since(run->held_at.load()).count();
        run->lease_lost = job.lease_lost();
        EXPECT_FALSE(job.progress("too late"));
        run->go_on.wait();
        return Done("from a");
      },
      options_a);
  ASSERT_TRUE(eventually([&] { return run->begun.load(); }));
  run->held_at = std::chrono::steady_clock::now();
  proxy.hold();

  std::atomic<int> runs_of_b{0};
  Worker b = start(
      [&](Job& job) {
        ++runs_of_b;
        EXPECT_EQ(job.id(), id);
        EXPECT_EQ(job.attempt(), 2U);
        return Done("from b");
      },
      options);
  std::this_thread::sleep_for(3 * options.lease);
  EXPECT_EQ(runs_of_b, 1);
  EXPECT_EQ(counts().completed, 1);
  EXPECT_GE(run->told_after, 0) << "the handler is told before the link is back";
  EXPECT_LE(run->told_after, 2000 + bound(500ms).count());
  EXPECT_TRUE(run->lease_lost);
  EXPECT_EQ(lost_calls, 1);

  proxy.release();
  run->released.set_value();
  ASSERT_TRUE(eventually([&] { return a.stats().settles_refused == 1; }, 20s));
  EXPECT_EQ(a.stats().completed, 0U);
  EXPECT_EQ(a.stats().leases_lost, 1U);
  EXPECT_EQ(counts().completed, 1);
  EXPECT_EQ(state(id), JobState::absent);
  a.stop();
  b.stop();
  const std::lock_guard lock(mutex);
  EXPECT_EQ(std::count_if(events.begin(), events.end(),
                          [](const std::string& event) { return event.find("completed") != std::string::npos; }),
            1);
}

// The settle went out, the link hung for longer than the lease, and another worker has done the job meanwhile.
TEST_F(WorkerLease, ASettleThatHungLongerThanItsLeaseIsNotCountedAsDoneTwice) {
  Proxy proxy(server_->tcp_url());
  Client far = open(proxy.url());
  WorkerOptions options = quick_options();
  options.lease = 1s;
  options.sweep_period = 200ms;
  std::atomic<bool> begun{false}, go{false};
  enqueue();
  Worker a = start_on(
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
  Worker b = start([](Job&) { return Done(); }, options);
  ASSERT_TRUE(eventually([&] { return b.stats().completed == 1; }));
  ASSERT_TRUE(eventually([&] { return a.stats().leases_lost == 1; }));
  std::this_thread::sleep_for(1s);
  proxy.cut();
  proxy.release();
  ASSERT_TRUE(eventually([&] { return a.stats().settles_refused + a.stats().unsettled == 1; }, 10s));
  EXPECT_EQ(a.stats().completed, 0U);
  EXPECT_EQ(counts().completed, 1);
}

TEST_F(WorkerLease, ARunThatTheServerNoLongerKnowsIsToldAtTheNextRenewal) {
  WorkerOptions options = quick_options();
  options.lease = 600ms;
  std::atomic<bool> begun{false}, told{false};
  const JobId id = enqueue();
  Worker worker = start(
      [&](Job& job) {
        begun = true;
        told = !sleep_or_stop(job, 10s);
        return Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  ASSERT_TRUE(client_->command("DEL", "emq:{work}:job:" + std::string(id.text())).get());
  ASSERT_TRUE(eventually([&] { return told.load(); }, 1s));
  EXPECT_TRUE(eventually([&] { return worker.stats().settles_refused == 1; }));
  EXPECT_EQ(worker.stats().leases_lost, 1U);
  EXPECT_EQ(worker.stats().completed, 0U);
}

TEST_F(WorkerLease, ALateSettleIsAcceptedWhileNobodyElseHoldsTheJob) {
  WorkerOptions options = quick_options();
  options.lease = 600ms;
  std::atomic<bool> begun{false};
  const JobId id = enqueue();
  Worker worker = start(
      [&](Job& job) {
        begun = true;
        sleep_or_stop(job, 10s);
        return Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  // As a reaper does it, in one step; with the queue paused nobody claims it again.
  ASSERT_TRUE(queue_->pause().get());
  const std::string text(id.text());
  const std::string row = "emq:{work}:job:" + text;
  const std::string_view zrem[] = {"ZREM", "emq:{work}:active", text};
  const std::string_view zadd[] = {"ZADD", "emq:{work}:pending", "0", text};
  const std::string_view hset[] = {"HSET", row, "state", "pending"};
  const CommandParts reaped[] = {zrem, zadd, hset};
  ASSERT_TRUE(client_->transaction(reaped).get());
  ASSERT_TRUE(eventually([&] { return counts().completed == 1; }));
  EXPECT_EQ(worker.stats().leases_lost, 1U);
  EXPECT_TRUE(eventually([&] { return worker.stats().completed == 1; }));
  EXPECT_EQ(worker.stats().settles_refused, 0U);
  EXPECT_EQ(counts().pending, 0);
}

// Case 12: the reply of "done" is lost.
TEST_F(WorkerLease, ASettleWhoseAnswerIsLostIsRepeatedAndCountsOnce) {
  Proxy proxy(server_->tcp_url());
  Client far = open(proxy.url());
  std::atomic<bool> begun{false}, go{false};
  Worker worker = start_on(far.queue("work"), [&](Job& job) {
    if (job.payload() == "first")
      return Done();
    begun = true;
    while (!go)
      std::this_thread::sleep_for(1ms);
    return Done();
  });
  // So that the server has the scripts, and its first answer is not NOSCRIPT.
  for (const char* name : {"settle", "settle_and_take"})
    ASSERT_TRUE(client_->command("SCRIPT", "LOAD", script::find_script(name)->source).get());
  enqueue("first");
  ASSERT_TRUE(eventually([&] { return worker.stats().completed == 1; }));
  const JobId id = enqueue();
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  proxy.hold(Direction::to_client);
  go = true;
  ASSERT_TRUE(eventually([&] { return state(id) == JobState::absent; }));
  proxy.cut();
  proxy.release();
  EXPECT_TRUE(eventually([&] { return worker.stats().completed == 2; }));
  EXPECT_EQ(worker.stats().settles_refused, 0U);
  EXPECT_EQ(counts().completed, 2);
}

TEST_F(WorkerLease, ASettleWaitsForTheLinkWhileTheLeaseLasts) {
  Proxy proxy(server_->tcp_url());
  ClientOptions client_options;
  client_options.deadline = 300ms;
  Client far = open(proxy.url(), client_options);
  WorkerOptions options = quick_options();
  options.lease = 10s;
  std::atomic<bool> begun{false}, go{false};
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
  proxy.refuse_new(true);
  proxy.cut();
  go = true;
  std::this_thread::sleep_for(1500ms);
  EXPECT_EQ(counts().completed, 0);
  proxy.refuse_new(false);
  EXPECT_TRUE(eventually([&] { return worker.stats().completed == 1; }));
  EXPECT_EQ(counts().completed, 1);
  EXPECT_EQ(worker.stats().leases_lost, 0U);
}

// Case 13: jobs delayed for longer than the lease were delivered again and again, to all workers.
TEST_F(WorkerLease, AJobDelayedByFiveLeasesRunsOnceAmongTwentyWorkers) {
  WorkerOptions options = quick_options();
  options.lease = 800ms;
  options.sweep_period = 100ms;
  options.beat = 500ms;
  std::atomic<int> runs{0};
  std::vector<Worker> workers;
  for (int i = 0; i < 20; ++i) {
    workers.push_back(start(
        [&](Job&) {
          ++runs;
          return Done();
        },
        options));
  }
  enqueue("x", {.in = 4s});
  ASSERT_TRUE(eventually([&] { return runs > 0; }, 20s));
  std::this_thread::sleep_for(1500ms);  // nearly two leases
  EXPECT_EQ(runs, 1);
  EXPECT_TRUE(eventually([&] { return counts().completed == 1; }));
}

TEST_F(WorkerLease, ExpiredLeasesOfOthersAreRecoveredAndCountedAsStalled) {
  const JobId id = enqueue();
  ASSERT_TRUE(queue_->claim({.lease = 200ms, .deadline = {}}).get().value());
  std::atomic<std::uint64_t> attempt{0};
  std::string stalled;
  Worker worker = start([&](Job& job) {
    attempt = job.attempt();
    stalled = field(job.id(), "stalled");
    return Done();
  });
  ASSERT_TRUE(eventually([&] { return worker.stats().completed == 1; }));
  worker.stop();  // its threads are joined: what they wrote may be read
  EXPECT_EQ(attempt, 2U);
  EXPECT_EQ(stalled, "1");
  EXPECT_EQ(worker.stats().recovered, 1U);
  EXPECT_EQ(state(id), JobState::absent);
}

TEST_F(WorkerLease, MoreExpiredLeasesThanOneBiteAreRecoveredInOneSpell) {
  enqueue_many(350);
  for (int i = 0; i < 350; ++i)
    ASSERT_TRUE(queue_->claim({.lease = 1ms, .deadline = {}}).get().value());
  Worker worker = start([&](Job&) { return Done(); }, quick_options(8));
  ASSERT_TRUE(eventually([&] { return counts().completed == 350; }));
  // A claim that rides may bring the jobs before the sweep's own answer is here.
  EXPECT_TRUE(eventually([&] { return worker.stats().recovered == 350; })) << worker.stats().recovered;
}

// While the call is on its way the longer lease counts; when it has come to nothing, the one that the worker could not renew is over.
TEST_F(WorkerLease, ALeaseThatAFailedExtensionHeldUpIsToldAsLost) {
  Proxy proxy(server_->url());
  ClientOptions client_options;
  client_options.deadline = 4s;
  Client far = open(proxy.url(), client_options);
  WorkerOptions options = quick_options();
  options.lease = 1500ms;
  std::atomic<bool> begun{false}, held{false}, failed{false}, lost{false};
  enqueue();
  Worker worker = start_on(
      far.queue("work"),
      [&](Job& job) {
        begun = true;
        while (!held)
          std::this_thread::sleep_for(1ms);
        failed = !job.extend(10min);
        lost = !sleep_or_stop(job, 20s) && job.lease_lost();
        return Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  proxy.hold();
  held = true;
  ASSERT_TRUE(eventually([&] { return failed.load(); }, 20s));
  EXPECT_TRUE(eventually([&] { return lost.load(); }));
  EXPECT_EQ(worker.stats().leases_lost, 1U);
  proxy.release();
}

}  // namespace
}  // namespace echomq::test
