// Workers under load while their links are cut, the scripts are flushed and the server is killed.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/proxy.hpp"
#include "support/worker_harness.hpp"
#include "worker_places.hpp"

namespace echomq::test {
namespace {

class WorkerLink : public WorkerTest {
 protected:
  [[nodiscard]] std::string check() { return misplaced(*client_, "work"); }
  /// Leases short enough that a lost claim is back within a second; it is counted as stalled, so many are allowed.
  [[nodiscard]] static WorkerOptions options() {
    WorkerOptions options = quick_options(8);
    options.lease = 1s;
    options.sweep_period = 250ms;
    options.beat = 500ms;
    options.max_stalled = 1000;
    return options;
  }
  Outcome once(Job& job) {
    std::this_thread::sleep_for(std::chrono::microseconds{500});
    const std::lock_guard lock(mutex_);
    ++runs_[std::string(job.id().text())];
    return Done();
  }

  std::mutex mutex_;
  std::map<std::string, int> runs_;
};

TEST_F(WorkerLink, NothingIsLostWhileLinksAreCutAtRandomBytes) {
  constexpr int kJobs = 1500;
  Proxy proxy(server_->tcp_url());
  Client first = open(proxy.url()), second = open(proxy.url());
  Worker one = start_on(first.queue("work"), [&](Job& job) { return once(job); }, options());
  Worker two = start_on(second.queue("work"), [&](Job& job) { return once(job); }, options());
  std::atomic<bool> go_on{true};
  std::thread saboteur([&] {
    std::mt19937 random{7};
    while (go_on) {
      const auto way = random() % 2 == 0 ? Direction::to_server : Direction::to_client;
      proxy.cut_after(way, random() % 2000);
      std::this_thread::sleep_for(std::chrono::milliseconds{random() % 30});
    }
    proxy.heal();
  });
  const LaneId lanes[] = {lane(), lane()};
  ASSERT_TRUE(queue_->limit_lane(lanes[0], 3).get());
  for (int i = 0; i < kJobs; ++i) {
    EnqueueOptions how;
    if (i % 3 != 0)
      how.lane = lanes[i % 2];
    enqueue("x", how);
    if (i % 100 == 0) {
      EXPECT_EQ(check(), "");
      std::this_thread::sleep_for(100ms);
    }
  }
  const bool most = eventually([&] { return counts().completed > kJobs * 9 / 10; }, 60s);
  go_on = false;
  saboteur.join();
  EXPECT_TRUE(most);
  ASSERT_TRUE(eventually([&] { return counts().completed == kJobs; }, 60s))
      << counts().completed << " completed, " << check();
  EXPECT_EQ(check(), "");
  EXPECT_GT(proxy.counters().cut, 10U);
  one.stop();
  two.stop();
  EXPECT_EQ(runs_.size(), std::size_t{kJobs});
  const auto both = [&](std::uint64_t WorkerStats::* counter) {
    return static_cast<unsigned long long>(one.stats().*counter + two.stats().*counter);
  };
  std::printf("%llu cuts, %llu errors, %llu recovered, %llu leases lost, %llu settles refused\n",
              static_cast<unsigned long long>(proxy.counters().cut), both(&WorkerStats::errors),
              both(&WorkerStats::recovered), both(&WorkerStats::leases_lost), both(&WorkerStats::settles_refused));
}

// Case 25: NOSCRIPT after a flush, until the process was restarted.
TEST_F(WorkerLink, ScriptsMayBeFlushedTenTimesASecondUnderLoad) {
  constexpr int kJobs = 3000;
  Client second = open();
  Worker one = start([&](Job& job) { return once(job); }, options());
  Worker two = start_on(second.queue("work"), [&](Job& job) { return once(job); }, options());
  std::atomic<bool> go_on{true};
  std::thread saboteur([&] {
    Client third = open();
    while (go_on) {
      EXPECT_TRUE(third.command("SCRIPT", "FLUSH", "SYNC").get());
      std::this_thread::sleep_for(100ms);
    }
  });
  for (int i = 0; i < kJobs; i += 100) {
    enqueue_many(100);
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_TRUE(eventually([&] { return counts().completed == kJobs; }, 30s));
  go_on = false;
  saboteur.join();
  one.stop();
  two.stop();
  EXPECT_EQ(runs_.size(), std::size_t{kJobs});
  for (const auto& [id, times] : runs_)
    EXPECT_EQ(times, 1) << id;
  EXPECT_EQ(one.stats().errors + two.stats().errors, 0U);
}

class WorkerServerKill : public WorkerLink {
 protected:
  void SetUp() override { start_server({.append_only = testing::AppendOnly::always}); }
};

TEST_F(WorkerServerKill, AServerThatIsKilledAndComesBackLosesNothing) {
  constexpr int kJobs = 600;
  enqueue_many(kJobs);
  Client far = open();
  Worker worker = start_on(
      far.queue("work"),
      [&](Job& job) {
        std::this_thread::sleep_for(10ms);
        return once(job);
      },
      options());
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(150ms);
    server_->kill();
    std::this_thread::sleep_for(100ms);
    const auto back = server_->restart();
    ASSERT_TRUE(back) << back.error().message();
    ASSERT_TRUE(eventually([&] { return client_->command("PING").get().has_value(); }, 10s));
    EXPECT_EQ(check(), "");
  }
  ASSERT_TRUE(eventually([&] { return counts().completed == kJobs; }, 30s)) << check();
  EXPECT_EQ(check(), "");
  worker.stop();
  EXPECT_EQ(runs_.size(), std::size_t{kJobs});
}

class LongRunWorkers : public WorkerLink {};

// Case 19: counters that drift and jobs that park for ever, under everything at once.
TEST_F(LongRunWorkers, EveryJobIsInOnePlaceUnderRandomHistories) {
  Proxy proxy(server_->tcp_url());
  std::mt19937 random{std::random_device{}()};
  const LaneId lanes[] = {lane(), lane(), lane()};
  std::vector<Client> clients;
  std::vector<Worker> workers;
  std::atomic<int> dead{0};
  const auto handler = [&](Job& job) -> Outcome {
    thread_local std::mt19937 dice{std::random_device{}()};
    std::this_thread::sleep_for(std::chrono::microseconds{dice() % 3000});
    switch (dice() % 12) {
      case 0: return Retry("again", Milliseconds{dice() % 200});
      case 1: return Delay(Milliseconds{dice() % 200});
      case 2: return HandBack();
      case 3:
        if (dice() % 8 == 0) {
          ++dead;
          return Dead("enough");
        }
        return Done();
      case 4:
        if (dice() % 8 == 0) {
          std::this_thread::sleep_for(1500ms);
        }
        return Done();
      default: return once(job);
    }
  };
  const auto add = [&] {
    if (workers.size() >= 6) {
      if (random() % 2 == 0)
        workers.front().stop(Milliseconds{random() % 2 == 0 ? 0 : 3000});
      workers.erase(workers.begin());
    }
    clients.push_back(open(random() % 2 == 0 ? proxy.url() : server_->url()));
    WorkerOptions how = options();
    how.max_attempts = 1000;
    how.stop_deadline = 1s;
    workers.push_back(start_on(clients.back().queue("work"), handler, how));
  };
  int enqueued = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (since(begin) < 2min) {
    switch (random() % 10) {
      case 0: add(); break;
      case 1: proxy.cut(); break;
      case 2: proxy.cut_after(Direction::to_client, random() % 3000); break;
      case 3:
        ASSERT_TRUE(queue_->limit_lane(lanes[random() % 3], static_cast<std::uint32_t>(1 + random() % 5)).get());
        break;
      case 4: ASSERT_TRUE(queue_->pause_lane(lanes[2]).get()); break;
      case 5: ASSERT_TRUE(queue_->resume_lane(lanes[2]).get()); break;
      case 6:
        ASSERT_TRUE(queue_->pause().get());
        std::this_thread::sleep_for(20ms);
        ASSERT_TRUE(queue_->resume().get());
        break;
      default:
        for (int i = 0; i < 40; ++i, ++enqueued) {
          EnqueueOptions how;
          if (random() % 2 == 0) {
            how.lane = lanes[random() % 3];
          } else if (random() % 4 == 0) {
            how.in = Milliseconds{random() % 500};
          }
          enqueue("x", how);
        }
    }
    ASSERT_EQ(check(), "");
    while (counts().pending > 2000)
      std::this_thread::sleep_for(20ms);
  }
  proxy.heal();
  ASSERT_TRUE(queue_->resume_lane(lanes[2]).get());
  add();
  ASSERT_TRUE(eventually([&] { return counts().completed + counts().dead >= enqueued; }, 120s))
      << counts().completed << " + " << counts().dead << " of " << enqueued << " " << check();
  EXPECT_EQ(counts().completed + counts().dead, enqueued);
  EXPECT_EQ(check(), "");
  std::printf("%d jobs\n", enqueued);
}

}  // namespace
}  // namespace echomq::test
