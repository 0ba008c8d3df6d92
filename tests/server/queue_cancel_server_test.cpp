// `Queue::cancel` and who hears of it: what ends at once, what is asked for, what is left alone, and that the sets, the
// ring and the counters stay true.
#include <atomic>
#include <map>
#include <mutex>

#include "echomq/flow.hpp"
#include "events/cancel_watch.hpp"
#include "queue/cancel.hpp"
#include "server/queue_fixture.hpp"
#include "support/proxy.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr JobId kParent{"JOB0NgWEfAE00P"};

class QueueCancel : public QueueServerTest {
 protected:
  [[nodiscard]] CancelVerdict cancel(JobId id) {
    const auto verdict = queue().cancel(id).get();
    EXPECT_TRUE(verdict) << verdict.error().message();
    return verdict.value_or(CancelVerdict::unknown);
  }
  [[nodiscard]] std::int64_t failed() { return queue().metric(Metric::failed).get().value().count; }
  [[nodiscard]] std::vector<JobId> marked(const std::vector<JobId>& held) {
    auto reply = queue::marked_of(queue(), held).get();
    EXPECT_TRUE(reply) << reply.error().message();
    return reply.value_or(std::vector<JobId>());
  }
  void is_cancelled(JobId id) {
    EXPECT_THAT(places(id), ElementsAre("dead"));
    EXPECT_EQ(field(id, "state"), "dead");
    EXPECT_EQ(field(id, "last_error"), "cancelled");
    EXPECT_TRUE(raw("HGET", "emq:{q}:job:" + std::string(id.text()), "cancel").is_null());
  }
  template <typename Condition>
  [[nodiscard]] static bool eventually(Condition condition) {
    const auto until = std::chrono::steady_clock::now() + 10s;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until)
        return false;
      std::this_thread::sleep_for(2ms);
    }
    return true;
  }
};

TEST_F(QueueCancel, WhatWaitsIsDeadAtOnce) {
  ASSERT_TRUE(queue().enqueue("a", {.id = kJobA}).get());
  ASSERT_TRUE(queue().enqueue_in("b", 1h, {.id = kJobB}).get());
  EXPECT_EQ(cancel(kJobA), CancelVerdict::cancelled);
  is_cancelled(kJobA);
  EXPECT_EQ(cancel(kJobB), CancelVerdict::cancelled);
  is_cancelled(kJobB);
  EXPECT_EQ(field(kJobA, "payload"), "a");
  EXPECT_EQ(failed(), 2);
  const auto counts = queue().counts().get().value();
  EXPECT_EQ(counts.pending + counts.active + counts.scheduled + counts.completed, 0);
  EXPECT_EQ(counts.dead, 2);
  EXPECT_FALSE(queue().claim().get().value());
  // Once more changes nothing.
  const std::string before = digest();
  EXPECT_EQ(cancel(kJobA), CancelVerdict::cancelled);
  EXPECT_EQ(digest(), before);
}

TEST_F(QueueCancel, TheLastJobOfALaneTakesItOffTheRing) {
  for (const JobId id : {kJobA, kJobB})
    ASSERT_TRUE(queue().enqueue("x", {.id = id, .lane = kLaneX}).get());
  ASSERT_TRUE(queue().enqueue("y", {.id = kJobC, .lane = kLaneY}).get());
  EXPECT_EQ(cancel(kJobA), CancelVerdict::cancelled);
  EXPECT_EQ(raw("LLEN", "emq:{q}:ring").as_integer(), 2);
  EXPECT_EQ(cancel(kJobB), CancelVerdict::cancelled);
  EXPECT_EQ(raw("LRANGE", "emq:{q}:ring", "0", "-1").items().size(), 1U);
  EXPECT_EQ(text(raw("LINDEX", "emq:{q}:ring", "0")), kLaneY.text());
  EXPECT_THAT(places(kJobB, kLaneX), ElementsAre("dead"));
  EXPECT_EQ(raw("EXISTS", "emq:{q}:g:" + std::string(kLaneX.text()) + ":pending").as_integer(), 0);
  const auto next = queue().claim_lane().get().value();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->id, kJobC);
  EXPECT_EQ(failed(), 2);
}

