// settle, take and settle_and_take through `exchange`: the gates, fairness, expiry, kept results.
#include <algorithm>
#include <functional>
#include <map>

#include "server/exchange_fixture.hpp"

namespace echomq::test {
namespace {

using namespace echomq::queue;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(ExchangeTest, APausedQueueGivesNothing) {
  fill({}, 3);
  ASSERT_TRUE(queue().pause().get());
  const Exchanged answer = take({.most = 2});
  EXPECT_EQ(answer.gate, Gate::paused);
  EXPECT_THAT(answer.jobs, IsEmpty());
  EXPECT_FALSE(answer.more);
  ASSERT_TRUE(queue().resume().get());
  EXPECT_THAT(take({.most = 2}).jobs, SizeIs(2));
}

TEST_F(ExchangeTest, AWholeTurnIsOfOneLaneAndTheRestOfTheNextWithinTheCeilings) {
  const std::vector<JobId> of_x = fill(kLaneX, 5);
  const std::vector<JobId> of_y = fill(kLaneY, 5);
  fill({}, 2);
  ASSERT_TRUE(queue().limit_lane(kLaneY, 4).get());
  const auto ids = [](const Exchanged& answer) {
    std::vector<JobId> out;
    for (const TakenJob& taken : answer.jobs)
      out.push_back(taken.job.id);
    return out;
  };
  const TakeRequest request{.most = 3, .lanes = true, .flat = false, .whole_turns = true};
  EXPECT_THAT(ids(take(request)), ElementsAre(of_x[0], of_x[1], of_x[2]));
  EXPECT_THAT(ids(take(request)), ElementsAre(of_y[0], of_y[1], of_y[2]));
  const Exchanged last = take(request);
  EXPECT_THAT(ids(last), ElementsAre(of_x[3], of_x[4], of_y[3]));
  EXPECT_FALSE(last.more);
  EXPECT_THAT(take(request).jobs, IsEmpty());
  EXPECT_EQ(text(raw("HGET", kP + "gactive", kLaneY.text())), "4");
  EXPECT_TRUE(exchange(queue(), {}, TakeRequest{.whole_turns = true}).get().error().is(Errc::invalid_argument));
}

TEST_F(ExchangeTest, TheCeilingOfJobsInFlightIsKeptByTheClaim) {
  fill({}, 5);
  raw("HSET", kP + "meta", "concurrency", "3");
  const Exchanged first = take({.most = 5});
  EXPECT_THAT(first.jobs, SizeIs(3));
  EXPECT_EQ(first.gate, Gate::concurrency);
  EXPECT_FALSE(first.more);
  EXPECT_EQ(take({.most = 5}).gate, Gate::concurrency);
  // A settlement in the same call makes the room.
  const std::vector<Settlement> done = {{.id = first.jobs[0].job.id, .token = first.jobs[0].job.token}};
  const auto both = exchange(queue(), done, TakeRequest{.most = 5}).get();
  ASSERT_TRUE(both);
  EXPECT_THAT(both->settled, ElementsAre(Settled::completed));
  EXPECT_THAT(both->jobs, SizeIs(1));
  raw("HSET", kP + "meta", "concurrency", "many");
  EXPECT_THAT(take({.most = 5}).jobs, SizeIs(1));
}

TEST_F(ExchangeTest, SlotsUnderTheCeilingAreToldToParkedWorkers) {
  const auto hints = [&](std::initializer_list<std::string_view> workers, std::string_view ceiling,
                         const std::function<void(const std::vector<Settlement>&)>& end, int waiting = 5,
                         std::optional<LaneId> lane = std::nullopt) {
    raw("FLUSHALL");
    fill(lane, 3);
    const auto held = take({.most = 3});
    EXPECT_THAT(held.jobs, SizeIs(3));
    if (waiting > 0)
      fill(lane, waiting);
    raw("DEL", kP + "wake");
    raw("HSET", kP + "meta", "concurrency", ceiling);
    for (const std::string_view worker : workers)
      raw("ZADD", kP + "parked", "99999999999999", worker);
    std::vector<Settlement> done;
    for (const TakenJob& one : held.jobs)
      done.push_back({.id = one.job.id, .token = one.job.token});
    end(done);
    return raw("LLEN", kP + "wake").as_integer().value_or(-1);
  };
  const auto all = [&](const std::vector<Settlement>& done) { (void)settle(done); };
  const auto three = {std::string_view("a"), std::string_view("b"), std::string_view("c")};
  EXPECT_EQ(hints(three, "3", all), 3);
  EXPECT_EQ(hints(three, "3", all, 1), 1) << "as many as there is work";
  EXPECT_EQ(hints(three, "3", all, 0), 0);
  EXPECT_EQ(hints({"a"}, "3", all), 1) << "as many as there are workers";
  EXPECT_EQ(hints({}, "3", all), 0);
  EXPECT_EQ(hints(three, "2", all), 2) << "as many as the ceiling lets run";
  EXPECT_EQ(hints(three, "many", all), 0) << "no ceiling";
  EXPECT_EQ(hints(three, "3", all, 5, kLaneX), 3);
  EXPECT_EQ(hints(three, "3", [&](const auto& done) { (void)settle({done[0]}); }), 1) << "as many as were freed";
  EXPECT_EQ(hints(three, "2", [&](const auto& done) { (void)settle({done[0]}); }), 0) << "still at the ceiling";
  EXPECT_EQ(hints(three, "3",
                  [&](const auto& done) {
                    raw("HSET", kP + "meta", "paused", "1");
                    (void)settle(done);
                  }),
            0);
  EXPECT_EQ(hints(three, "3", [&](const auto& done) { raw("LPUSH", kP + "wake", "1"), (void)settle(done); }), 3)
      << "one is there already";
  // A sweep frees the slots of those that die in it; those that it puts back are told as jobs.
  const auto sweep = [&](std::uint32_t max_stalled) {
    return [&, max_stalled](const std::vector<Settlement>& done) {
      for (const Settlement& one : done)
        raw("ZADD", kP + "active", "1", one.id.text());
      EXPECT_TRUE(queue().sweep_stalled({.max_stalled = max_stalled}).get());
    };
  };
  EXPECT_EQ(hints(three, "3", sweep(1)), 3);
  EXPECT_EQ(hints(three, "2", sweep(1)), 2);
  EXPECT_EQ(hints({}, "3", sweep(1)), 0);
  EXPECT_EQ(hints(three, "3", sweep(1), 0), 0);
  EXPECT_EQ(hints(three, "many", sweep(1)), 0);
  EXPECT_EQ(hints(three, "3", sweep(3)), 3);
  EXPECT_EQ(hints(three, "3", sweep(3), 5, kLaneX), 3) << "the lane was on the ring before";
  // A claim in the same call takes its slots first.
  const auto and_take = [&](std::uint32_t most) {
    return [&, most](const std::vector<Settlement>& done) {
      const auto both = exchange(queue(), done, TakeRequest{.most = most}).get();
      ASSERT_TRUE(both);
      EXPECT_THAT(both->jobs, SizeIs(most));
    };
  };
  EXPECT_EQ(hints(three, "3", and_take(3)), 0);
  EXPECT_EQ(hints(three, "3", and_take(1)), 2);
  // A lane that is on the ring already says nothing of a slot in the queue.
  const auto hand_back = [&](const std::vector<Settlement>& done) {
    EXPECT_TRUE(queue().hand_back(done[0].id, done[0].token).get());
  };
  EXPECT_EQ(hints(three, "3", hand_back, 5, kLaneX), 1);
  EXPECT_EQ(hints(three, "3", hand_back), 1);
  EXPECT_EQ(hints(three, "2", hand_back, 5, kLaneX), 0);
}

TEST_F(ExchangeTest, AWindowThatTheClaimCharges) {
  fill({}, 20);
  raw("HSET", kP + "meta", "max", "5", "duration", "2000");
  const Exchanged first = take({.most = 3});
  EXPECT_THAT(first.jobs, SizeIs(3));
  EXPECT_EQ(first.gate, Gate::open);
  EXPECT_TRUE(first.more);
  const Exchanged second = take({.most = 10});
  EXPECT_THAT(second.jobs, SizeIs(2));
  EXPECT_EQ(second.gate, Gate::rate);
  EXPECT_GT(second.wait, 0ms);
  EXPECT_LE(second.wait, 2s);
  EXPECT_FALSE(second.more);
  EXPECT_EQ(text(raw("GET", kP + "limiter")), "5");
  const Exchanged third = take({.most = 10});
  EXPECT_THAT(third.jobs, IsEmpty());
  EXPECT_EQ(third.gate, Gate::rate);
  std::this_thread::sleep_for(third.wait + 20ms);
  EXPECT_THAT(take({.most = 10}).jobs, SizeIs(5));
}

TEST_F(ExchangeTest, AWindowThatAnOperatorCountsIsOnlyRead) {
  fill({}, 20);
  raw("HSET", kP + "meta", "max", "5");
  raw("SET", kP + "limiter", "5", "PX", "60000");
  const Exchanged closed = take({.most = 10});
  EXPECT_EQ(closed.gate, Gate::rate);
  EXPECT_GT(closed.wait, 50s);
  EXPECT_THAT(closed.jobs, IsEmpty());
  raw("SET", kP + "limiter", "3", "PX", "60000");
  EXPECT_THAT(take({.most = 10}).jobs, SizeIs(2));
  EXPECT_EQ(text(raw("GET", kP + "limiter")), "3");
  // A counter without an end, or one that is no number, does not stop anybody: as `rate_ttl` says.
  raw("SET", kP + "limiter", "9");
  EXPECT_THAT(take({.most = 10}).jobs, SizeIs(5));
  raw("SET", kP + "limiter", "x");
  EXPECT_THAT(take({.most = 10}).jobs, SizeIs(5));
}

TEST_F(ExchangeTest, NeitherLanesNorTheFlatSetStarve) {
  fill({}, 50);
  fill(kLaneX, 50);
  fill(kLaneY, 50);
  raw("HSET", kP + "gweight", kLaneY.text(), "3");
  for (const bool lanes_first : {false, true}) {
    std::map<std::string, int> of;
    for (const TakenJob& one : take({.most = 16, .lanes_first = lanes_first}).jobs)
      of[one.job.lane ? std::string(one.job.lane->text()) : "flat"]++;
    EXPECT_EQ(of["flat"], 8);
    EXPECT_EQ(of[std::string(kLaneX.text())], 2);
    EXPECT_EQ(of[std::string(kLaneY.text())], 6);
  }
  // One at a time, whoever is first is served; what one side lacks the other has.
  EXPECT_TRUE(take({.most = 1, .lanes_first = true}).jobs.at(0).job.lane);
  EXPECT_FALSE(take({.most = 1}).jobs.at(0).job.lane);
  EXPECT_THAT(take({.most = 40, .lanes = false}).jobs, SizeIs(33));
  const Exchanged rest = take({.most = 40});
  EXPECT_THAT(rest.jobs, SizeIs(40));
  EXPECT_TRUE(rest.more);
  EXPECT_EQ(rest.gate, Gate::open);
}

TEST_F(ExchangeTest, WhatTheRowSaysComesWithTheJob) {
  const JobId id = fill(kLaneX, 1)[0];
  raw("HSET", row(id), "max_attempts", "7", "timeout", "1500", "backoff", "exponential:100:9", "traceparent", "00-ab");
  const Exchanged first = take({.most = 1});
  ASSERT_THAT(first.jobs, SizeIs(1));
  EXPECT_EQ(first.jobs[0].max_attempts, 7U);
  EXPECT_EQ(first.jobs[0].timeout, Milliseconds(1500));
  EXPECT_EQ(first.jobs[0].backoff, "exponential:100:9");
  EXPECT_EQ(first.jobs[0].traceparent, "00-ab");
  EXPECT_EQ(first.jobs[0].failures, 0U);
  EXPECT_EQ(first.jobs[0].job.lane, kLaneX);
  EXPECT_EQ(first.jobs[0].job.payload, "p");
  // The row's own maximum wins over that of the settle.
  EXPECT_THAT(
      settle({{.id = id, .token = Token(1), .kind = SettleKind::retry, .text = "e", .max_attempts = 1}}).settled,
      ElementsAre(Settled::scheduled));
  raw("ZADD", kP + "schedule", "XX", "1", id.text());
  ASSERT_TRUE(queue().promote().get());
  const Exchanged second = take({.most = 1});
  ASSERT_THAT(second.jobs, SizeIs(1));
  EXPECT_EQ(second.jobs[0].failures, 1U);
  EXPECT_THAT(settle({{.id = id, .token = Token(2), .kind = SettleKind::hand_back}}).settled,
              ElementsAre(Settled::handed_back));
  EXPECT_EQ(take({.most = 1}).jobs.at(0).failures, 1U);
  raw("HSET", row(id), "max_attempts", "2");
  EXPECT_THAT(
      settle({{.id = id, .token = Token(3), .kind = SettleKind::retry, .text = "e", .max_attempts = 9}}).settled,
      ElementsAre(Settled::dead));
}

TEST_F(ExchangeTest, AJobThatIsTooOldDiesInsteadOfRunning) {
  const auto ids = fill({}, 3);
  const JobId lane_job = fill(kLaneX, 1)[0];
  raw("HSET", row(ids[0]), "expires_at", "1000", "parent", ids[2].text(), "keep", "60000");
  raw("HSET", row(ids[1]), "expires_at", "9000000000000");
  raw("HSET", row(ids[2]), "state", "awaiting_children");
  raw("ZREM", kP + "pending", ids[2].text());
  raw("HSET", row(lane_job), "expires_at", "1000");
  const Exchanged answer = take({.most = 5});
  ASSERT_THAT(answer.jobs, SizeIs(1));
  EXPECT_EQ(answer.jobs[0].job.id, ids[1]);
  EXPECT_EQ(answer.expired, 2U);
  for (const JobId id : {ids[0], lane_job}) {
    EXPECT_THAT(places(id, kLaneX), ElementsAre("dead"));
    EXPECT_EQ(field(id, "last_error"), "expired");
    EXPECT_EQ(field(id, "attempts"), "0");
  }
  EXPECT_EQ(text(raw("HGET", kP + "metrics:failed", "count")), "2");
  EXPECT_TRUE(raw("HGET", kP + "gactive", kLaneX.text()).is_null());
  EXPECT_EQ(raw("LLEN", kP + "ring").as_integer(), 0);
  // The flow parent dies by its policy, and who waits for the result hears of it.
  EXPECT_EQ(field(ids[2], "state"), "dead");
  EXPECT_EQ(text(raw("GET", kP + "result:" + std::string(ids[0].text()))), std::string("dead\0expired", 12));
}

TEST_F(ExchangeTest, ManyJobsThatAreTooOldAreSeveralCalls) {
  for (const JobId id : fill({}, 400))
    raw("HSET", row(id), "expires_at", "1000");
  for (const JobId id : fill(kLaneX, 400))
    raw("HSET", row(id), "expires_at", "1000");
  const JobId live = fill({}, 1)[0];
  std::uint64_t expired = 0;
  for (int calls = 0; calls < 20 && expired < 800; ++calls) {
    const Exchanged answer = take({.most = 10});
    EXPECT_LE(answer.expired, 120U);
    EXPECT_GT(answer.expired, 0U);
    expired += answer.expired;
    EXPECT_TRUE(answer.more || expired == 800);
    for (const TakenJob& one : answer.jobs)
      EXPECT_EQ(one.job.id, live);
  }
  EXPECT_EQ(expired, 800U);
  EXPECT_EQ(raw("ZCARD", kP + "dead").as_integer(), 800);
}

TEST_F(ExchangeTest, ResultsAreKeptForWhoWaits) {
  const auto ids = fill({}, 6);
  ASSERT_THAT(take({.most = 6}).jobs, SizeIs(6));
  raw("HSET", row(ids[1]), "keep", "50000");
  raw("HSET", row(ids[4]), "keep", "50000");
  settle({{.id = ids[0], .token = Token(1), .text = "a result", .keep = 60s},
          {.id = ids[1], .token = Token(1)},
          {.id = ids[2], .token = Token(1), .text = "not kept"},
          {.id = ids[3], .token = Token(1), .kind = SettleKind::dead, .text = "why", .keep = 60s},
          {.id = ids[4], .token = Token(1), .kind = SettleKind::retry, .text = "later", .max_attempts = 3, .keep = 60s},
          {.id = ids[5], .token = Token(9), .text = "stale", .keep = 60s}});
  const auto result = [&](JobId id) { return text(raw("GET", kP + "result:" + std::string(id.text()))); };
  EXPECT_EQ(result(ids[0]), std::string("completed\0a result", 18));
  EXPECT_EQ(result(ids[1]), std::string("completed\0", 10) + std::string(ids[1].text()));
  EXPECT_EQ(result(ids[2]), "(no text)");
  EXPECT_EQ(result(ids[3]), std::string("dead\0why", 8));
  EXPECT_EQ(result(ids[4]), "(no text)");
  EXPECT_EQ(result(ids[5]), "(no text)");
  EXPECT_GT(raw("PTTL", kP + "result:" + std::string(ids[0].text())).as_integer(), 55000);
  EXPECT_LE(raw("PTTL", kP + "result:" + std::string(ids[1].text())).as_integer(), 50000);
}

TEST_F(ExchangeTest, AThousandOfEach) {
  fill({}, 1500);
  fill(kLaneX, 500);
  Exchanged first = take({.most = 1000});
  ASSERT_THAT(first.jobs, SizeIs(1000));
  EXPECT_TRUE(first.more);
  std::vector<Settlement> done;
  for (const TakenJob& one : first.jobs)
    done.push_back({.id = one.job.id, .token = one.job.token});
  const auto second = exchange(queue(), done, TakeRequest{.most = 1000}).get();
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_EQ(std::count(second->settled.begin(), second->settled.end(), Settled::completed), 1000);
  EXPECT_THAT(second->jobs, SizeIs(1000));
  EXPECT_FALSE(second->more);
  EXPECT_EQ(text(raw("HGET", kP + "metrics:completed", "count")), "1000");
}

}  // namespace
}  // namespace echomq::test
