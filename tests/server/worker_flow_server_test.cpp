// Workers and flows: the outbox is delivered by time, by the workers of the queue that it is in.
#include <atomic>
#include <mutex>
#include <span>

#include "echomq/flow.hpp"
#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

class WorkerFlow : public WorkerTest {
 protected:
  [[nodiscard]] static WorkerOptions options() {
    WorkerOptions out = quick_options(2);
    out.outbox_period = 100ms;
    out.backoff = Backoff::fixed(1ms);
    out.max_attempts = 2;
    return out;
  }
  [[nodiscard]] Queue below() { return client_->queue(QueueName{"below"}); }
  [[nodiscard]] std::vector<FlowJob> children_below(std::size_t count, std::string_view payload = "child") {
    std::vector<FlowJob> children(count);
    for (FlowJob& child : children) {
      child.payload = payload;
      child.queue = QueueName{"below"};
    }
    return children;
  }
};

TEST_F(WorkerFlow, AParentIsReleasedAcrossQueuesByTwoWorkers) {
  const std::vector<FlowJob> children = children_below(250);
  FlowJob root;
  root.payload = "parent";
  root.children = children;
  const Flow flow(*queue_);
  std::atomic<std::size_t> results{0};
  Worker upper = start(
      [&](Job& job) {
        results = flow.children_values(job.id()).get().value().size();
        return Done();
      },
      options());
  Worker lower = start_on(below(), [](Job& job) { return Done(std::string(job.id().text())); }, options());
  ASSERT_TRUE(eventually([&] { return parked(1); }));

  const JobId parent = flow.add(root).get().value().parent;
  EXPECT_TRUE(eventually([&] { return upper.stats().completed == 1; }));
  EXPECT_EQ(results, 250U);
  // The parent may be done before the answers to what the other worker sent have come to it.
  EXPECT_TRUE(eventually([&] { return lower.stats().completed == 250; })) << lower.stats().completed;
  EXPECT_TRUE(eventually([&] { return lower.stats().delivered == 250; })) << lower.stats().delivered;
  EXPECT_EQ(upper.stats().delivered, 0U);
  EXPECT_EQ(flow.dependencies(parent).get().value(), 0);
  EXPECT_TRUE(eventually([&] { return integer("EXISTS", "emq:{below}:flow:outbox") == 0; }));
  EXPECT_EQ(upper.stats().errors + lower.stats().errors, 0U);
}

TEST_F(WorkerFlow, ADeathClimbsThroughTheQueuesOfATree) {
  std::vector<FlowJob> leaf = children_below(1, "fails");
  leaf.front().queue = QueueName{"deep"};
  std::vector<FlowJob> node = children_below(1, "node");
  node.front().children = leaf;
  FlowJob root;
  root.children = node;
  const Flow flow(*queue_);
  const FlowAdded tree = flow.add(root).get().value();
  const auto fail = [](Job&) { return Retry("no luck"); };
  Worker deep = start_on(client_->queue(QueueName{"deep"}), fail, options());
  Worker middle = start_on(below(), fail, options());
  EXPECT_TRUE(eventually([&] { return state(tree.parent) == JobState::dead; }));
  const ChildTexts failures = flow.failures(tree.parent).get().value();
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures.front().first, tree.ids[1]);
  EXPECT_EQ(failures.front().second, "no luck");
  EXPECT_EQ(middle.stats().claimed, 0U);
}

TEST_F(WorkerFlow, WhatIsNoRecordIsLoggedAndInNobodysWay) {
  std::mutex mutex;
  int told = 0;
  ClientOptions logging;
  logging.log = [&](LogLevel, std::string_view event, std::span<const LogField>) {
    const std::lock_guard lock(mutex);
    told += event == "worker_outbox_malformed" ? 1 : 0;
  };
  const Client logged = open({}, logging);
  ASSERT_EQ(integer("RPUSH", "emq:{below}:flow:outbox", "garbage"), 1);
  const std::vector<FlowJob> children = children_below(1);
  FlowJob root;
  root.children = children;
  const JobId parent = Flow(*queue_).add(root).get().value().parent;
  WorkerOptions often = options();
  often.outbox_period = 10ms;
  Worker lower = start_on(logged.queue(QueueName{"below"}), [](Job&) { return Done(); }, often);
  EXPECT_TRUE(eventually([&] { return state(parent) == JobState::pending; }));
  std::this_thread::sleep_for(100ms);
  lower.stop();
  const std::lock_guard lock(mutex);
  EXPECT_EQ(told, 1) << "once, not at every look";
  EXPECT_EQ(integer("LLEN", "emq:{below}:flow:outbox"), 1);
}

TEST_F(WorkerFlow, AnOutboxPeriodOutOfRangeIsRefusedByName) {
  WorkerOptions wrong;
  wrong.outbox_period = 0ms;
  const auto worker = Worker::start(*queue_, [](Job&) { return Done(); }, wrong);
  ASSERT_FALSE(worker);
  EXPECT_NE(worker.error().text.find("outbox_period"), std::string::npos);
}

}  // namespace
}  // namespace echomq::test