TEST_F(QueueCancel, ALaneAtItsCeilingKeepsItsSlots) {
  ASSERT_TRUE(queue().limit_lane(kLaneX, 1).get());
  for (const JobId id : {kJobA, kJobB})
    ASSERT_TRUE(queue().enqueue("x", {.id = id, .lane = kLaneX}).get());
  const auto held = queue().claim_lane().get().value();
  ASSERT_TRUE(held && held->id == kJobA);
  EXPECT_EQ(cancel(kJobB), CancelVerdict::cancelled);
  EXPECT_EQ(raw("LLEN", "emq:{q}:ring").as_integer(), 0);
  EXPECT_EQ(text(raw("HGET", "emq:{q}:gactive", kLaneX.text())), "1");
  ASSERT_TRUE(queue().complete(kJobA, held->token).get());
  EXPECT_TRUE(raw("HGET", "emq:{q}:gactive", kLaneX.text()).is_null());
  EXPECT_EQ(raw("LLEN", "emq:{q}:ring").as_integer(), 0);
}

TEST_F(QueueCancel, ARunningJobIsMarkedAndStaysItsWorkers) {
  const Token token = claimed(kJobA);
  EXPECT_EQ(cancel(kJobA), CancelVerdict::requested);
  EXPECT_THAT(places(kJobA), ElementsAre("active"));
  EXPECT_EQ(field(kJobA, "cancel"), "1");
  EXPECT_EQ(field(kJobA, "state"), "active");
  EXPECT_EQ(failed(), 0);
  EXPECT_THAT(marked({kJobB, kJobA}), ElementsAre(kJobA));
  // A handler that did not care: done is done, and the mark goes with the row.
  ASSERT_TRUE(queue().complete(kJobA, token).get());
  EXPECT_THAT(marked({kJobA}), IsEmpty());
  // One that failed: the job waits, so another request ends it, and another chance begins without the mark.
  const Token other = claimed(kJobB);
  EXPECT_EQ(cancel(kJobB), CancelVerdict::requested);
  ASSERT_TRUE(queue().retry(kJobB, other, {.delay = 1h}).get());
  EXPECT_THAT(marked({kJobB}), ElementsAre(kJobB));
  EXPECT_EQ(cancel(kJobB), CancelVerdict::cancelled);
  is_cancelled(kJobB);
  // The worker's own end of it: the mark stays with the dead row, and goes with the next chance.
  const Token third = claimed(kJobC);
  EXPECT_EQ(cancel(kJobC), CancelVerdict::requested);
  ASSERT_TRUE(queue().retry(kJobC, third, {.max_attempts = 1, .error = "cancelled"}).get());
  EXPECT_EQ(cancel(kJobC), CancelVerdict::cancelled);
  EXPECT_EQ(failed(), 2);
  ASSERT_TRUE(queue().reprocess(kJobC).get());
  EXPECT_THAT(marked({kJobC}), IsEmpty());
}

TEST_F(QueueCancel, AskingForManyMarksTakesAsManyScriptsAsItNeeds) {
  std::vector<NewJob> jobs(2500, NewJob{.payload = "x", .id = {}});
  std::vector<JobId> ids;
  const auto admitted = queue().enqueue_many(jobs).get().value();
  for (const auto& one : admitted)
    ids.push_back(one.value().id);
  std::size_t left = ids.size();
  while (left > 0)
    left -= queue().claim_batch({.size = 1000}).get().value().size();
  for (const std::size_t at : {std::size_t{0}, std::size_t{999}, std::size_t{1000}, std::size_t{2499}})
    EXPECT_EQ(cancel(ids[at]), CancelVerdict::requested);
  const std::string before = digest();
  EXPECT_THAT(marked(ids), ElementsAre(ids[0], ids[999], ids[1000], ids[2499]));
  EXPECT_EQ(digest(), before);
  EXPECT_THAT(marked({}), IsEmpty());
}

