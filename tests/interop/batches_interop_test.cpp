// Batches, weighted turns, emptying and repeats between two languages.
#include "interop/exchange_fixture.hpp"

namespace echomq::interop {
namespace {

using ::testing::Field;

constexpr LaneId kLaneX{"PRT0NgWEfAE00X"};
constexpr LaneId kLaneY{"PRT0NgWEfAE00Y"};

class ExchangeBatchesTest : public ExchangeTest {
 protected:
  [[nodiscard]] std::vector<JobId> many(int count, std::optional<LaneId> lane = {}) {
    std::vector<JobId> ids;
    for (int i = 0; i < count; ++i)
      ids.push_back(enqueued("p", {.lane = lane}));
    return ids;
  }
  /// The answer of a batch claim that gives these jobs at their first attempt.
  [[nodiscard]] static json::value batch(const std::vector<JobId>& ids, std::optional<LaneId> lane = {}) {
    json::array members;
    for (const JobId& id : ids) {
      json::array member{text(id), "p", 1};
      if (lane)
        member.emplace_back(text(*lane));
      members.emplace_back(std::move(member));
    }
    return ok(members);
  }
  [[nodiscard]] static std::vector<JobId> ids_of(const std::vector<ClaimedJob>& jobs) {
    std::vector<JobId> ids;
    for (const ClaimedJob& job : jobs)
      ids.push_back(job.id);
    return ids;
  }
};

TEST_F(ExchangeBatchesTest, BatchesOfBothShareTheQueueAndAreSettledByEither) {
  const std::vector<JobId> ids = many(5);
  EXPECT_EQ(ask("claim_batch", {{"size", 2}, {"lease_ms", 60000}}), batch({ids[0], ids[1]}));
  EXPECT_EQ(ids_of(queue().claim_batch({.size = 10}).get().value()), std::vector(ids.begin() + 2, ids.end()));
  EXPECT_EQ(ask("claim_batch", {{"size", 2}, {"lease_ms", 60000}}), "empty");
  EXPECT_TRUE(queue().complete(ids[0], Token(1)).get());
  EXPECT_EQ(ask("complete", {{"id", text(ids[2])}, {"token", 1}}), "ok");
  // One deadline and a token each: those that are held on are extended by the other at once.
  const json::array held{json::array{text(ids[3]), 1}, json::array{text(ids[4]), 7}};
  EXPECT_EQ(ask("extend_locks", {{"held", held}, {"lease_ms", 90000}}), ok(json::array{text(ids[4])}));
  expect_counts({.active = 3, .completed = 2});
}

TEST_F(ExchangeBatchesTest, WeightsAndBatchesOfLanesAreShared) {
  EXPECT_EQ(ask("lane_weight", {{"group", text(kLaneX)}, {"weight", 2}}), "ok");
  EXPECT_TRUE(queue().weigh_lane(kLaneY, 3).get());
  const std::vector<JobId> x = many(4, kLaneX);
  const std::vector<JobId> y = many(4, kLaneY);
  EXPECT_EQ(ids_of(queue().claim_lane_weighted().get().value()), std::vector(x.begin(), x.begin() + 2));
  EXPECT_EQ(ask("lane_wclaim", {{"lease_ms", 60000}}), batch({y[0], y[1], y[2]}, kLaneY));
  EXPECT_EQ(ask("lane_bclaim", {{"lease_ms", 60000}}), batch({x[2], x[3]}, kLaneX));
  EXPECT_EQ(ids_of(queue().claim_lane_batch().get().value()), std::vector{y[3]});
  EXPECT_EQ(ask("lane_bclaim", {{"lease_ms", 60000}}), "empty");
  EXPECT_EQ(ask("raw", {{"command", {"HMGET", "emq:{q}:gactive", kLaneX.text(), kLaneY.text()}}}),
            (json::array{"4", "4"}));
}

TEST_F(ExchangeBatchesTest, WhatOneEmptiesIsGoneForBoth) {
  (void)many(3);
  (void)many(2, kLaneX);
  EXPECT_EQ(ask("drain"), ok(3));
  EXPECT_FALSE(queue().claim().get().value());
  EXPECT_EQ(queue().drain_lane(kLaneX).get().value(), 2);
  EXPECT_EQ(ask("lane_claim", {{"lease_ms", 1000}}), "empty");
  (void)many(2);
  EXPECT_EQ(ask("obliterate"), error("not_paused"));
  EXPECT_TRUE(queue().pause().get());
  EXPECT_EQ(ask("obliterate"), "ok");
  EXPECT_EQ(ask("raw", {{"command", {"KEYS", "emq:{q}:*"}}}), json::array{});
}

TEST_F(ExchangeBatchesTest, RepeatsOfOneAreFiredByTheOther) {
  const json::object report{{"name", "report"}, {"every_ms", 60000}, {"template", "r"}, {"first_in_ms", 0}};
  EXPECT_EQ(ask("repeat_register", report), ok("registered"));
  EXPECT_EQ(queue().register_repeat("report", {.every = 1s, .payload = "x"}).get().value(), Registered::exists);
  EXPECT_EQ(queue().register_repeat("audit", {.every = 60s, .payload = "a"}).get().value(), Registered::registered);
  EXPECT_EQ(ask("repeat_count"), ok(2));
  EXPECT_EQ(queue().fire_repeats().get().value(), 2);
  EXPECT_EQ(ask("pump_sweep"), ok(json::object{{"promoted", 0}, {"fired", 0}, {"delivered", 0}}));
  const auto jobs = queue().claim_batch().get().value();
  EXPECT_THAT(jobs,
              ::testing::UnorderedElementsAre(Field(&ClaimedJob::payload, "r"), Field(&ClaimedJob::payload, "a")));
  EXPECT_EQ(queue().cancel_repeat("report").get().value(), RepeatFound::found);
  EXPECT_EQ(ask("repeat_cancel", {{"name", "report"}}), ok("absent"));
  // And the other way: registered by us, fired by the peer.
  ASSERT_EQ(queue().register_repeat("late", {.every = 60s, .payload = "l"}).get().value(), Registered::registered);
  EXPECT_EQ(ask("pump_sweep").at("ok").at("fired"), 1);
  EXPECT_EQ(claimed().payload, "l");
}

}  // namespace
}  // namespace echomq::interop
