// Flow parents that died of a child are named once, by the call that killed them.
#include <vector>

#include "echomq/flow.hpp"
#include "queue/flow_deliver.hpp"
#include "queue/swept.hpp"
#include "server/exchange_fixture.hpp"

namespace echomq::test {
namespace {

using namespace echomq::queue;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class FallenTest : public ExchangeTest {
 protected:
  /// A parent in the queue of the test, with two children there or in another one.
  [[nodiscard]] JobId family(std::optional<QueueName> below = {}) {
    std::vector<FlowJob> children(2);
    for (FlowJob& child : children) {
      child.payload = "child";
      child.queue = below;
    }
    FlowJob root;
    root.payload = "parent";
    root.children = children;
    return Flow(queue()).add(root).get().value().parent;
  }
  /// All that can be claimed there, ended as dead by one call.
  [[nodiscard]] Exchanged end_all(const Queue& of) {
    const auto held = exchange(of, {}, TakeRequest{.most = 5}).get().value();
    std::vector<Settlement> ends;
    for (const TakenJob& one : held.jobs)
      ends.push_back({.id = one.job.id, .token = one.job.token, .kind = SettleKind::dead, .text = "no luck"});
    EXPECT_THAT(ends, SizeIs(2));
    return exchange(of, ends, std::nullopt).get().value();
  }
};

TEST_F(FallenTest, ByOneSettleOfTwoChildren) {
  const JobId parent = family();
  const Exchanged ended = end_all(queue());
  ASSERT_THAT(ended.fallen, SizeIs(1));
  EXPECT_EQ(ended.fallen.front().parent, parent);
}

// The scripts are unknown to the server: both are sent once more.
TEST_F(FallenTest, ByOnePassOverTwoRecords) {
  const Queue below = client().queue(QueueName{"below"});
  const JobId parent = family(below.name());
  EXPECT_THAT(end_all(below).fallen, IsEmpty());
  raw("SCRIPT", "FLUSH");
  const Brought brought = bring(below, 100).get().value();
  EXPECT_EQ(brought.pass.delivered, 2);
  ASSERT_THAT(brought.fallen, SizeIs(1));
  EXPECT_EQ(brought.fallen.front().parent, parent);
  EXPECT_THAT(bring(below, 100).get().value().fallen, IsEmpty());
}

// Each pass looked at the parent before it brought the record, and both saw it alive.
TEST_F(FallenTest, ByTwoPassesAtOnce) {
  const Queue below = client().queue(QueueName{"below"});
  const JobId parent = family(below.name());
  (void)end_all(below);
  raw("SCRIPT", "FLUSH");
  auto first = bring(below, 100);
  auto second = bring(below, 100);
  std::vector<FallenParent> fallen = first.get().value().fallen;
  const std::vector<FallenParent> others = second.get().value().fallen;
  fallen.insert(fallen.end(), others.begin(), others.end());
  ASSERT_THAT(fallen, SizeIs(1));
  EXPECT_EQ(fallen.front().parent, parent);
  EXPECT_EQ(fallen.front().queue, queue().name());
  EXPECT_EQ(fallen.front().reason, "no luck");
}

TEST_F(FallenTest, BySweepsThatFollowUponEachOther) {
  const JobId parent = family();
  const auto lapse = [&](std::size_t count) {
    const auto jobs = take({.most = static_cast<std::uint32_t>(count), .lease = 1ms}).jobs;
    EXPECT_THAT(jobs, SizeIs(count));
    std::this_thread::sleep_for(5ms);
  };
  const auto sweep = [&](std::uint32_t limit) {
    return sweep_lapsed(queue(), {.max_stalled = 1, .limit = limit}).get().value();
  };
  lapse(2);
  const SweptLapsed first = sweep(1);
  EXPECT_THAT(first.swept.dead, SizeIs(1));
  EXPECT_THAT(first.fallen, ElementsAre(parent));
  const SweptLapsed second = sweep(1);
  EXPECT_THAT(second.swept.dead, SizeIs(1));
  EXPECT_THAT(second.fallen, IsEmpty());

  // It lives again, and one of the children too: what the other has left in `:failed` says nothing of who kills it now.
  ASSERT_TRUE(queue().reprocess(second.swept.dead.front()).get());
  lapse(1);
  ASSERT_TRUE(queue().reprocess(parent).get());
  EXPECT_THAT(sweep(100).fallen, ElementsAre(parent));
}

}  // namespace
}  // namespace echomq::test
