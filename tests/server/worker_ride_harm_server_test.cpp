// What is done to claims that ride: servers that refuse commands, connections that come late, workers that turn sick or stop.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "support/proxy.hpp"
#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

class WorkerRideHarm : public WorkerTest {
 protected:
  [[nodiscard]] std::int64_t commands() {
    const std::string stats(client_->command("INFO", "stats").get().value().as_text().value_or(""));
    const std::string_view name = "total_commands_processed:";
    const std::string_view refused = "total_error_replies:";
    return std::stoll(stats.substr(stats.find(name) + name.size())) +
           std::stoll(stats.substr(stats.find(refused) + refused.size()));
  }
  [[nodiscard]] bool blocked() { return blocked(1); }
  [[nodiscard]] bool blocked(int count) {
    const std::string info(client_->command("INFO", "clients").get().value().as_text().value_or(""));
    const std::string_view name = "\r\nblocked_clients:";
    return std::stoi(info.substr(info.find(name) + name.size())) == count;
  }
  [[nodiscard]] static WorkerOptions riding() {
    WorkerOptions options = quick_options();
    options.lease = 30s;
    return options;
  }
  /// From now on the server refuses this to everybody.
  void forbid(std::string_view rule) { (void)client_->command("ACL", "SETUSER", "default", rule).get().value(); }
};

// The second one parks while the connection for both is still being made.
TEST_F(WorkerRideHarm, AQueueThatJoinsBeforeTheFirstConnectionIsWatched) {
  for (int round = 0; round < 10; ++round) {
    Proxy proxy(server_->url());
    const Client far = open(proxy.url());
    proxy.delay(3ms);
    std::atomic<int> runs{0};
    const auto handler = [&](Job&) { return ++runs, Done(); };
    const Worker first = start_on(far.queue("work"), handler, riding());
    const Worker second = start_on(far.queue("other"), handler, riding());
    ASSERT_TRUE(eventually([&] { return integer("ZCARD", "emq:{other}:parked") == 1 && parked(1) && blocked(); }));
    std::this_thread::sleep_for(100ms);
    ASSERT_TRUE(client_->queue("other").enqueue("x").get());
    EXPECT_TRUE(eventually([&] { return runs == 1; }, 1s)) << "other, round " << round;
    enqueue();
    EXPECT_TRUE(eventually([&] { return runs == 2; }, 1s)) << "work, round " << round;
  }
}

TEST_F(WorkerRideHarm, AStoppedWorkerIsGivenNothingWhereUnblockIsForbidden) {
  forbid("-client|unblock");
  const Client far = open();
  Worker stops = start_on(far.queue("work"), [](Job&) { return Done(); }, riding());
  ASSERT_TRUE(eventually([&] { return parked(1) && blocked(1); }));
  std::atomic<int> runs{0};
  const Worker stays = start([&](Job&) { return ++runs, Done(); }, riding());
  ASSERT_TRUE(eventually([&] { return parked(2) && blocked(2); }));
  const auto start = std::chrono::steady_clock::now();
  (void)stops.stop();
  EXPECT_LT(since(start), 1s);
  ASSERT_TRUE(eventually([&] { return parked(1) && blocked(1); }));
  enqueue();
  EXPECT_TRUE(eventually([&] { return runs == 1; }, 1s));
  // A handler has run before its outcome reaches the server.
  EXPECT_TRUE(eventually([&] { return counts().active == 0; }));
}

// Each park of a queue that the BLPOP lacks would unblock it.
TEST_F(WorkerRideHarm, QueuesThatJoinAreWatchedWithinASecondWhereUnblockIsForbidden) {
  forbid("-client|unblock");
  const Client far = open();
  std::atomic<int> runs{0};
  const auto handler = [&](Job&) { return ++runs, Done(); };
  const Worker first = start_on(far.queue("work"), handler, riding());
  ASSERT_TRUE(eventually([&] { return parked(1) && blocked(1); }));
  const Worker second = start_on(far.queue("other"), handler, riding());
  ASSERT_TRUE(eventually([&] { return integer("ZCARD", "emq:{other}:parked") == 1; }));
  ASSERT_TRUE(client_->queue("other").enqueue("x").get());
  EXPECT_TRUE(eventually([&] { return runs == 1; }, 1500ms));
  enqueue();
  EXPECT_TRUE(eventually([&] { return runs == 2; }, 1500ms));
}

TEST_F(WorkerRideHarm, AWorkerThatFindsWorkByItsBeatBeginsItWhereUnblockIsForbidden) {
  forbid("-client|unblock");
  const Client far = open();
  std::atomic<int> runs{0};
  WorkerOptions options = riding();
  options.beat = 300ms;
  Worker worker = start_on(far.queue("work"), [&](Job&) { return ++runs, Done(); }, options);
  ASSERT_TRUE(eventually([&] { return parked(1) && blocked(); }));
  // As if a peer admitted it that pushes no token.
  (void)client_->command("DEL", "emq:{work}:parked").get().value();
  enqueue();
  EXPECT_TRUE(eventually([&] { return runs == 1; }, 1s));
}

