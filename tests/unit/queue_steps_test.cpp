// Verbs of several requests, against a core that a test answers: when they ask again, and what ends them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "unit/queue_fake_core.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> tail(const FakeCore::Sent& sent, std::size_t from) {
  return {sent.parts.begin() + static_cast<std::ptrdiff_t>(from), sent.parts.end()};
}

TEST(QueueSteps, ADrainAsksAgainWhileItsBitesAreFull) {
  FakeQueue f;
  auto reply = f.queue.drain({.include_schedule = true});
  EXPECT_EQ(f.core->last().script, "drain");
  EXPECT_EQ(f.core->last().repeat, Repeat::unsafe);
  EXPECT_THAT(tail(f.core->last(), 2), ElementsAre("3", "emq:{q}:", "emq:{q}:pending", "emq:{q}:schedule", "1000"));
  f.core->answer(":1000\r\n");
  f.core->answer(":1000\r\n");
  EXPECT_FALSE(reply.ready());
  f.core->answer(":17\r\n");
  EXPECT_EQ(reply.get().value(), 2017);
  EXPECT_EQ(f.core->all.size(), 3U);
}

TEST(QueueSteps, AnErrorOnTheWayEndsIt) {
  FakeQueue f;
  auto reply = f.queue.drain_lane(kLane);
  f.core->answer(":1000\r\n");
  f.core->answer("-NOPERM no\r\n");
  EXPECT_TRUE(reply.get().error().is(Errc::no_permission));
  auto lost = f.queue.drain_lane(kLane);
  f.core->refuse(Error(Errc::outcome_unknown, "lost"));
  EXPECT_TRUE(lost.get().error().is(Errc::outcome_unknown));
  auto strange = f.queue.drain_lane(kLane);
  f.core->answer("+OK\r\n");
  EXPECT_TRUE(strange.get().error().is(Errc::protocol_error));
}

/// Whoever brings an answer may be the only one who reads: one that waited for room waited for itself.
TEST(QueueSteps, WhatFollowsFromAnAnswerGoesPastTheInFlightBound) {
  FakeQueue f;
  auto drained = f.queue.drain();
  EXPECT_FALSE(f.core->last().never_refused);
  f.core->answer(":1000\r\n");
  EXPECT_TRUE(f.core->last().never_refused);
  f.core->answer(":0\r\n");
  EXPECT_TRUE(drained.get());

  auto duplicate = f.queue.enqueue("p", {.id = kJobA});
  EXPECT_FALSE(f.core->last().never_refused);
  f.core->answer(":0\r\n");
  EXPECT_EQ(f.core->last().script, "state_lookup");
  EXPECT_TRUE(f.core->last().never_refused);
  f.core->answer("$7\r\npending\r\n");
  EXPECT_TRUE(duplicate.get());

  f.core->next_ids = {5, 6};
  const NewJob one{.payload = "p", .id = {}};
  auto many = f.queue.enqueue_many(std::span(&one, 1));
  EXPECT_FALSE(f.core->last().never_refused);
  f.core->answer("*1\r\n:0\r\n");
  EXPECT_TRUE(f.core->last().never_refused);
  f.core->answer("*1\r\n:1\r\n");
  EXPECT_TRUE(many.get());

  auto retried = f.queue.retry(kJobA, Token(1), {.error = "e"});
  f.core->answer("$4\r\ndead\r\n");
  EXPECT_EQ(f.core->last().parts.front(), "HDEL");
  EXPECT_TRUE(f.core->last().never_refused);
  f.core->answer(":1\r\n");
  EXPECT_TRUE(retried.get());
}

TEST(QueueSteps, ACancelledVerbAsksForNoFurtherBite) {
  FakeQueue f;
  auto reply = f.queue.drain();
  reply.cancel();
  EXPECT_TRUE(reply.get().error().is(Errc::cancelled));
  f.core->answer(":1000\r\n");
  EXPECT_EQ(f.core->all.size(), 1U);
  EXPECT_EQ(f.core->waiting(), 0U);
}

TEST(QueueSteps, AnObliterationSpendsItsBudgetInBites) {
  FakeQueue f;
  auto reply = f.queue.obliterate({.force = true, .budget = 2300});
  EXPECT_THAT(tail(f.core->last(), 3), ElementsAre("emq:{q}:meta", "emq:{q}:", "force", "1000"));
  f.core->answer(":1\r\n");
  f.core->answer(":1\r\n");
  EXPECT_EQ(f.core->last().parts.back(), "300");
  f.core->answer(":1\r\n");
  EXPECT_EQ(reply.get().value(), Obliterated::more);
  auto done = f.queue.obliterate();
  EXPECT_THAT(tail(f.core->last(), 5), ElementsAre("", "1000"));
  f.core->answer(":0\r\n");
  EXPECT_EQ(done.get().value(), Obliterated::done);
}

