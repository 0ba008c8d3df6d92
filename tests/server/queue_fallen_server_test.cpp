// Flow parents that died of several children at once are named once.
#include <vector>

#include "echomq/flow.hpp"
#include "queue/flow_deliver.hpp"
#include "server/exchange_fixture.hpp"

namespace echomq::test {
namespace {

using namespace echomq::queue;
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

// The scripts are unknown to the server: both are sent once more, behind the looks at the parent.
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

}  // namespace
}  // namespace echomq::test
