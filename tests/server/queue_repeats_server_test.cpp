// Repeats, the pump, and the markers of a holder.
#include <atomic>
#include <set>

#include "echomq/batch.hpp"
#include "echomq/flow.hpp"
#include "echomq/lock_plane.hpp"
#include "server/queue_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using RepeatsServerTest = QueueServerTest;

/// Look, admission and advance were three calls: two pumps fired one run twice.
TEST_F(RepeatsServerTest, ManyPumpsFireEveryRunOnce) {
  constexpr int kRepeats = 700;
  std::vector<Reply<Registered>> registered;
  for (int i = 0; i < kRepeats; ++i)
    registered.push_back(queue().register_repeat("r" + std::to_string(i), {.every = 1h, .payload = "p"}));
  for (Reply<Registered>& one : registered)
    ASSERT_EQ(one.get().value(), Registered::registered);
  ASSERT_EQ(queue().repeat_count().get().value(), kRepeats);
  std::atomic<std::int64_t> fired{0};
  std::vector<std::thread> pumps;
  for (int pump = 0; pump < 4; ++pump) {
    pumps.emplace_back([&] {
      auto mine = Client::open(server().url()).value();
      for (int tick = 0; tick < 10; ++tick)
        fired += mine.queue("q").fire_repeats(500).get().value();
    });
  }
  for (std::thread& pump : pumps)
    pump.join();
  EXPECT_EQ(fired.load(), kRepeats);
  EXPECT_EQ(queue().pending_size().get().value(), kRepeats);
  EXPECT_EQ(queue().repeat_count().get().value(), kRepeats);
}

TEST_F(RepeatsServerTest, ARegistrationIsLeftAsItIs) {
  EXPECT_EQ(queue().register_repeat("a name: any bytes", {.every = 1h, .first_in = 1h, .payload = "1"}).get().value(),
            Registered::registered);
  EXPECT_EQ(queue().register_repeat("a name: any bytes", {.every = 1ms, .payload = "2"}).get().value(),
            Registered::exists);
  EXPECT_THAT(queue().due_repeats().get().value(), IsEmpty());
  EXPECT_EQ(queue().advance_repeat("a name: any bytes", 1ms).get().value(), RepeatFound::found);
  std::this_thread::sleep_for(5ms);
  const auto due = queue().due_repeats().get().value();
  ASSERT_THAT(due, SizeIs(1));
  EXPECT_EQ(due[0].name, "a name: any bytes");
  EXPECT_EQ(due[0].every, 1h);
  EXPECT_EQ(due[0].payload, "1");
  EXPECT_EQ(queue().cancel_repeat("a name: any bytes").get().value(), RepeatFound::found);
  EXPECT_EQ(queue().cancel_repeat("a name: any bytes").get().value(), RepeatFound::absent);
  EXPECT_EQ(queue().advance_repeat("a name: any bytes", 1ms).get().value(), RepeatFound::absent);
}

/// A period that is no number crashed the canonical pump at every tick, and held up what was behind it.
TEST_F(RepeatsServerTest, ARegistrationThatCannotBeUsedIsSweptAndHoldsNothingUp) {
  raw("ZADD", "emq:{q}:repeat", "1", "ghost", "2", "word", "3", "fraction", "4", "empty");
  raw("HSET", "emq:{q}:repeat:word", "every_ms", "often", "template", "p");
  raw("HSET", "emq:{q}:repeat:fraction", "every_ms", "0.5", "template", "p");
  raw("HSET", "emq:{q}:repeat:empty", "every_ms", "1000");
  ASSERT_TRUE(queue().register_repeat("good", {.every = 1h, .payload = "run"}).get());
  EXPECT_EQ(queue().fire_repeats(5).get().value(), 1);
  EXPECT_EQ(queue().repeat_count().get().value(), 1);
  EXPECT_EQ(queue().claim().get().value()->payload, "run");
}