TEST(QueueSteps, ARecoveryOfALaneGoesOnWhereItStoppedUntilItsLimit) {
  FakeQueue f;
  auto reply = f.queue.reap_lane(kLane, 10);
  EXPECT_THAT(tail(f.core->last(), 5), ElementsAre("PRT0NgWEfAE00X", "10", "0"));
  f.core->answer("*2\r\n:4\r\n:4996\r\n");
  EXPECT_THAT(tail(f.core->last(), 6), ElementsAre("6", "4996"));
  f.core->answer("*2\r\n:6\r\n:7000\r\n");
  EXPECT_EQ(reply.get().value(), 10);
}

TEST(QueueSteps, APumpAsksForAllAtOnceThenFiresWhatWasDueAndBringsWhatWasWritten) {
  FakeQueue f;
  f.core->next_ids = {5};
  auto reply = f.queue.pump_sweep(20);
  ASSERT_EQ(f.core->waiting(), 3U);
  EXPECT_EQ(f.core->all[0].script, "repeat_due");
  EXPECT_THAT(f.core->all[1].parts, ElementsAre("LRANGE", "emq:{q}:flow:outbox", "0", "19"));
  EXPECT_EQ(f.core->all[2].script, "promote");
  f.core->answer("*1\r\n*4\r\n$1\r\nr\r\n$2\r\n10\r\n$1\r\np\r\n$6\r\n1700.5\r\n");
  const std::string record = std::string("p") + '\0' + "JOB0NgWEfAE00A" + '\0' + "JOB0NgWEfAE00B" + '\0' + "result";
  f.core->answer("*1\r\n$" + std::to_string(record.size()) + "\r\n" + record + "\r\n");
  f.core->answer(":3\r\n");
  ASSERT_EQ(f.core->waiting(), 2U);
  EXPECT_EQ(f.core->all[3].script, "repeat_fire");
  EXPECT_THAT(tail(f.core->all[3], 3),
              ElementsAre("emq:{q}:repeat", "emq:{q}:pending", "emq:{q}:", "r", "1700.5", "JOB00000000005"));
  EXPECT_EQ(f.core->all[4].script, "flow_deliver");
  EXPECT_THAT(tail(f.core->all[4], 3),
              ElementsAre("emq:{p}:job:JOB0NgWEfAE00A:dependencies", "emq:{p}:job:JOB0NgWEfAE00A:processed",
                          "emq:{p}:job:JOB0NgWEfAE00A", "JOB0NgWEfAE00B", "result", "JOB0NgWEfAE00A", "emq:{p}:"));
  f.core->answer("*1\r\n:1\r\n");
  f.core->answer(":1\r\n");
  EXPECT_FALSE(reply.ready());
  EXPECT_THAT(f.core->last().parts, ElementsAre("LREM", "emq:{q}:flow:outbox", "1", record));
  EXPECT_EQ(f.core->last().repeat, Repeat::unsafe);
  f.core->answer(":1\r\n");
  const Pumped pumped = reply.get().value();
  EXPECT_EQ(pumped.promoted, 3);
  EXPECT_EQ(pumped.fired, 1);
  EXPECT_EQ(pumped.delivered, 1);
}

/// One part that fails holds nothing else up: the canonical pump counts it as nothing and goes on.
TEST(QueueSteps, APartOfAPumpThatFailsHoldsNothingUp) {
  FakeQueue f;  // without a node id nothing can be fired
  auto reply = f.queue.pump_sweep();
  f.core->answer("*1\r\n*4\r\n$1\r\nr\r\n$2\r\n10\r\n$1\r\np\r\n$1\r\n1\r\n");
  const std::string record = std::string(1, '\0') + "fail" + '\0' + "p" + '\0' + "JOB0NgWEfAE00A" + '\0' +
                             "JOB0NgWEfAE00B" + '\0' + "id" + '\0' + "boom";
  f.core->answer("*1\r\n$" + std::to_string(record.size()) + "\r\n" + record + "\r\n");
  f.core->answer("-OOM no\r\n");
  EXPECT_EQ(f.core->last().script, "flow_fail_deliver");
  f.core->answer(":1\r\n");
  EXPECT_EQ(f.core->last().parts.front(), "LREM");
  f.core->answer(":1\r\n");
  EXPECT_EQ(f.core->waiting(), 0U);
  EXPECT_TRUE(reply.get().error().is(Errc::out_of_memory));  // of promote, the first of them
}

TEST(QueueSteps, WithoutANodeIdNothingIsFired) {
  FakeQueue f;
  auto reply = f.queue.fire_repeats();
  f.core->answer("*1\r\n*4\r\n$1\r\nr\r\n$2\r\n10\r\n$1\r\np\r\n$1\r\n1\r\n");
  EXPECT_TRUE(reply.get().error().is(Errc::node_lease_lost));
  EXPECT_EQ(f.core->all.size(), 1U);
}

TEST(QueueSteps, TheDeadlineIsThatOfTheWhole) {
  FakeQueue f;
  auto reply = f.queue.drain({.deadline = Milliseconds(1)});
  std::this_thread::sleep_for(Milliseconds(5));
  f.core->answer(":1000\r\n");
  EXPECT_EQ(f.core->waiting(), 1U);  // with the least deadline there is; the real core ends it at once
  f.core->refuse(Error(Errc::timeout, "late"));
  EXPECT_TRUE(reply.get().error().is(Errc::timeout));
}

}  // namespace
}  // namespace echomq::test
