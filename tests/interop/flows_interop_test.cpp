// Flows that two languages make together: whoever admits the tree, whoever ends a child, the parent hears of it once.
#include "echomq/flow.hpp"
#include "interop/exchange_fixture.hpp"

namespace echomq::interop {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

class ExchangeFlowsTest : public ExchangeTest {
 protected:
  [[nodiscard]] Flow flow() { return Flow(queue()); }
  /// The other queue of flows that cross.
  [[nodiscard]] Queue other() { return client().queue("q.other"); }
  [[nodiscard]] static json::object settle(const BrandedId& id, int token, std::string_view result) {
    return {{"id", text(id)}, {"token", token}, {"result", result}};
  }
  [[nodiscard]] static json::object death(const BrandedId& id, std::string_view why) {
    return {{"id", text(id)}, {"token", 1}, {"delay_ms", 0}, {"max_attempts", 1}, {"error", why}};
  }
};

TEST_F(ExchangeFlowsTest, OurFlowEndsByTheHandsOfBoth) {
  const std::vector<FlowJob> children = {{.payload = "a"}, {.payload = "b"}};
  const FlowAdded added = flow().add({.payload = "parent", .children = children}).get().value();
  ASSERT_EQ(added.ids.size(), 3u);
  const JobId parent = added.ids[0];
  EXPECT_EQ(ask("get_job_state", {{"id", text(parent)}}), ok("awaiting_children"));
  EXPECT_EQ(ask("dependencies", {{"id", text(parent)}}), ok(2));
  EXPECT_EQ(ask("claim", {{"lease_ms", 60000}}), ok(json::array{text(added.ids[1]), "a", 1}));
  EXPECT_EQ(ask("complete", settle(added.ids[1], 1, "ra")), "ok");
  EXPECT_EQ(flow().dependencies(parent).get().value(), 1);
  EXPECT_EQ(claimed().id, added.ids[2]);
  EXPECT_TRUE(queue().complete(added.ids[2], Token(1), {.result = "rb"}).get());
  EXPECT_EQ(ask("claim", {{"lease_ms", 60000}}), ok(json::array{text(parent), "parent", 1}));
  EXPECT_EQ(ask("children_values", {{"id", text(parent)}}),
            ok(json::object{{added.ids[1].text(), "ra"}, {added.ids[2].text(), "rb"}}));
  EXPECT_TRUE(queue().complete(parent, Token(1)).get());
  expect_counts({.completed = 3});
}

TEST_F(ExchangeFlowsTest, ThePeersFlowEndsByTheHandsOfBoth) {
  const JobId parent = JobId::parse(peer().mint("JOB")).value();
  const JobId a = JobId::parse(peer().mint("JOB")).value();
  const JobId b = JobId::parse(peer().mint("JOB")).value();
  const json::array children{{{"id", text(a)}, {"payload", "a"}, {"ignore_dependency_on_failure", true}},
                             {{"id", text(b)}, {"payload", "b"}}};
  EXPECT_EQ(ask("flow_add", {{"parent", {{"id", text(parent)}, {"payload", "p"}}}, {"children", children}}),
            ok(json::array{text(parent), json::array{text(a), text(b)}}));
  EXPECT_EQ(queue().state(parent).get().value(), JobState::awaiting_children);
  // Its death is ignored: the row says so, whoever reads it.
  EXPECT_EQ(claimed().id, a);
  EXPECT_EQ(queue().retry(a, Token(1), {.delay = 0ms, .max_attempts = 1, .error = "no luck"}).get().value(),
            Retried::dead);
  EXPECT_EQ(ask("dependencies", {{"id", text(parent)}}), ok(1));
  EXPECT_EQ(ask("claim", {{"lease_ms", 60000}}), ok(json::array{text(b), "b", 1}));
  EXPECT_EQ(ask("complete", settle(b, 1, "rb")), "ok");
  const ClaimedJob last = claimed();
  EXPECT_EQ(last.id, parent);
  EXPECT_THAT(flow().children_values(parent).get().value(), ElementsAre(Pair(b, "rb")));
  EXPECT_THAT(flow().ignored_failures(parent).get().value(), ElementsAre(Pair(a, "no luck")));
  EXPECT_EQ(ask("ignored_failures", {{"id", text(parent)}}), ok(json::object{{a.text(), "no luck"}}));
}

TEST_F(ExchangeFlowsTest, RecordsOfOneQueueAreDeliveredByTheOtherSpeaker) {
  const std::string result("r\0\xff", 3);
  const std::vector<FlowJob> ours = {{.payload = "a", .queue = other().name()}};
  const FlowAdded added = flow().add({.payload = "parent", .children = ours}).get().value();
  // The peer ends the child, we bring the record.
  EXPECT_EQ(peer().ask("claim", "q.other", {{"lease_ms", 60000}}), ok(json::array{text(added.ids[1]), "a", 1}));
  json::object done = settle(added.ids[1], 1, "");
  done["result"] = conformance::text_to_json(result);
  EXPECT_EQ(peer().ask("complete", "q.other", done), "ok");
  EXPECT_EQ(queue().state(added.ids[0]).get().value(), JobState::awaiting_children);
  EXPECT_EQ(Flow(other()).deliver().get().value().delivered, 1);
  EXPECT_THAT(flow().children_values(added.ids[0]).get().value(), ElementsAre(Pair(added.ids[1], result)));
  EXPECT_EQ(peer().ask("deliver", "q.other", {{"batch", 100}}), ok(0));
  EXPECT_EQ(ask("claim", {{"lease_ms", 60000}}), ok(json::array{text(added.ids[0]), "parent", 1}));

  // The other way round.
  const std::string parent = peer().mint("JOB");
  const JobId child = JobId::parse(peer().mint("JOB")).value();
  const json::array children{{{"id", text(child)}, {"payload", "b"}, {"queue", "q.other"}}};
  EXPECT_EQ(ask("flow_add", {{"parent", {{"id", parent}, {"payload", "p"}}}, {"children", children}}),
            ok(json::array{parent, json::array{text(child)}}));
  EXPECT_EQ(other().claim().get().value().value().id, child);
  EXPECT_TRUE(other().complete(child, Token(1), {.result = result}).get());
  EXPECT_EQ(peer().ask("deliver", "q.other", {{"batch", 100}}), ok(1));
  EXPECT_EQ(ask("children_values", {{"id", parent}}),
            ok(json::object{{child.text(), conformance::text_to_json(result)}}));
  EXPECT_EQ(claimed().payload, "p");
}

// Three levels in three queues: a death climbs hop by hop, whoever carries it.
TEST_F(ExchangeFlowsTest, ADeathClimbsThroughBothSpeakers) {
  const QueueName middle{"q.middle"};
  const QueueName low{"q.low"};
  const std::vector<FlowJob> leaves = {{.payload = "leaf", .queue = low}};
  const std::vector<FlowJob> nodes = {{.payload = "node", .queue = middle, .children = leaves}};
  const FlowAdded added = flow().add({.payload = "root", .children = nodes}).get().value();
  ASSERT_EQ(added.ids.size(), 3u);
  EXPECT_EQ(peer().ask("claim", "q.low", {{"lease_ms", 60000}}), ok(json::array{text(added.ids[2]), "leaf", 1}));
  EXPECT_EQ(peer().ask("retry", "q.low", death(added.ids[2], "boom")), ok("dead"));
  EXPECT_EQ(Flow(client().queue(low)).deliver().get().value().delivered, 1);
  EXPECT_EQ(peer().ask("get_job_state", "q.middle", {{"id", text(added.ids[1])}}), ok("dead"));
  EXPECT_EQ(queue().state(added.ids[0]).get().value(), JobState::awaiting_children);
  EXPECT_EQ(peer().ask("deliver", "q.middle", {{"batch", 100}}), ok(1));
  EXPECT_EQ(queue().state(added.ids[0]).get().value(), JobState::dead);
  EXPECT_THAT(flow().failures(added.ids[0]).get().value(), ElementsAre(Pair(added.ids[1], "boom")));
}

// A call of one that was broken off is completed by the other with the same ids.
TEST_F(ExchangeFlowsTest, WhatOneAdmittedTheOtherFindsThere) {
  const JobId parent = client().mint_job().value();
  const JobId child = client().mint_job().value();
  const std::vector<FlowJob> children = {{.payload = "a", .id = child}};
  ASSERT_TRUE(flow().add({.payload = "parent", .id = parent, .children = children}).get());
  const json::array again{{{"id", text(child)}, {"payload", "other"}}};
  EXPECT_EQ(ask("flow_add", {{"parent", {{"id", text(parent)}, {"payload", "other"}}}, {"children", again}}),
            ok(json::array{text(parent), json::array{text(child)}}));
  EXPECT_EQ(ask("dependencies", {{"id", text(parent)}}), ok(1));
  EXPECT_EQ(claimed().payload, "a");
  EXPECT_FALSE(queue().claim().get().value());
}

}  // namespace
}  // namespace echomq::interop
