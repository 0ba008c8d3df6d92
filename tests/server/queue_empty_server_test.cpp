// Deleting in bulk, rows that are in no set, and what flow parents hear of it.
#include "script/registry.hpp"
#include "server/queue_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr JobId kEmptyParent{"JOB0NgWEfAE00P"};
constexpr JobId kRoot{"JOB0NgWEfAE00R"};

class EmptyServerTest : public QueueServerTest {
 protected:
  static std::string row(JobId id) { return "emq:{q}:job:" + std::string(id.text()); }
  /// A parent that waits for one child, as a flow leaves it.
  void hold(JobId parent) {
    raw("HSET", row(parent), "state", "awaiting_children", "attempts", "0", "payload", "p");
    raw("SET", row(parent) + ":dependencies", "1");
  }
  void link(JobId child, JobId parent, std::string_view policy) {
    raw("HSET", row(child), "parent", parent.text(), "parent_policy", policy);
  }
  void fill(int count, std::optional<LaneId> lane = {}) {
    const std::vector<NewJob> jobs(static_cast<std::size_t>(count), NewJob{.payload = "p"});
    ASSERT_THAT(queue().enqueue_many(jobs, {.lane = lane}).get().value(), SizeIs(static_cast<std::size_t>(count)));
  }
  [[nodiscard]] std::vector<std::string> outbox() {
    std::vector<std::string> records;
    const Value list = raw("LRANGE", "emq:{q}:flow:outbox", "0", "-1");
    for (const Value& record : list.items())
      records.push_back(text(record));
    return records;
  }
};

/// CASES 43: bulk verbs died at about 8,000 items with "too many results to unpack".
TEST_F(EmptyServerTest, AnyNumberOfJobsIsDrainedRecoveredAndObliterated) {
  fill(50000);
  fill(9000, kLaneX);
  EXPECT_EQ(queue().drain().get().value(), 50000);
  EXPECT_EQ(queue().drain_lane(kLaneX).get().value(), 9000);
  EXPECT_THAT(raw("KEYS", "emq:{q}:*").items(), SizeIs(1)) << "the wake token of the lane";

  fill(20000);
  fill(9000, kLaneX);
  for (int i = 0; i < 20; ++i)
    ASSERT_THAT(queue().claim_batch({.lease = 1ms}).get().value(), SizeIs(1000));
  for (int i = 0; i < 9; ++i)
    ASSERT_THAT(queue().claim_lane_batch({.lease = 1ms}).get().value(), SizeIs(1000));
  std::this_thread::sleep_for(5ms);
  EXPECT_EQ(queue().reap_lane(kLaneX, 9000).get().value(), 9000);
  EXPECT_THAT(queue().sweep_stalled({.max_stalled = 2, .limit = 20000}).get().value().recovered, SizeIs(20000));
  ASSERT_TRUE(queue().pause().get());
  EXPECT_EQ(queue().obliterate({.budget = 10000}).get().value(), Obliterated::more);
  EXPECT_EQ(queue().obliterate({.budget = 100000}).get().value(), Obliterated::done);
  EXPECT_THAT(raw("KEYS", "emq:{q}:*").items(), IsEmpty());
  // One script with such a budget too, as a peer may call it.
  fill(9000);
  ASSERT_TRUE(queue().pause().get());
  const std::string_view script = script::find_script("obliterate")->source;
  EXPECT_EQ(raw("EVAL", script, "2", "emq:{q}:meta", "emq:{q}:", "", "20000").as_integer(), 0);
  EXPECT_THAT(raw("KEYS", "emq:{q}:*").items(), IsEmpty());
}

TEST_F(EmptyServerTest, ADrainTellsTheParentOfADeletedChild) {
  hold(kEmptyParent);
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  link(kJobA, kEmptyParent, "fp");
  EXPECT_EQ(queue().drain().get().value(), 1);
  EXPECT_THAT(places(kEmptyParent), ElementsAre("dead"));
  EXPECT_EQ(text(raw("HGET", row(kEmptyParent) + ":failed", kJobA.text())), "drained");

  hold(kRoot);
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobB, .lane = kLaneX}).get());
  link(kJobB, kRoot, "id");
  EXPECT_EQ(queue().drain_lane(kLaneX).get().value(), 1);
  EXPECT_EQ(queue().state(kRoot).get().value(), JobState::pending);
  EXPECT_EQ(text(raw("HGET", row(kRoot) + ":unsuccessful", kJobB.text())), "drained");
  EXPECT_THAT(outbox(), IsEmpty());
}

