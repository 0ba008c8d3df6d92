// Dedup keys that a producer has set by hand, which is all that the protocol has of them: through the ends that a job can come to, a
// key is gone or names a job that can still be reached, and no other job's key is touched.
#include <csignal>

#include "echomq/flow.hpp"
#include "server/queue_fixture.hpp"
#include "support/tool.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class DedupServerTest : public QueueServerTest {
 protected:
  /// What a producer does: parks the job's id under a dedup id of its own, then admits the job.
  void park(JobId id, std::string_view dedup) { raw("SET", key(dedup), id.text()); }
  [[nodiscard]] static std::string key(std::string_view dedup) { return "emq:{q}:de:" + std::string(dedup); }
  [[nodiscard]] std::optional<std::string> holder(std::string_view dedup) {
    return queue().dedup_holder(DedupId::parse(dedup).value()).get().value();
  }
  [[nodiscard]] static std::string name_of(JobId id) { return std::string(id.text()); }
  [[nodiscard]] JobState state(JobId id) { return queue().state(id).get().value(); }
};

/// A key that outlived its job kept all later ones out: here the job outlives its worker.
TEST_F(DedupServerTest, AKilledWorkersJobStillHoldsItsKeyAndRunsAgain) {
  park(kJobA, "order-42");
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  Tool worker({"work", "q", "--exec", "exec sleep 60", "--lease", "1s"}, {}, {{"EMQ_URL", server().url()}});
  for (int look = 0; look < 1000 && state(kJobA) != JobState::active; ++look)
    std::this_thread::sleep_for(20ms);
  worker.signal(SIGKILL);
  EXPECT_EQ(worker.wait().exit_code, 128 + SIGKILL);

  EXPECT_EQ(holder("order-42"), name_of(kJobA));
  EXPECT_EQ(state(kJobA), JobState::active);
  std::int64_t reaped = 0;
  for (int look = 0; look < 1000 && reaped == 0; ++look) {
    std::this_thread::sleep_for(20ms);
    reaped = queue().reap().get().value();
  }
  EXPECT_EQ(reaped, 1);
  EXPECT_EQ(holder("order-42"), name_of(kJobA));
  const auto again = queue().claim().get().value();
  ASSERT_TRUE(again);
  EXPECT_EQ(again->id, kJobA);
}

TEST_F(DedupServerTest, AJobThatIsDeletedTakesItsKeyAlongWhereverItIs) {
  const auto admit = [&](JobState where) {
    park(kJobA, "mine");
    switch (where) {
      case JobState::scheduled: ASSERT_TRUE(queue().enqueue_in("p", 1h, {.id = kJobA}).get()); break;
      case JobState::waiting_in_lane: ASSERT_TRUE(queue().enqueue("p", {.id = kJobA, .lane = kLaneX}).get()); break;
      case JobState::active: (void)claimed(kJobA); break;
      case JobState::dead: {
        const Token token = claimed(kJobA);
        ASSERT_EQ(queue().retry(kJobA, token, {.max_attempts = 1, .error = "no"}).get().value(), Retried::dead);
        break;
      }
      case JobState::awaiting_children: {
        const FlowJob child{.payload = "c", .id = kJobB};
        ASSERT_TRUE(Flow(queue()).add({.payload = "p", .id = kJobA, .children = std::span(&child, 1)}).get());
        break;
      }
      default: ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
    }
  };
  park(kJobC, "others");
  for (const JobState where : {JobState::pending, JobState::scheduled, JobState::waiting_in_lane, JobState::active,
                               JobState::dead, JobState::awaiting_children}) {
    SCOPED_TRACE(to_string(where));
    admit(where);
    ASSERT_EQ(state(kJobA), where);
    ASSERT_TRUE(queue().remove(kJobA, DedupId{"mine"}).get());
    EXPECT_EQ(holder("mine"), std::nullopt);
    EXPECT_EQ(state(kJobA), JobState::absent);
    EXPECT_THAT(places(kJobA, kLaneX), IsEmpty());
    EXPECT_EQ(holder("others"), name_of(kJobC));
    // The dedup id is free: the next job can be parked under it. A second deletion is not its business.
    park(kJobC, "mine");
    EXPECT_TRUE(queue().remove(kJobA, DedupId{"mine"}).get().error().is(Errc::job_gone));
    EXPECT_EQ(holder("mine"), name_of(kJobC));
  }
}