TEST_F(WorkerRideHarm, ASickWorkerClaimsNothingMore) {
  // A leaked handler may outlive worker and test: what it reads belongs to it too.
  struct Gate {
    std::atomic<int> runs{0};
    std::atomic<bool> end{false};
  };
  const auto gate = std::make_shared<Gate>();
  WorkerOptions options = riding();
  options.concurrency = 2;
  options.timeout = 2s;  // time to be seen parked beside the run
  options.stop_patience = 50ms;
  options.max_leaked = 1;
  options.max_attempts = 1;
  Worker worker = start(
      [gate](Job&) {
        ++gate->runs;
        while (!gate->end)
          std::this_thread::sleep_for(5ms);
        return Done();
      },
      options);
  enqueue();
  ASSERT_TRUE(eventually([&] { return gate->runs == 1; }));
  ASSERT_TRUE(eventually([&] { return parked(1) && blocked(); }));
  ASSERT_TRUE(eventually([&] { return worker.stats().leaked == 1; }));
  EXPECT_TRUE(eventually([&] { return !worker.stats().healthy; }));
  // It leaves its parking place; what its claim there is given before it has left is run.
  ASSERT_TRUE(eventually([&] { return parked(0) && blocked(0); }));
  const JobId id = enqueue();
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(gate->runs, 1);
  EXPECT_EQ(state(id), JobState::pending);
  gate->end = true;
  EXPECT_TRUE(eventually([&] { return worker.stats().leaked == 0; }));
}

TEST_F(WorkerRideHarm, AServerThatRefusesToParkIsNotAskedWithoutEnd) {
  forbid("-blpop");
  const Client far = open();
  const Worker worker = start_on(far.queue("work"), [](Job&) { return Done(); }, riding());
  ASSERT_TRUE(eventually([&] { return parked(1); }));
  const std::int64_t before = commands();
  std::this_thread::sleep_for(1s);
  const std::int64_t took = commands() - before;
  std::cerr << "commands in a second: " << took << "\n";
  EXPECT_LT(took, 200);
}

TEST_F(WorkerRideHarm, AServerThatBecameAReplicaIsNotAskedWithoutEnd) {
  const Worker worker = start([](Job&) { return Done(); }, riding());
  ASSERT_TRUE(eventually([&] { return parked(1) && blocked(); }));
  (void)client_->command("REPLICAOF", "127.0.0.1", "1").get().value();
  std::this_thread::sleep_for(300ms);
  const std::int64_t before = commands();
  std::this_thread::sleep_for(1s);
  const std::int64_t took = commands() - before;
  std::cerr << "commands in a second: " << took << "\n";
  EXPECT_LT(took, 200);
  (void)client_->command("REPLICAOF", "NO", "ONE").get().value();
  const JobId id = enqueue();
  EXPECT_TRUE(eventually([&] { return state(id) == JobState::absent; }, 3s));
}

TEST_F(WorkerRideHarm, AWakeKeyThatIsNoListKeepsNobodyBusy) {
  (void)client_->command("SET", "emq:{work}:wake", "x").get().value();
  const Worker worker = start([](Job&) { return Done(); }, riding());
  std::this_thread::sleep_for(500ms);
  const std::int64_t before = commands();
  std::this_thread::sleep_for(1s);
  const std::int64_t took = commands() - before;
  std::cerr << "commands in a second: " << took << "\n";
  EXPECT_LT(took, 200);
}

// The server never hears of the BLPOP, so nothing there can be unblocked.
TEST_F(WorkerRideHarm, ABlpopThatNeverArrivesIsNotUnblockedWithoutEnd) {
  std::mutex mutex;
  std::map<std::uint64_t, std::string> sent;
  ProxyOptions tapping;
  tapping.tap = [&](std::uint64_t connection, Direction direction, std::string_view bytes) {
    const std::lock_guard lock(mutex);
    if (direction == Direction::to_server)
      sent[connection] += bytes;
  };
  Proxy proxy(server_->url(), tapping);
  WorkerOptions options = riding();
  options.remote_cancel = false;  // else that connection would be the next one
  const auto handler = [](Job&) { return Done(); };
  {
    const Client probe = open(proxy.url());
    const Worker worker = start_on(probe.queue("work"), handler, options);
    ASSERT_TRUE(eventually([&] { return parked(1) && blocked(1); }));
  }
  std::size_t boot = 0;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [connection, bytes] : sent) {
      if (const auto at = bytes.find("BLPOP"); at != std::string::npos)
        boot = bytes.rfind('*', at);
    }
  }
  ASSERT_GT(boot, 0U);
  const Client far = open(proxy.url());
  proxy.swallow_next_after(Direction::to_server, boot);
  const Worker first = start_on(far.queue("work"), handler, options);
  ASSERT_TRUE(eventually([&] { return parked(1) && proxy.counters().swallowing == 1; }));
  const Worker second = start_on(far.queue("other"), handler, options);
  ASSERT_TRUE(eventually([&] { return integer("ZCARD", "emq:{other}:parked") == 1; }));
  const std::int64_t before = commands();
  std::this_thread::sleep_for(1s);
  EXPECT_LT(commands() - before, 200);
}