TEST_F(EmptyServerTest, ADrainKeepsTheRowOfAJobThatIsAtHomeElsewhere) {
  const Token token = claimed(kJobA);
  raw("ZADD", "emq:{q}:pending", "0", kJobA.text());  // a leftover
  EXPECT_EQ(queue().drain().get().value(), 1);
  EXPECT_THAT(places(kJobA), ElementsAre("active"));
  EXPECT_TRUE(queue().complete(kJobA, token).get());
}

TEST_F(EmptyServerTest, ADrainOfScheduleIsAskedFor) {
  ASSERT_TRUE(queue().enqueue_in("p", 1h, {.id = kJobA}).get());
  ASSERT_TRUE(queue().enqueue_in("p", 1h, {.id = kJobB, .lane = kLaneX}).get());
  EXPECT_EQ(queue().drain().get().value(), 0);
  EXPECT_EQ(queue().drain({.include_schedule = true}).get().value(), 2);
  EXPECT_THAT(raw("KEYS", "emq:{q}:*").items(), IsEmpty());
}

TEST_F(EmptyServerTest, ObliterateFindsFullLanesAndHeldParentsAndTellsOtherQueues) {
  ASSERT_TRUE(queue().limit_lane(kLaneX, 1).get());
  ASSERT_TRUE(queue().weigh_lane(kLaneY, 2).get());
  fill(3, kLaneX);
  ASSERT_TRUE(queue().claim_lane().get().value());
  hold(kRoot);
  hold(kEmptyParent);
  link(kEmptyParent, kRoot, "fp");
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  link(kJobA, kEmptyParent, "fp");
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobB}).get());
  link(kJobB, kEmptyParent, "id");
  raw("HSET", row(kJobB), "parent_queue", "elsewhere");
  ASSERT_TRUE(queue().pause().get());
  EXPECT_TRUE(queue().obliterate().get().error().is(Errc::active_jobs_present));
  EXPECT_EQ(queue().obliterate({.force = true}).get().value(), Obliterated::done);
  const std::string record = std::string("\0fail\0elsewhere\0", 16) + std::string(kEmptyParent.text()) + '\0' +
                             std::string(kJobB.text()) + std::string("\0id\0obliterated", 15);
  EXPECT_THAT(outbox(), ElementsAre(record));
  std::vector<std::string> left;
  const Value keys = raw("KEYS", "emq:{q}:*");
  for (const Value& key : keys.items())
    left.push_back(text(key));
  EXPECT_THAT(left, ::testing::UnorderedElementsAre("emq:{q}:flow:outbox", row(kEmptyParent) + ":dependencies",
                                                    row(kRoot) + ":dependencies"));
}

TEST_F(EmptyServerTest, ObliterateOfManyLanesAndRepeatsGoesOnWhereItStopped) {
  std::vector<Reply<void>> settings;
  std::vector<Reply<Registered>> repeats;
  for (int i = 0; i < 2500; ++i) {
    const LaneId lane(BrandedId::encode("PRT", static_cast<std::uint64_t>(i)).value());
    settings.push_back(queue().limit_lane(lane, 1));
    settings.push_back(queue().pause_lane(lane));
    repeats.push_back(queue().register_repeat("r" + std::to_string(i), {.every = 1h, .payload = "p"}));
  }
  for (Reply<Registered>& one : repeats)
    ASSERT_TRUE(one.get());
  for (Reply<void>& one : settings)
    ASSERT_TRUE(one.get());
  fill(10, LaneId(BrandedId::encode("PRT", 2400).value()));
  ASSERT_TRUE(queue().pause().get());
  int calls = 1;
  while (queue().obliterate({.budget = 100}).get().value() == Obliterated::more)
    ASSERT_LT(++calls, 50);
  EXPECT_GT(calls, 3);  // a call looks at a thousand of each
  EXPECT_THAT(raw("KEYS", "emq:{q}:*").items(), IsEmpty());
}

/// CASES 9: a member deleted by hand left a row that refused the same id for ever.
class RowsInNoSetServerTest : public EmptyServerTest {
 protected:
  [[nodiscard]] std::string repaired() { return text(raw("HGET", "emq:{q}:metrics:repaired", "count")); }
};