TEST_F(DedupServerTest, AFinalFailureLeavesAKeyThatNamesAJobWhichCanComeBack) {
  park(kJobA, "mine");
  const Token token = claimed(kJobA);
  ASSERT_EQ(queue().retry(kJobA, token, {.max_attempts = 1, .error = "no"}).get().value(), Retried::dead);
  EXPECT_EQ(holder("mine"), name_of(kJobA));
  EXPECT_THAT(places(kJobA), ElementsAre("dead"));
  ASSERT_TRUE(queue().reprocess(kJobA).get());
  EXPECT_EQ(holder("mine"), name_of(kJobA));
  EXPECT_EQ(queue().claim().get().value()->id, kJobA);
}

/// The key is looked at before it is deleted: it may have passed to a later job.
TEST_F(DedupServerTest, OnlyTheOwnersKeyIsDeleted) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobB}).get());
  park(kJobB, "passed-on");
  park(kJobA, "mine");
  raw("SET", key(""), kJobA.text());  // the name that a call without a dedup id hands over
  ASSERT_TRUE(queue().remove(kJobA, DedupId{"passed-on"}).get());
  EXPECT_EQ(holder("passed-on"), name_of(kJobB));
  EXPECT_EQ(holder("mine"), name_of(kJobA));
  EXPECT_EQ(text(raw("GET", key(""))), kJobA.text());
  // Of a prefix or an extension of the id neither is the id.
  raw("SET", key("passed-on"), name_of(kJobB) + " ");
  ASSERT_TRUE(queue().remove(kJobB, DedupId{"passed-on"}).get());
  EXPECT_EQ(holder("passed-on"), name_of(kJobB) + " ");
}

/// A refused deletion deletes nothing.
TEST_F(DedupServerTest, ALockedJobKeepsItsKey) {
  park(kJobA, "mine");
  (void)claimed(kJobA);
  raw("SET", "emq:{q}:job:" + name_of(kJobA) + ":lock", "1");
  EXPECT_TRUE(queue().remove(kJobA, DedupId{"mine"}).get().error().is(Errc::job_locked));
  EXPECT_EQ(holder("mine"), name_of(kJobA));
}

/// Nothing but a removal that names it touches a dedup key (document 2, "Dedup"): the producer gives it a time to live, or deletes it.
TEST_F(DedupServerTest, WhatEndsWithoutADedupIdLeavesTheKeyAndItsTimeToLive) {
  raw("SET", key("done"), kJobA.text(), "PX", "60000");
  const Token token = claimed(kJobA);
  ASSERT_TRUE(queue().complete(kJobA, token).get());
  EXPECT_EQ(state(kJobA), JobState::absent);
  EXPECT_EQ(holder("done"), name_of(kJobA));
  const auto left = raw("PTTL", key("done")).as_integer();
  EXPECT_TRUE(left && *left > 0 && *left <= 60'000) << left.value_or(-9);

  park(kJobB, "drained");
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobB}).get());
  EXPECT_EQ(queue().drain().get().value(), 1);
  EXPECT_EQ(holder("drained"), name_of(kJobB));

  park(kJobC, "obliterated");
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobC}).get());
  ASSERT_TRUE(queue().pause().get());
  EXPECT_EQ(queue().obliterate().get().value(), Obliterated::done);
  EXPECT_EQ(holder("obliterated"), name_of(kJobC));
  EXPECT_THAT(raw("KEYS", "emq:{q}:job:*").items(), IsEmpty());
}

}  // namespace
}  // namespace echomq::test
