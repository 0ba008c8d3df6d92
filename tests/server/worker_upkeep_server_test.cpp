// Periodic work of a queue: whose turn it is, and that repeats are admitted by workers alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "script/registry.hpp"
#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WorkerUpkeep : public WorkerTest {
 protected:
  /// The first three numbers of the script's reply: whose turn sweep, outbox and repeats are.
  [[nodiscard]] std::vector<std::int64_t> ask(const std::string& period) {
    const Value reply = client_
                            ->command("EVAL", script::find_script("upkeep")->source, "5", "emq:{work}:upkeep",
                                      "emq:{work}:active", "emq:{work}:flow:outbox", "emq:{work}:repeat",
                                      "emq:{work}:gactive", period, period, period, "emq:{work}:job:")
                            .get()
                            .value();
    if (reply.size() != 5)
      return {};
    return {*reply[0].as_integer(), *reply[1].as_integer(), *reply[2].as_integer()};
  }
};

TEST_F(WorkerUpkeep, TheFirstWhoAsksInAPeriodHasTheTurnForWhatIsThere) {
  EXPECT_THAT(ask("60000"), ElementsAre(0, 0, 0)) << "an empty queue";
  ASSERT_TRUE(client_->command("DEL", "emq:{work}:upkeep").get());
  ASSERT_TRUE(client_->command("ZADD", "emq:{work}:active", "1", "JOB0KHTOWnGLuC").get());
  ASSERT_TRUE(client_->command("RPUSH", "emq:{work}:flow:outbox", "x").get());
  ASSERT_TRUE(client_->command("ZADD", "emq:{work}:repeat", "1", "r").get());
  EXPECT_THAT(ask("60000"), ElementsAre(1, 1, 1));
  EXPECT_THAT(ask("60000"), ElementsAre(0, 0, 0)) << "somebody has it";
  std::this_thread::sleep_for(20ms);
  EXPECT_THAT(ask("10"), ElementsAre(1, 1, 1)) << "the period is over";
  ASSERT_TRUE(client_->command("HSET", "emq:{work}:upkeep", "sweep", "9000000000000000").get());
  EXPECT_THAT(ask("60000"), ElementsAre(1, 0, 0)) << "the clock was set back";
  ASSERT_TRUE(client_->command("ZADD", "emq:{work}:active", "9000000000000000", "JOB0KHTOWnGLuC").get());
  std::this_thread::sleep_for(20ms);
  EXPECT_THAT(ask("10"), ElementsAre(0, 1, 1)) << "no lease has lapsed";
  EXPECT_GT(integer("PTTL", "emq:{work}:upkeep"), 0);
}

TEST_F(WorkerUpkeep, BadPeriodsAreRefusedAndNothingIsWritten) {
  for (const char* period : {"0", "-1", "x", "inf", "nan", ""}) {
    const auto reply = client_
                           ->command("EVAL", script::find_script("upkeep")->source, "5", "emq:{work}:upkeep",
                                     "emq:{work}:active", "emq:{work}:flow:outbox", "emq:{work}:repeat",
                                     "emq:{work}:gactive", "1000", period, "1000", "emq:{work}:job:")
                           .get();
    const std::string text = reply ? reply->to_string() : reply.error().message();
    EXPECT_THAT(text, HasSubstr("periods must be positive numbers")) << period;
  }
  EXPECT_EQ(integer("EXISTS", "emq:{work}:upkeep"), 0);
}

TEST_F(WorkerUpkeep, RepeatsRunWithoutAnybodyWhoPumps) {
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(queue_->register_repeat("tick", {.every = 100ms, .payload = "tick"}).get());
  std::atomic<int> runs{0};
  WorkerOptions options = quick_options();
  options.repeat_period = 20ms;
  std::vector<Worker> workers;
  for (int i = 0; i < 3; ++i) {
    workers.push_back(start(
        [&](Job& job) {
          EXPECT_EQ(job.payload(), "tick");
          ++runs;
          return Done();
        },
        options));
  }
  ASSERT_TRUE(eventually([&] { return runs >= 10; }));
  // Each occurrence once, however many workers there are.
  const int seen = runs;
  EXPECT_LE(seen, since(begin) / 100ms + 2);
}

}  // namespace
}  // namespace echomq::test