TEST_F(RowsInNoSetServerTest, AnAdmissionPutsTheJobBackAndCountsIt) {
  ASSERT_TRUE(queue().enqueue("first", {.id = kJobA}).get());
  raw("ZREM", "emq:{q}:pending", kJobA.text());
  const std::string& enqueue = "emq:{q}:job:" + std::string(kJobA.text());
  EXPECT_EQ(queue().enqueue("second", {.id = kJobA}).get().value().verdict, Admitted::duplicate);
  EXPECT_EQ(text(raw("HGET", enqueue, "payload")), "first");
  EXPECT_THAT(places(kJobA), ElementsAre("pending"));
  EXPECT_EQ(repaired(), "1");
  EXPECT_EQ(queue().claim().get().value()->id, kJobA);
  // One that is where it belongs is not touched.
  EXPECT_EQ(queue().enqueue("third", {.id = kJobA}).get().value().verdict, Admitted::duplicate);
  EXPECT_EQ(repaired(), "1");
}

TEST_F(RowsInNoSetServerTest, ALaneJobComesBackToItsLaneWhicheverVerbFindsIt) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA, .lane = kLaneX}).get());
  const std::string lane = "emq:{q}:g:" + std::string(kLaneX.text()) + ":pending";
  const auto lose = [&] {
    raw("ZREM", lane, kJobA.text());
    raw("LREM", "emq:{q}:ring", "0", kLaneX.text());
  };
  const NewJob jobs[] = {{"p", kJobA}};
  for (int verb = 0; verb < 5; ++verb) {
    SCOPED_TRACE(verb);
    lose();
    const Admitted verdict = verb == 0   ? queue().enqueue("p", {.id = kJobA}).get().value().verdict
                             : verb == 1 ? queue().enqueue("p", {.id = kJobA, .lane = kLaneY}).get().value().verdict
                             : verb == 2 ? queue().enqueue_in("p", 1h, {.id = kJobA}).get().value().verdict
                             : verb == 3 ? queue().enqueue_in("p", 1h, {.id = kJobA, .lane = kLaneY}).get()->verdict
                                         : queue().enqueue_many(jobs).get().value()[0].value().verdict;
    EXPECT_EQ(verdict, Admitted::duplicate);
    EXPECT_THAT(places(kJobA, kLaneX), ElementsAre("g:" + std::string(kLaneX.text()) + ":pending"));
    EXPECT_THAT(raw("LRANGE", "emq:{q}:ring", "0", "-1").items(), SizeIs(1));
    EXPECT_EQ(repaired(), std::to_string(verb + 1));
  }
  EXPECT_EQ(queue().claim_lane().get().value()->id, kJobA);
}

TEST_F(RowsInNoSetServerTest, EachStateHasItsPlace) {
  ASSERT_TRUE(queue().enqueue_in("p", 1h, {.id = kJobA}).get());
  raw("ZREM", "emq:{q}:schedule", kJobA.text());
  EXPECT_EQ(queue().enqueue("p", {.id = kJobA}).get().value().verdict, Admitted::duplicate);
  EXPECT_THAT(places(kJobA), ElementsAre("schedule"));
  EXPECT_EQ(queue().promote().get().value(), 1);  // its time was lost: due at once

  (void)queue().claim().get();
  raw("ZREM", "emq:{q}:active", kJobA.text());
  EXPECT_EQ(queue().enqueue("p", {.id = kJobA}).get().value().verdict, Admitted::duplicate);
  EXPECT_THAT(places(kJobA), ElementsAre("active"));
  EXPECT_THAT(queue().sweep_stalled().get().value().recovered, ElementsAre(kJobA));  // and it is counted

  const auto job = queue().claim().get().value().value();
  ASSERT_EQ(queue().retry(job.id, job.token, {.max_attempts = 1}).get().value(), Retried::dead);
  raw("ZREM", "emq:{q}:dead", kJobA.text());
  EXPECT_EQ(queue().enqueue("p", {.id = kJobA}).get().value().verdict, Admitted::duplicate);
  EXPECT_THAT(places(kJobA), ElementsAre("dead"));
  EXPECT_EQ(repaired(), "3");

  hold(kEmptyParent);  // in no set by right
  EXPECT_EQ(queue().enqueue("p", {.id = kEmptyParent}).get().value().verdict, Admitted::duplicate);
  EXPECT_THAT(places(kEmptyParent), IsEmpty());
  EXPECT_EQ(repaired(), "3");
}

}  // namespace
}  // namespace echomq::test