TEST_F(RepeatsServerTest, APumpMovesWhatIsDueAndFiresRepeats) {
  ASSERT_TRUE(queue().enqueue_at("p", Instant(1ms), {.id = kJobA}).get());
  ASSERT_TRUE(queue().register_repeat("r", {.every = 1h, .payload = "p"}).get());
  const Pumped pumped = queue().pump_sweep().get().value();
  EXPECT_EQ(pumped.promoted, 1);
  EXPECT_EQ(pumped.fired, 1);
  EXPECT_EQ(pumped.delivered, 0);
  EXPECT_EQ(queue().pump_sweep().get().value().fired, 0);
}

/// A pump that left the outbox alone kept parents in other queues waiting where no worker of ours ran.
TEST_F(RepeatsServerTest, APumpBringsTheQueuesRecordsToTheirParents) {
  const Queue parents = client().queue("parents");
  const FlowJob children[] = {{.payload = "c", .id = kJobA, .queue = QueueName{"q"}},
                              {.payload = "c", .id = kJobB, .queue = QueueName{"q"}}};
  ASSERT_TRUE(Flow(parents).add({.payload = "p", .id = kJobC, .children = children}).get());
  for (const JobId child : {kJobA, kJobB}) {
    const auto job = queue().claim().get().value();
    ASSERT_TRUE(job && job->id == child);
    ASSERT_TRUE(queue().complete(job->id, job->token, {.result = "r"}).get());
  }
  EXPECT_EQ(parents.state(kJobC).get().value(), JobState::awaiting_children);
  EXPECT_EQ(queue().pump_sweep(1).get().value().delivered, 1);
  EXPECT_EQ(raw("LLEN", "emq:{q}:flow:outbox").as_integer(), 1);
  EXPECT_EQ(queue().pump_sweep(1).get().value().delivered, 1);
  EXPECT_EQ(queue().pump_sweep(1).get().value().delivered, 0);
  EXPECT_EQ(parents.state(kJobC).get().value(), JobState::pending);

  // What is no record stays, and counts for nothing.
  raw("RPUSH", "emq:{q}:flow:outbox", "no record");
  EXPECT_EQ(queue().pump_sweep().get().value().delivered, 0);
  EXPECT_EQ(raw("LLEN", "emq:{q}:flow:outbox").as_integer(), 1);
}

TEST_F(RepeatsServerTest, AClosedClientAnswersVerbsOfSeveralSteps) {
  const Queue queue_of_closed = queue();
  client().close();
  EXPECT_TRUE(queue_of_closed.drain().get().error().is(Errc::client_closed));
  EXPECT_TRUE(queue_of_closed.pump_sweep().get().error().is(Errc::client_closed));
  EXPECT_TRUE(queue_of_closed.reap_lane(kLaneX).get().error().is(Errc::client_closed));
}

using LockPlaneServerTest = QueueServerTest;

TEST_F(LockPlaneServerTest, AMarkerLocksTheJobAndItsHolderTakesItOff) {
  const Token token = claimed(kJobA, {.lease = 1min});
  auto plane = LockPlane::create(queue(), {.lease = 10s}).value();
  EXPECT_EQ(plane.interval(), 5s);
  EXPECT_THAT(plane.beat().get().value(), IsEmpty());
  ASSERT_TRUE(plane.track(kJobA, token).get());
  EXPECT_TRUE(queue().remove(kJobA).get().error().is(Errc::job_locked));
  EXPECT_THAT(plane.beat().get().value(), IsEmpty());
  EXPECT_EQ(field(kJobA, "lock"), "(no text)");  // this server cannot expire a field

  // Another holder has marked it since.
  auto other = LockPlane::create(queue()).value();
  ASSERT_TRUE(other.track(kJobA, Token(9)).get());
  ASSERT_TRUE(plane.untrack(kJobA).get());
  EXPECT_TRUE(queue().remove(kJobA).get().error().is(Errc::job_locked));
  EXPECT_THAT(other.beat().get().value(), ElementsAre(kJobA));  // it does not hold the job
  EXPECT_TRUE(other.is_tracked(kJobA));
  ASSERT_TRUE(other.untrack(kJobA).get());
  ASSERT_TRUE(other.untrack(kJobA).get());
  EXPECT_TRUE(queue().remove(kJobA).get());
  // A job that is gone gets no row back.
  ASSERT_TRUE(plane.track(kJobA, token).get());
  EXPECT_THAT(raw("KEYS", "emq:{q}:job:*").items(), IsEmpty());
}

