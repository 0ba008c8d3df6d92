// Claims, settles and releases on a real server, flat and in lanes.
#include "server/queue_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(QueueServerTest, AClaimLeasesByTheServersClockAndAPauseIsAGate) {
  const Token token = claimed(kJobA, {.lease = 1min});
  EXPECT_EQ(token, Token(1));
  const Value time = raw("TIME");
  const double left =
      *raw("ZSCORE", "emq:{q}:active", kJobA.text()).as_double() - static_cast<double>(*time[0].as_integer()) * 1000;
  EXPECT_GT(left, 57'000);
  EXPECT_LE(left, 61'000);
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobB}).get());
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobC, .lane = kLaneX}).get());
  ASSERT_TRUE(queue().pause().get());
  EXPECT_TRUE(queue().paused().get().value());
  EXPECT_EQ(queue().claim().get().value(), std::nullopt);
  EXPECT_EQ(queue().claim_lane().get().value(), std::nullopt);
  EXPECT_TRUE(queue().complete(kJobA, token).get());
  ASSERT_TRUE(queue().resume().get());
  EXPECT_FALSE(queue().paused().get().value());
  EXPECT_EQ(queue().claim().get().value().value().id, kJobB);
  EXPECT_EQ(queue().claim_lane().get().value().value().id, kJobC);
}

TEST_F(QueueServerTest, TokensFenceEverySettle) {
  const Token stale = claimed(kJobA, {.lease = 1ms});
  std::this_thread::sleep_for(5ms);
  ASSERT_EQ(queue().reap().get().value(), 1);
  const auto second = queue().claim().get().value().value();
  ASSERT_EQ(second.token, Token(2));
  const std::string before = digest();
  EXPECT_TRUE(queue().complete(kJobA, stale).get().error().is(Errc::stale_token));
  EXPECT_TRUE(queue().retry(kJobA, stale).get().error().is(Errc::stale_token));
  EXPECT_TRUE(queue().delay(kJobA, stale, 1ms).get().error().is(Errc::stale_token));
  EXPECT_TRUE(queue().delay_until(kJobA, stale, Instant(1ms)).get().error().is(Errc::stale_token));
  EXPECT_TRUE(queue().hand_back(kJobA, stale).get().error().is(Errc::stale_token));
  EXPECT_TRUE(queue().extend(kJobA, stale, 1min).get().error().is(Errc::stale_token));
  const Held held[] = {{kJobA, stale}};
  EXPECT_THAT(queue().extend_many(held, 1min).get().value(), ElementsAre(kJobA));
  EXPECT_EQ(digest(), before);
  EXPECT_TRUE(queue().complete(kJobA, second.token).get());
  EXPECT_TRUE(queue().complete(kJobA, second.token).get().error().is(Errc::job_gone));
  EXPECT_TRUE(queue().retry(kJobA, second.token).get().error().is(Errc::job_gone));
  EXPECT_TRUE(queue().delay(kJobA, second.token, 1ms).get().error().is(Errc::job_gone));
  EXPECT_TRUE(queue().hand_back(kJobA, second.token).get().error().is(Errc::job_gone));
  EXPECT_TRUE(queue().extend(kJobA, second.token, 1min).get().error().is(Errc::job_gone));
}

TEST_F(QueueServerTest, RetriesEndInDeadAndReprocessGivesAnotherChance) {
  Token token = claimed(kJobA);
  EXPECT_EQ(queue().retry(kJobA, token, {.delay = 0ms, .max_attempts = 2, .error = "one"}).get().value(),
            Retried::scheduled);
  EXPECT_EQ(field(kJobA, "last_error"), "one");
  ASSERT_EQ(queue().promote().get().value(), 1);
  token = queue().claim().get().value().value().token;
  EXPECT_EQ(queue().retry(kJobA, token, {.delay = 0ms, .max_attempts = 2, .error = "two"}).get().value(),
            Retried::dead);
  EXPECT_EQ(queue().state(kJobA).get().value(), JobState::dead);
  EXPECT_EQ(queue().metric(Metric::failed).get()->count, 1);
  EXPECT_TRUE(queue().reprocess(kJobB).get().error().is(Errc::job_gone));
  ASSERT_TRUE(queue().reprocess(kJobA).get());
  EXPECT_TRUE(queue().reprocess(kJobA).get().error().is(Errc::not_dead));
  EXPECT_EQ(queue().state(kJobA).get().value(), JobState::pending);
  EXPECT_EQ(field(kJobA, "last_error"), "(no text)");
}

TEST_F(QueueServerTest, HandBacksAreNotHeldAgainstTheMaximum) {
  Token token = claimed(kJobA);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(queue().hand_back(kJobA, token).get());
    EXPECT_THAT(places(kJobA), ElementsAre("pending"));
    token = queue().claim().get().value().value().token;
  }
  EXPECT_EQ(token, Token(4));
  EXPECT_EQ(field(kJobA, "handbacks"), "3");
  EXPECT_EQ(queue().retry(kJobA, token, {.max_attempts = 2, .error = "x"}).get().value(), Retried::scheduled);
}

TEST_F(QueueServerTest, DelayConsumesNoAttempt) {
  const Token token = claimed(kJobA);
  ASSERT_TRUE(queue().delay(kJobA, token, 0ms).get());
  EXPECT_EQ(queue().state(kJobA).get().value(), JobState::scheduled);
  EXPECT_EQ(field(kJobA, "attempts"), "1");
  ASSERT_EQ(queue().promote().get().value(), 1);
  const auto job = queue().claim().get().value().value();
  EXPECT_EQ(job.token, Token(2));
  ASSERT_TRUE(queue().delay_until(kJobA, job.token, Instant(4102444800000ms)).get());
  EXPECT_EQ(raw("ZSCORE", "emq:{q}:schedule", kJobA.text()).as_double(), 4102444800000.0);
}