// The token comes while its worker begins to stop, and the claim behind it finds its script forgotten.
TEST_F(WorkerRideHarm, ATokenOfAWorkerThatStopsIsPassedOnThoughItsClaimFailed) {
  const Client other = open();
  ClientOptions options;
  std::atomic<bool> armed{false};
  options.log = [&](LogLevel, std::string_view event, std::span<const LogField>) {
    if (event != "worker_stopping" || !armed.exchange(false))
      return;
    std::thread([&] {
      (void)client_->command("SCRIPT", "FLUSH").get();
      enqueue();
    }).join();
    std::this_thread::sleep_for(50ms);
  };
  const Client first = open({}, std::move(options));
  Worker stops = start_on(first.queue("work"), [](Job&) { return Done(); }, riding());
  ASSERT_TRUE(eventually([&] { return parked(1) && blocked(); }));
  std::atomic<int> runs{0};
  const Worker stays = start_on(other.queue("work"), [&](Job&) { return ++runs, Done(); }, riding());
  ASSERT_TRUE(eventually([&] { return parked(2) && blocked(2); }));
  armed = true;
  (void)stops.stop();
  EXPECT_TRUE(eventually([&] { return runs == 1; }, 2s));
}

// The same, and the claim comes after its last moment: it may take nothing, and there is nobody left who would ask again.
TEST_F(WorkerRideHarm, ATokenOfAWorkerThatStopsIsPassedOnThoughItsClaimCameTooLate) {
  const Client other = open();
  ClientOptions options;
  std::atomic<bool> armed{false};
  options.log = [&](LogLevel, std::string_view event, std::span<const LogField>) {
    if (event != "worker_stopping" || !armed.exchange(false))
      return;
    std::thread([&] { enqueue(); }).join();
    std::this_thread::sleep_for(50ms);
  };
  std::atomic<std::chrono::steady_clock::time_point> asked{};
  ProxyOptions tapping;
  tapping.tap = [&](std::uint64_t, Direction direction, std::string_view bytes) {
    if (direction == Direction::to_server && bytes.find("BLPOP") != std::string_view::npos)
      asked = std::chrono::steady_clock::now();
  };
  Proxy proxy(server_->url(), tapping);
  const Client first = open(proxy.url(), std::move(options));
  WorkerOptions third = riding();
  third.lease = 3s;  // its claim may take something for a second, and waits a quarter longer
  Worker stops = start_on(first.queue("work"), [](Job&) { return Done(); }, third);
  ASSERT_TRUE(eventually([&] { return parked(1) && blocked(); }));
  // Let the next BLPOP be its, and the older one on the list.
  const auto before = asked.load();
  ASSERT_TRUE(eventually([&] { return asked.load() != before && blocked(); }));
  std::atomic<int> runs{0};
  const Worker stays = start_on(other.queue("work"), [&](Job&) { return ++runs, Done(); }, riding());
  ASSERT_TRUE(eventually([&] { return parked(2) && blocked(2); }));
  armed = true;
  std::this_thread::sleep_until(asked.load() + 1100ms);
  (void)stops.stop();
  EXPECT_TRUE(eventually([&] { return runs == 1; }, 2s));
}

// One parked worker is told of a due job, and the others sleep on.
TEST_F(WorkerRideHarm, AWorkerThatStopsLeavesADueJobToOneThatStays) {
  const Client other = open();
  std::atomic<int> runs{0};
  const auto handler = [&](Job&) { return ++runs, Done(); };
  Worker one = start(handler, riding());
  Worker two = start_on(other.queue("work"), handler, riding());
  ASSERT_TRUE(eventually([&] { return parked(2) && blocked(2); }));
  ASSERT_TRUE(queue_->enqueue_in("x", 1s).get());
  ASSERT_TRUE(eventually([&] { return one.stats().wakes + two.stats().wakes >= 1; }));
  ASSERT_TRUE(eventually([&] { return parked(2) && blocked(2); }));
  (void)(one.stats().wakes > 0 ? one : two).stop();
  EXPECT_TRUE(eventually([&] { return runs == 1; }, 2s));
}

}  // namespace
}  // namespace echomq::test