TEST_F(QueueCancel, WhatCannotBeCancelledIsLeftAlone) {
  EXPECT_TRUE(queue().cancel(kJobA).get().error().is(Errc::job_gone));
  const Token token = claimed(kJobB);
  ASSERT_TRUE(queue().retry(kJobB, token, {.max_attempts = 1, .error = "broken"}).get());
  ASSERT_TRUE(queue().enqueue("c", {.id = kJobC}).get());
  raw("ZREM", "emq:{q}:pending", kJobC.text());
  const std::string before = digest();
  EXPECT_EQ(cancel(kJobB), CancelVerdict::dead);
  EXPECT_EQ(cancel(kJobC), CancelVerdict::unknown);
  EXPECT_EQ(digest(), before);
  EXPECT_EQ(failed(), 1);
}

TEST_F(QueueCancel, AChildsParentIsToldByItsPolicy) {
  const Flow flow(queue());
  for (const ChildDeath policy : {ChildDeath::is_ignored, ChildDeath::fails_parent}) {
    raw("FLUSHDB");
    FlowJob children[2];
    children[0].payload = "a";
    children[0].id = kJobA;
    children[1].payload = "b";
    children[1].id = kJobB;
    children[0].on_death = children[1].on_death = policy;
    FlowJob parent;
    parent.payload = "p";
    parent.id = kParent;
    parent.children = children;
    ASSERT_TRUE(flow.add(parent).get());
    const std::string before = digest();
    EXPECT_EQ(cancel(kParent), CancelVerdict::awaiting_children);
    EXPECT_EQ(digest(), before);
    EXPECT_EQ(cancel(kJobA), CancelVerdict::cancelled);
    EXPECT_EQ(cancel(kJobA), CancelVerdict::cancelled);
    EXPECT_EQ(failed(), 1);
    if (policy == ChildDeath::is_ignored) {
      EXPECT_EQ(flow.dependencies(kParent).get(), 1);
      EXPECT_EQ(queue().state(kParent).get(), JobState::awaiting_children);
      EXPECT_EQ(cancel(kJobB), CancelVerdict::cancelled);
      EXPECT_EQ(queue().state(kParent).get(), JobState::pending);
    } else {
      EXPECT_EQ(queue().state(kParent).get(), JobState::dead);
      EXPECT_EQ(text(raw("HGET", "emq:{q}:job:JOB0NgWEfAE00P:failed", kJobA.text())), "cancelled");
      EXPECT_THAT(places(kJobB), ElementsAre("pending"));
    }
  }
}

TEST_F(QueueCancel, WorksOnAFullServer) {
  (void)claimed(kJobB);
  ASSERT_TRUE(queue().enqueue("a", {.id = kJobA}).get());
  raw("CONFIG", "SET", "maxmemory", "1");
  EXPECT_EQ(cancel(kJobA), CancelVerdict::cancelled);
  EXPECT_EQ(cancel(kJobB), CancelVerdict::requested);
  raw("CONFIG", "SET", "maxmemory", "0");
}

/// What watches were told.
struct Told {
  std::mutex mutex;
  std::map<std::string, std::vector<JobId>> jobs;  // guarded by mutex
  std::atomic<int> armed{0};

  [[nodiscard]] events::CancelHandlers handlers(const std::string& name) {
    return {.on_cancel =
                [this, name](const JobId& id) {
                  const std::lock_guard lock(mutex);
                  jobs[name].push_back(id);
                },
            .on_armed = [this] { ++armed; }};
  }
  [[nodiscard]] std::vector<JobId> of(const std::string& name) {
    const std::lock_guard lock(mutex);
    return jobs[name];
  }
};