TEST_F(QueueServerTest, ExtendManyTellsWhatIsNoLongerHeld) {
  const Token a = claimed(kJobA, {.lease = 50ms});
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobB}).get());
  const Held held[] = {{kJobA, a}, {kJobB, Token(1)}, {kJobC, Token(1)}};
  EXPECT_THAT(queue().extend_many(held, 1min).get().value(), ElementsAre(kJobB, kJobC));
  EXPECT_THAT(places(kJobB), ElementsAre("pending"));
  std::this_thread::sleep_for(60ms);
  EXPECT_EQ(queue().reap().get().value(), 0);
  std::vector<Held> many(5000, Held{kJobA, a});
  EXPECT_THAT(queue().extend_many(many, 1min).get().value(), IsEmpty());
}

TEST_F(QueueServerTest, TheStalledSweepCountsAndDeadLetters) {
  (void)claimed(kJobA, {.lease = 1ms});
  std::this_thread::sleep_for(5ms);
  EXPECT_FALSE(queue().stalled(kJobA).get().value());
  auto swept = queue().sweep_stalled({.max_stalled = 2}).get().value();
  EXPECT_THAT(swept.recovered, ElementsAre(kJobA));
  EXPECT_THAT(swept.dead, IsEmpty());
  EXPECT_TRUE(queue().stalled(kJobA).get().value());
  ASSERT_TRUE(queue().claim({.lease = 1ms}).get().value());
  std::this_thread::sleep_for(5ms);
  swept = queue().sweep_stalled({.max_stalled = 2}).get().value();
  EXPECT_THAT(swept.recovered, IsEmpty());
  EXPECT_THAT(swept.dead, ElementsAre(kJobA));
  EXPECT_EQ(field(kJobA, "last_error"), "stalled");
}

/// Twenty thousand leases that end at once: recovery works in bites, each of them one short script.
TEST_F(QueueServerTest, AFloodOfExpiredLeasesIsRecoveredInBites) {
  const std::vector<NewJob> jobs(2000, NewJob{"p"});
  ASSERT_TRUE(queue().enqueue_many(jobs).get());
  std::vector<Reply<std::optional<ClaimedJob>>> claims;
  for (int i = 0; i < 2000; ++i)
    claims.push_back(queue().claim({.lease = 1ms}));
  for (auto& claim : claims)
    ASSERT_TRUE(claim.get().value());
  std::this_thread::sleep_for(5ms);
  EXPECT_EQ(queue().reap().get().value(), 100);
  EXPECT_EQ(queue().sweep_stalled({.max_stalled = 3, .limit = 1500}).get()->recovered.size(), 1500U);
  EXPECT_EQ(queue().sweep_stalled({.max_stalled = 3, .limit = 1500}).get()->recovered.size(), 400U);
  EXPECT_EQ(queue().counts().get()->pending, 2000);
}

TEST_F(QueueServerTest, LanesAreServedInTurnWithinTheirCeilings) {
  const std::vector<NewJob> jobs(3, NewJob{"p"});
  ASSERT_TRUE(queue().limit_lane(kLaneX, 1).get());
  ASSERT_TRUE(queue().enqueue_many(jobs, {.lane = kLaneX}).get());
  ASSERT_TRUE(queue().enqueue_many(jobs, {.lane = kLaneY}).get());
  const auto first = queue().claim_lane().get().value().value();
  EXPECT_EQ(first.lane, kLaneX);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(queue().claim_lane().get().value().value().lane, kLaneY);
  EXPECT_EQ(queue().claim_lane().get().value(), std::nullopt);
  ASSERT_TRUE(queue().hand_back(first.id, first.token).get());
  EXPECT_THAT(places(first.id, kLaneX), ElementsAre("g:PRT0NgWEfAE00X:pending"));
  const auto again = queue().claim_lane().get().value().value();
  EXPECT_EQ(again.id, first.id);
  ASSERT_TRUE(queue().complete(again.id, again.token).get());
  EXPECT_EQ(queue().claim_lane().get().value().value().lane, kLaneX);
  EXPECT_EQ(queue().lane_depth(kLaneX).get().value(), 1);
}

TEST_F(QueueServerTest, APausedLaneWaitsAndTheOthersDoNot) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA, .lane = kLaneX}).get());
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobB, .lane = kLaneY}).get());
  ASSERT_TRUE(queue().pause_lane(kLaneX).get());
  EXPECT_EQ(queue().claim_lane().get().value().value().id, kJobB);
  EXPECT_EQ(queue().claim_lane().get().value(), std::nullopt);
  ASSERT_TRUE(queue().resume_lane(kLaneX).get());
  EXPECT_EQ(queue().claim_lane().get().value().value().id, kJobA);
}

TEST_F(QueueServerTest, AWaitingJobCanChangeItsLane) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA, .lane = kLaneX}).get());
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobB}).get());
  EXPECT_EQ(queue().reassign(kJobA, kLaneY).get().value(), Reassigned::moved);
  EXPECT_EQ(queue().reassign(kJobA, kLaneY).get().value(), Reassigned::already_there);
  EXPECT_TRUE(queue().reassign(kJobB, kLaneY).get().error().is(Errc::job_gone));
  EXPECT_TRUE(queue().reassign(kJobC, kLaneY).get().error().is(Errc::job_gone));
  EXPECT_EQ(queue().claim_lane().get().value().value().lane, kLaneY);
  EXPECT_EQ(queue().reassign(kJobA, kLaneX).get().value(), Reassigned::not_waiting);
}

}  // namespace
}  // namespace echomq::test