TEST_F(LockPlaneServerTest, ABeatOfManyGoesInBites) {
  const std::vector<NewJob> jobs(900, NewJob{.payload = "p"});
  ASSERT_TRUE(queue().enqueue_many(jobs).get());
  auto plane = LockPlane::create(queue(), {.lease = 1h}).value();
  const auto claimed_jobs = queue().claim_batch({.lease = 10ms}).get().value();
  for (const ClaimedJob& job : claimed_jobs)
    plane.track(job.id, job.token).detach();
  EXPECT_THAT(plane.beat().get().value(), IsEmpty());
  std::this_thread::sleep_for(15ms);
  EXPECT_EQ(queue().reap().get().value(), 0);
}

TEST_F(LockPlaneServerTest, BadOptionsAreRefusedByValue) {
  EXPECT_THAT(LockPlane::create(queue(), {.lease = 0ms}).error().text, ::testing::HasSubstr("lease"));
  EXPECT_THAT(LockPlane::create(queue(), {.extend = 0ms}).error().text, ::testing::HasSubstr("extend"));
  EXPECT_THAT(LockPlane::create(queue(), {.marker_multiple = -2.5}).error().text, ::testing::HasSubstr("-2.5"));
}

using BatchServerTest = QueueServerTest;

TEST_F(BatchServerTest, EachMemberIsSettledByItsOwnOutcome) {
  const std::vector<NewJob> jobs(7, NewJob{.payload = "p"});
  ASSERT_TRUE(queue().enqueue_many(jobs).get());
  std::vector<JobId> ids;
  const auto handler = [&](std::span<const ClaimedJob> batch) {
    for (const ClaimedJob& job : batch)
      ids.push_back(job.id);
    EXPECT_TRUE(queue().remove(batch[6].id).get());
    return std::vector<std::optional<Outcome>>{Done("result"), Retry("again"), Dead("never"),
                                               Delay(1h),      std::nullopt,   HandBack()};  // the last has no place
  };
  const auto report = run_batch(queue(), handler, {.retry_delay = 1h}).value();
  ASSERT_THAT(ids, SizeIs(7));
  EXPECT_THAT(report.completed, ElementsAre(ids[0]));
  EXPECT_THAT(report.dead, ElementsAre(ids[2]));
  EXPECT_THAT(report.delayed, ElementsAre(ids[3]));
  EXPECT_THAT(report.retried, ElementsAre(ids[1], ids[4], ids[5], ids[6]));
  EXPECT_EQ(field(ids[1], "last_error"), "again");
  EXPECT_EQ(field(ids[2], "last_error"), "never");
  EXPECT_EQ(field(ids[4], "last_error"), "missing verdict");
  EXPECT_EQ(queue().state(ids[5]).get().value(), JobState::pending);
  EXPECT_EQ(queue().state(ids[6]).get().value(), JobState::absent);
}

TEST_F(BatchServerTest, AnExceptionFailsAllAndAnEmptyQueueCallsNobody) {
  int calls = 0;
  const auto handler = [&](std::span<const ClaimedJob>) -> std::vector<std::optional<Outcome>> {
    ++calls;
    throw std::runtime_error("broken");
  };
  EXPECT_THAT(run_batch(queue(), handler).value().retried, IsEmpty());
  EXPECT_EQ(calls, 0);
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  EXPECT_THAT(run_batch(queue(), handler, {.max_attempts = 1}).value().dead, ElementsAre(kJobA));
  EXPECT_EQ(field(kJobA, "last_error"), "broken");
  EXPECT_TRUE(run_batch(queue(), handler, {.size = 0}).error().is(Errc::invalid_argument));
  EXPECT_TRUE(run_batch(queue(), handler, {.retry_delay = -1ms}).error().is(Errc::invalid_argument));
  EXPECT_TRUE(run_batch(queue(), {}).error().is(Errc::invalid_argument));
}

}  // namespace
}  // namespace echomq::test
