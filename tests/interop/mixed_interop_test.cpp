// A thousand jobs, flat and in lanes, by a producer and a consumer of each language at the same time.
#include <array>
#include <map>
#include <thread>

#include "interop/exchange_fixture.hpp"

namespace echomq::interop {
namespace {

constexpr int kEach = 500;
constexpr std::string_view kFailEnding = "7";  // a tenth of the payloads fails at its first attempt
constexpr std::array kLanes = {LaneId("PRT0NgWEfAE00X"), LaneId("PRT0NgWEfAE00Y"), LaneId("PRT0NgWEfAE00Z")};

struct Consumed {
  std::vector<std::string> done;
  int failed = 0;
};

void produce(Queue queue) {
  for (int i = 0; i < kEach; ++i) {
    EnqueueOptions options;
    if (const std::size_t turn = static_cast<std::size_t>(i) % (kLanes.size() + 1); turn > 0)
      options.lane = kLanes[turn - 1];
    EXPECT_EQ(queue.enqueue("cpp" + std::to_string(i), options).get().value().verdict, Admitted::enqueued);
  }
}

Consumed consume(Queue queue) {
  Consumed consumed;
  for (;;) {
    auto job = queue.claim({.lease = 60s}).get().value();
    if (!job)
      job = queue.claim_lane({.lease = 60s}).get().value();
    if (!job) {
      if (queue.metric(Metric::completed).get().value().count >= 2 * kEach)
        return consumed;
      if (queue.promote().get().value() == 0)
        std::this_thread::sleep_for(1ms);
      continue;
    }
    if (job->token == Token(1) && job->payload.ends_with(kFailEnding)) {
      EXPECT_EQ(queue.retry(job->id, job->token, {.delay = 0ms, .max_attempts = 3, .error = "once"}).get().value(),
                Retried::scheduled);
      ++consumed.failed;
    } else {
      EXPECT_TRUE(queue.complete(job->id, job->token).get());
      consumed.done.push_back(job->payload);
    }
  }
}

TEST_F(ExchangeTest, AThousandMixedJobsAreEachDoneOnce) {
  json::array lanes;
  for (const LaneId& lane : kLanes)
    lanes.push_back(text(lane));
  const auto produced = peer().start("produce", "q", {{"prefix", "node"}, {"count", kEach}, {"lanes", lanes}});
  const auto worked =
      peer().start("consume", "q", {{"total", 2 * kEach}, {"lease_ms", 60000}, {"fail_ending", kFailEnding}});
  Consumed ours;
  {
    const std::jthread producer([this] { produce(queue()); });
    const std::jthread consumer([&, this] { ours = consume(queue()); });
    EXPECT_EQ(peer().wait(produced, 120s), kEach);
  }
  const json::value theirs = peer().wait(worked, 120s);

  std::map<std::string, int> times;
  for (const std::string& payload : ours.done)
    ++times[payload];
  for (const json::value& payload : theirs.at("done").as_array())
    ++times[std::string(payload.as_string())];
  EXPECT_EQ(times.size(), std::size_t{2 * kEach});
  for (const auto& [payload, count] : times)
    EXPECT_EQ(count, 1) << payload;
  for (int i = 0; i < kEach; ++i)
    EXPECT_TRUE(times.contains("cpp" + std::to_string(i)) && times.contains("node" + std::to_string(i))) << i;
  EXPECT_EQ(ours.failed + theirs.at("failed").as_int64(), 2 * kEach / 10) << "each failing payload failed once";
  // Both had a part in it; otherwise this shows nothing.
  EXPECT_GT(ours.done.size(), 20u);
  EXPECT_GT(theirs.at("done").as_array().size(), 20u);

  expect_counts({.completed = 2 * kEach});
  // No row, set, ring or count of lanes is left.
  const json::value keys = ask("raw", {{"command", {"KEYS", "emq:{q}:*"}}});
  EXPECT_TRUE(conformance::matches({{"set", {"emq:{q}:metrics:completed", "emq:{q}:wake"}}}, keys))
      << json::serialize(keys);
}

}  // namespace
}  // namespace echomq::interop
