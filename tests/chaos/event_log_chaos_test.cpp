// The log of a queue while the processes that move its jobs are killed: every step stands there, once.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "child_program.hpp"
#include "echomq/event_log.hpp"
#include "support/log_replay.hpp"
#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

/// The child: works until it is killed. Every fourth job fails, every seventh is put off once, some are long.
TEST(EventLogChild, DISABLED_Serve) {
  const std::string url = variable("ECHOMQ_CHILD_URL");
  if (url.empty())
    GTEST_SKIP() << "started by the test below, with its server's address";
  const pid_t parent = ::getppid();
  auto client = Client::open(url);
  ASSERT_TRUE(client) << client.error().message();
  WorkerOptions options = quick_options(4);
  options.lease = 1s;
  options.beat = 200ms;
  options.sweep_period = 200ms;
  options.max_stalled = 50;
  options.max_attempts = 3;
  auto worker = Worker::start(
      client->queue("work"),
      [&](Job& job) -> Outcome {
        const auto number = std::stoul(std::string(job.payload()));
        std::this_thread::sleep_for(Milliseconds(number % 11));
        if (number % 4 == 0)
          return Retry("oops");
        if (number % 7 == 0 && job.attempt() == 1)
          return Delay(10ms);
        return Done();
      },
      options);
  ASSERT_TRUE(worker) << worker.error().message();
  while (::getppid() == parent)
    std::this_thread::sleep_for(20ms);
}

class EventLogChaos : public WorkerTest {
 protected:
  /// Kills workers for that long and lets the rest be done; then the log must tell all of it.
  void run(std::chrono::milliseconds how_long) {
    const EventLog log(*client_, QueueName("work"));
    ASSERT_TRUE(log.turn_on({.most = 10'000'000, .claims = true}).get());
    const auto child = [&] {
      return std::make_unique<ChildProgram>(
          "EventLogChild.DISABLED_Serve",
          std::vector<std::pair<std::string, std::string>>{{"ECHOMQ_CHILD_URL", server_->url()}});
    };
    std::array<std::unique_ptr<ChildProgram>, 3> children = {child(), child(), child()};
    std::mt19937 random(7);
    std::uint64_t jobs = 0;
    int kills = 0;
    const std::array<LaneId, 2> lanes = {lane(), lane()};
    const auto until = std::chrono::steady_clock::now() + how_long;
    auto next_kill = std::chrono::steady_clock::now() + 500ms;
    // Longer where no kill has struck a worker that had a job: those of a busy machine are slow to begin.
    const auto struck = [&] {
      return std::ranges::any_of(all_of(log), [](const LogEntry& entry) { return entry.event == "stalled"; });
    };
    while (std::chrono::steady_clock::now() < until || (std::chrono::steady_clock::now() < until + 20s && !struck())) {
      for (int i = 0; i < 10; ++i, ++jobs) {
        EnqueueOptions options;
        if (random() % 3 == 0)
          options.lane = lanes[random() % 2];
        if (random() % 5 == 0)
          options.in = Milliseconds(random() % 50);
        enqueue(std::to_string(jobs), options);
      }
      if (std::chrono::steady_clock::now() >= next_kill) {
        children[random() % children.size()] = child();  // the old one is killed
        ++kills;
        next_kill += 200ms;
      }
      std::this_thread::sleep_for(15ms);
    }
    ASSERT_TRUE(eventually(
        [&] {
          const QueueCounts now = counts();
          return now.completed + now.dead == static_cast<std::int64_t>(jobs);
        },
        60s));
    for (auto& one : children)
      one->kill();

    const auto entries = all_of(log);
    std::map<std::string, std::uint64_t> times;
    for (const LogEntry& entry : entries)
      ++times[entry.event];
    const auto told = replay(entries);
    EXPECT_EQ(told.size(), jobs);
    std::uint64_t done = 0, dead = 0;
    for (const auto& [id, job] : told) {
      done += job.state == "absent" ? 1 : 0;
      dead += job.state == "dead" ? 1 : 0;
    }
    EXPECT_EQ(done + dead, jobs);
    EXPECT_EQ(times["added"], jobs);
    EXPECT_EQ(times["completed"], static_cast<std::uint64_t>(counts().completed));
    EXPECT_EQ(times["dead"], static_cast<std::uint64_t>(counts().dead));
    EXPECT_GT(times["stalled"], 0U);
    const LogInfo info = log.info().get().value();
    EXPECT_EQ(info.lost, 0U);
    EXPECT_EQ(info.added, entries.size());
    std::printf("%llu jobs, %d kills, %zu entries: %llu claims, %llu stalled, %llu failed, %llu dead\n",
                static_cast<unsigned long long>(jobs), kills, entries.size(),
                static_cast<unsigned long long>(times["active"]), static_cast<unsigned long long>(times["stalled"]),
                static_cast<unsigned long long>(times["failed"]), static_cast<unsigned long long>(times["dead"]));
  }
};

TEST_F(EventLogChaos, EveryStepStandsOnceThoughWorkersAreKilled) { run(10s); }

class LongRunEventLogChaos : public EventLogChaos {};
TEST_F(LongRunEventLogChaos, EveryStepStandsOnceThoughWorkersAreKilled) { run(60s); }

}  // namespace
}  // namespace echomq::test