TEST_F(QueueCancel, WatchesHearTheirQueueOverOneConnection) {
  Told told;
  const std::uint64_t before = client().stats().connections;
  std::vector<std::unique_ptr<events::CancelWatch>> watches;
  constexpr int kQueues = 300;
  for (int i = 0; i < kQueues; ++i) {
    const std::string name = "q" + std::to_string(i);
    watches.push_back(events::CancelWatch::start(client().core(), QueueName::parse(name).value(), told.handlers(name)));
  }
  ASSERT_TRUE(eventually([&] { return told.armed == kQueues; }));
  EXPECT_EQ(client().stats().connections, before + 1);
  const Queue seventh = client().queue("q7");
  ASSERT_TRUE(seventh.enqueue("x", {.id = kJobA}).get());
  ASSERT_TRUE(seventh.claim().get().value());
  EXPECT_EQ(seventh.cancel(kJobA).get(), CancelVerdict::requested);
  EXPECT_TRUE(eventually([&] { return told.of("q7").size() == 1; }));
  EXPECT_THAT(told.of("q7"), ElementsAre(kJobA));
  raw("PUBLISH", "emq:{q8}:cancel", "no id");
  EXPECT_TRUE(eventually([&] { return watches[8]->stats().malformed == 1; }));
  EXPECT_EQ(watches[8]->stats().heard, 0U);
  // A second watch of one queue, and the end of the first.
  Told second;
  const auto beside = events::CancelWatch::start(client().core(), "q7", second.handlers("q7"));
  ASSERT_TRUE(eventually([&] { return second.armed == 1; }));
  watches.clear();
  EXPECT_EQ(seventh.cancel(kJobA).get(), CancelVerdict::requested);
  EXPECT_TRUE(eventually([&] { return second.of("q7").size() == 1; }));
  EXPECT_THAT(told.of("q7"), ElementsAre(kJobA));
}

TEST_F(QueueCancel, AWatchThatWasAwayIsArmedAgainAndTheMarksTellTheRest) {
  Proxy proxy(server().url());
  Client behind = Client::open(proxy.url()).value();
  Told told;
  const auto watch = events::CancelWatch::start(behind.core(), "q", told.handlers("q"));
  ASSERT_TRUE(eventually([&] { return told.armed == 1 && watch->live(); }));
  (void)claimed(kJobA);
  proxy.refuse_new(true);
  ASSERT_GE(proxy.cut(), 2U);
  ASSERT_TRUE(eventually([&] { return !watch->live(); }));
  EXPECT_EQ(cancel(kJobA), CancelVerdict::requested);
  proxy.refuse_new(false);
  ASSERT_TRUE(eventually([&] { return told.armed == 2; }));
  EXPECT_THAT(told.of("q"), IsEmpty());
  EXPECT_THAT(marked({kJobA}), ElementsAre(kJobA));
  EXPECT_EQ(cancel(kJobA), CancelVerdict::requested);
  EXPECT_TRUE(eventually([&] { return told.of("q").size() == 1; }));
}

TEST_F(QueueCancel, AWatchBegunWhileNobodyAnswersIsArmedLater) {
  Proxy proxy(server().url());
  Client behind = Client::open(proxy.url(), {.deadline = 1s, .node_lease = NodeLease::never}).value();
  proxy.refuse_new(true);
  Told told;
  const auto watch = events::CancelWatch::start(behind.core(), "q", told.handlers("q"));
  std::this_thread::sleep_for(1300ms);  // for longer than a call may take
  EXPECT_EQ(told.armed, 0);
  proxy.refuse_new(false);
  EXPECT_TRUE(eventually([&] { return told.armed >= 1 && watch->live(); }));
}

TEST_F(QueueCancel, NoWatchIsToldAnythingAfterItsEnd) {
  (void)claimed(kJobA);
  std::atomic<bool> stop{false};
  std::thread asking([&] {
    while (!stop)
      (void)queue().cancel(kJobA).get();
  });
  for (int round = 0; round < 100; ++round) {
    auto alive = std::make_shared<std::atomic<bool>>(true);
    std::atomic<int> heard{0};
    {
      const auto watch = events::CancelWatch::start(client().core(), "q",
                                                    {.on_cancel =
                                                         [alive, &heard](const JobId&) {
                                                           EXPECT_TRUE(*alive);
                                                           ++heard;
                                                         },
                                                     .on_armed = [alive] { EXPECT_TRUE(*alive); }});
      if (round % 2 == 0) {
        EXPECT_TRUE(eventually([&] { return heard > 0; }));
      }
    }
    *alive = false;
  }
  stop = true;
  asking.join();
}

}  // namespace
}  // namespace echomq::test
