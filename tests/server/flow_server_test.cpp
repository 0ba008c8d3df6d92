// `Flow`: what is refused before the wire, what a repeated or broken-off admission leaves, and the bytes that a child
// writes for a parent in another queue.
#include "echomq/flow.hpp"

#include <atomic>
#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <memory>

#include "server/queue_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr JobId kParent{"JOB0NgWEfAE00P"};
constexpr JobId kNode{"JOB0NgWEfAE00N"};
constexpr QueueName kOther{"other"};

class FlowServer : public QueueServerTest {
 protected:
  [[nodiscard]] Flow flow() { return Flow(queue()); }
  [[nodiscard]] Flow flow_of(const QueueName& name) { return Flow(client().queue(name)); }
  [[nodiscard]] Queue other() { return client().queue(kOther); }
  [[nodiscard]] FlowJob job(JobId id, ChildDeath on_death = ChildDeath::fails_parent) {
    FlowJob out;
    out.payload = "payload";
    out.id = id;
    out.on_death = on_death;
    return out;
  }
  [[nodiscard]] FlowJob job_in(const QueueName& name, JobId id, ChildDeath on_death = ChildDeath::fails_parent) {
    FlowJob out = job(id, on_death);
    out.queue = name;
    return out;
  }
  [[nodiscard]] FlowJob parent_of(const std::vector<FlowJob>& children, JobId id = kParent) {
    FlowJob out = job(id);
    out.children = children;
    return out;
  }
  [[nodiscard]] FlowAdded added(const FlowJob& root) {
    auto result = flow().add(root).get();
    EXPECT_TRUE(result) << result.error().message();
    return result ? *std::move(result) : FlowAdded{};
  }
  [[nodiscard]] Error refused(const FlowJob& root) {
    const auto result = flow().add(root).get();
    EXPECT_FALSE(result);
    return result ? Error() : result.error();
  }
  [[nodiscard]] JobState state(JobId id) { return queue().state(id).get().value(); }
  [[nodiscard]] std::int64_t left(JobId parent = kParent) { return flow().dependencies(parent).get().value(); }
  [[nodiscard]] ChildTexts values(JobId parent = kParent) { return flow().children_values(parent).get().value(); }
  [[nodiscard]] std::int64_t keys() { return raw("DBSIZE").as_integer().value(); }
  [[nodiscard]] Delivered deliver(const QueueName& name) { return flow_of(name).deliver().get().value(); }
  /// Claims the next job of a queue; the tests know which that is.
  [[nodiscard]] ClaimedJob take(const Queue& from, ClaimOptions options = {}) {
    auto claimed = from.claim(options).get();
    EXPECT_TRUE(claimed && *claimed);
    return claimed && *claimed ? **std::move(claimed) : ClaimedJob();
  }
  void complete(const Queue& in, std::string_view result = "r") {
    const ClaimedJob claimed = take(in);
    EXPECT_TRUE(in.complete(claimed.id, claimed.token, {.result = result}).get());
  }
  void kill(const Queue& in, std::string_view error = "boom") {
    const ClaimedJob claimed = take(in);
    EXPECT_EQ(in.retry(claimed.id, claimed.token, {.max_attempts = 1, .error = error}).get().value(), Retried::dead);
  }
};

TEST_F(FlowServer, AWholeTreeIsCheckedBeforeAnythingIsSent) {
  const std::int64_t before = keys();
  const std::uint64_t commands = client().stats().commands;

  // Nine levels; the tenth is never looked at.
  std::vector<std::unique_ptr<FlowJob>> levels;
  levels.push_back(std::make_unique<FlowJob>());
  for (int level = 0; level < 8; ++level) {
    auto upper = std::make_unique<FlowJob>();
    upper->children = std::span<const FlowJob>(levels.back().get(), 1);
    levels.push_back(std::move(upper));
  }
  EXPECT_TRUE(refused(*levels.back()).is(Errc::flow_too_deep));

  const std::vector<FlowJob> twice = {job(kJobA), job(kJobA)};
  EXPECT_THAT(refused(parent_of(twice)).text, HasSubstr(std::string(kJobA.text())));
  EXPECT_TRUE(refused(parent_of(twice)).is(Errc::flow_cycle));
  const std::vector<FlowJob> itself = {job(kParent)};
  EXPECT_TRUE(refused(parent_of(itself)).is(Errc::flow_cycle));
  const std::vector<FlowJob> below = {parent_of(itself, kNode)};
  EXPECT_TRUE(refused(parent_of(below)).is(Errc::flow_cycle));

  const std::vector<FlowJob> one = {job(kJobA)};
  FlowJob elsewhere = parent_of(one);
  elsewhere.queue = kOther;
  EXPECT_TRUE(refused(elsewhere).is(Errc::invalid_argument));
  EXPECT_THAT(refused(elsewhere).text, HasSubstr("other"));
  EXPECT_TRUE(flow().add(parent_of(one), {.deadline = 0ms}).get().error().is(Errc::invalid_argument));
  EXPECT_TRUE(flow().deliver(0).get().error().is(Errc::invalid_argument));

  // A bulk is checked as a whole, and its trees share no id.
  EXPECT_TRUE(flow().add_bulk({}).get().error().is(Errc::empty_pipeline));
  const std::vector<FlowJob> second = {job(kJobB), job(kJobA)};
  const std::vector<FlowJob> roots = {parent_of(one), parent_of(second, kNode)};
  EXPECT_TRUE(flow().add_bulk(roots).get().error().is(Errc::flow_cycle));

  EXPECT_EQ(keys(), before);
  EXPECT_EQ(client().stats().commands - commands, 1U) << "only this test's own DBSIZE";
}

TEST_F(FlowServer, IdsAreMintedAndTold) {
  const std::vector<FlowJob> leaves(2);
  std::vector<FlowJob> nodes(2);
  nodes[0].children = leaves;
  nodes[1].queue = kOther;
  FlowJob root;
  root.children = nodes;
  const FlowAdded tree = added(root);
  ASSERT_EQ(tree.ids.size(), 5U);
  EXPECT_EQ(tree.parent, tree.ids.front());
  EXPECT_EQ(tree.verdict, Admitted::enqueued);
  EXPECT_EQ(left(tree.parent), 2);
  EXPECT_EQ(left(tree.ids[1]), 2);
  EXPECT_EQ(state(tree.ids[1]), JobState::awaiting_children);
  EXPECT_EQ(state(tree.ids[2]), JobState::pending);
  EXPECT_EQ(other().state(tree.ids[4]).get().value(), JobState::pending);
}

TEST_F(FlowServer, MoreChildrenThanOneScriptTakes) {
  const std::vector<FlowJob> children(2500);
  FlowJob root;
  root.children = children;
  const FlowAdded wide = added(root);
  EXPECT_EQ(left(wide.parent), 2500);
  EXPECT_EQ(queue().pending_size().get().value(), 2500);
  // All of it again: nothing is there twice, and nothing is lost.
  std::vector<FlowJob> same(2500);
  for (std::size_t i = 0; i < same.size(); ++i)
    same[i].id = wide.ids[i + 1];
  complete(queue());
  EXPECT_EQ(added(parent_of(same, wide.parent)).verdict, Admitted::duplicate);
  EXPECT_EQ(left(wide.parent), 2499);
  EXPECT_EQ(queue().pending_size().get().value(), 2499);
}

TEST_F(FlowServer, ADuplicateSaysSo) {
  const std::vector<FlowJob> one = {job(kJobA)};
  EXPECT_EQ(added(parent_of(one)).verdict, Admitted::enqueued);
  EXPECT_EQ(added(parent_of(one)).verdict, Admitted::duplicate);
  const std::vector<FlowJob> across = {job_in(kOther, kJobB)};
  EXPECT_EQ(added(parent_of(across, kNode)).verdict, Admitted::enqueued);
  EXPECT_EQ(added(parent_of(across, kNode)).verdict, Admitted::duplicate);
}

TEST_F(FlowServer, ATakenIdAcrossQueuesIsNamedAndStopsTheFlow) {
  EXPECT_TRUE(other().enqueue("mine", {.id = kJobB}).get());
  const std::vector<FlowJob> children = {job(kJobA), job_in(kOther, kJobB)};
  const Error why = refused(parent_of(children));
  EXPECT_TRUE(why.is(Errc::id_taken));
  EXPECT_THAT(why.text, HasSubstr(std::string(kJobB.text())));
  EXPECT_EQ(raw("HGET", "emq:{other}:job:JOB0NgWEfAE00B", "payload"), Value::text("mine"));
  EXPECT_TRUE(raw("HGET", "emq:{other}:job:JOB0NgWEfAE00B", "parent").is_null());
}

// A cross-queue admission that stops after any of its steps is completed by the same call.
TEST_F(FlowServer, WhateverStepABrokenAdmissionReachedTheSameCallCompletesIt) {
  const std::vector<FlowJob> leaves = {job(kJobB), job_in(QueueName{"q"}, kJobC)};
  FlowJob node = job_in(kOther, kNode, ChildDeath::is_ignored);
  node.children = leaves;
  const std::vector<FlowJob> children = {job(kJobA), node};
  const FlowJob root = parent_of(children);
  EXPECT_EQ(added(root).verdict, Admitted::enqueued);

  const std::string whole = digest();
  // What each step writes, from the last to the first: taking it away is a crash before it.
  const std::vector<std::vector<std::string>> steps = {
      {"ZREM", "emq:{q}:pending", "JOB0NgWEfAE00C"},
      {"DEL", "emq:{q}:job:JOB0NgWEfAE00C"},
      {"ZREM", "emq:{other}:pending", "JOB0NgWEfAE00B"},
      {"DEL", "emq:{other}:job:JOB0NgWEfAE00B"},
      {"DEL", "emq:{other}:job:JOB0NgWEfAE00N", "emq:{other}:job:JOB0NgWEfAE00N:dependencies"},
      {"ZREM", "emq:{q}:pending", "JOB0NgWEfAE00A"},
      {"DEL", "emq:{q}:job:JOB0NgWEfAE00A"},
      {"DEL", "emq:{q}:job:JOB0NgWEfAE00P", "emq:{q}:job:JOB0NgWEfAE00P:dependencies"}};
  for (std::size_t taken = 1; taken <= steps.size(); ++taken) {
    for (std::size_t i = 0; i < taken; ++i) {
      const std::vector<std::string_view> parts(steps[i].begin(), steps[i].end());
      EXPECT_TRUE(client().command(CommandParts(parts)).get());
    }
    if (steps[taken - 1].front() == "ZREM")
      continue;  // a script writes its row and its place at once
    EXPECT_NE(digest(), whole);
    EXPECT_TRUE(flow().add(root).get());
    EXPECT_EQ(digest(), whole) << "after a crash before step " << steps.size() - taken;
  }
}

TEST_F(FlowServer, BulkFlowsStandAndFallEachByItself) {
  const std::vector<FlowJob> good = {job(kJobA)};
  const std::vector<FlowJob> bad = {job(JobId{"ORD0NgWEfAE00X"})};
  const std::vector<FlowJob> roots = {parent_of(good), parent_of(bad, kNode)};
  const auto results = flow().add_bulk(roots).get().value();
  ASSERT_EQ(results.size(), 2U);
  EXPECT_TRUE(results[0]);
  EXPECT_TRUE(results[1].error().is(Errc::wrong_kind));
  EXPECT_EQ(state(kNode), JobState::absent) << "a flow in one queue is written as a whole or not at all";
}

TEST_F(FlowServer, ManyFlowsAtOnceAllLand) {
  std::vector<FlowJob> children(3);
  children[1].queue = kOther;
  FlowJob root;
  root.children = children;
  const std::vector<FlowJob> roots(2000, root);
  const auto results = flow().add_bulk(roots).get().value();
  for (const auto& result : results)
    ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(queue().pending_size().get().value(), 4000);
  EXPECT_EQ(other().pending_size().get().value(), 2000);
}

// The bytes that the scripts write are those of `protocol/vectors/outbox.json`.
TEST_F(FlowServer, TheOutboxHoldsTheBytesOfTheVectors) {
  namespace json = boost::json;
  std::ifstream file(ECHOMQ_PROTOCOL_DIR "/vectors/outbox.json");
  const std::string document{std::istreambuf_iterator<char>(file), {}};
  const auto bytes_of = [](const json::value& value) {
    if (!value.is_object())
      return std::string(value.as_string());
    std::string bytes;
    const std::string hex(value.at("hex").as_string());
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
      bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    return bytes;
  };
  const auto word = [](const json::value& value) { return std::string(value.as_string()); };
  std::size_t written = 0;
  const json::value vectors = json::parse(document);
  for (const json::value& vector : vectors.at("records").as_array()) {
    raw("FLUSHALL");
    const QueueName upper = QueueName::parse(word(vector.at("parent_queue"))).value();
    const JobId child = JobId::parse(word(vector.at("child"))).value();
    const JobId parent = JobId::parse(word(vector.at("parent"))).value();
    const bool failed = vector.at("kind") == "fail";
    const bool ignored = failed && vector.at("policy") == "id";
    const std::string error = failed ? bytes_of(vector.at("error")) : std::string();
    const bool node = error == "deep";
    std::vector<FlowJob> leaves = {job(kJobB)};
    std::vector<FlowJob> children = {
        job_in(QueueName{"q"}, child, ignored ? ChildDeath::is_ignored : ChildDeath::fails_parent)};
    if (node)
      children.front().children = leaves;
    ASSERT_TRUE(flow_of(upper).add(parent_of(children, parent)).get());
    if (error == "removed") {
      ASSERT_TRUE(queue().remove(child).get());
    } else if (error == "stalled") {
      (void)take(queue(), {.lease = 1ms});
      std::this_thread::sleep_for(10ms);
      EXPECT_EQ(queue().sweep_stalled({.max_stalled = 1}).get().value().dead.size(), 1U);
    } else if (failed) {
      kill(queue(), error);
    } else {
      const ClaimedJob claimed = take(queue());
      const std::string result = bytes_of(vector.at("result"));
      CompleteOptions options;
      if (result != child.text())
        options.result = result;
      ASSERT_TRUE(queue().complete(claimed.id, claimed.token, options).get());
    }
    const Value entries = raw("LRANGE", "emq:{q}:flow:outbox", "0", "-1");
    ASSERT_EQ(entries.size(), 1U) << json::serialize(vector);
    EXPECT_EQ(text(entries[0]), bytes_of(vector)) << json::serialize(vector);
    ++written;
  }
  EXPECT_GE(written, 12U);
}

TEST_F(FlowServer, TwoWhoDeliverAtOnceLoseNothing) {
  std::vector<FlowJob> children(500);
  for (FlowJob& child : children)
    child.queue = kOther;
  FlowJob root;
  root.children = children;
  const JobId parent = added(root).parent;
  auto second = Client::open(server().url()).value();
  std::atomic<int> completed{0};
  const auto work = [&](const Client& by) {
    const Queue from = by.queue(kOther);
    const Flow outbox(from);
    while (completed < 500) {
      if (const auto claimed = from.claim().get().value()) {
        EXPECT_TRUE(from.complete(claimed->id, claimed->token).get());
        ++completed;
      }
      EXPECT_TRUE(outbox.deliver(7).get());
    }
    while (outbox.deliver(7).get().value().read > 0) {
    }
  };
  std::thread one([&] { work(client()); });
  std::thread two([&] { work(second); });
  one.join();
  two.join();
  EXPECT_EQ(left(parent), 0);
  EXPECT_EQ(state(parent), JobState::pending);
  EXPECT_EQ(values(parent).size(), 500U);
  EXPECT_EQ(raw("EXISTS", "emq:{other}:flow:outbox").as_integer(), 0);
}

TEST_F(FlowServer, APassTellsWhatItLeftBehind) {
  const std::vector<FlowJob> children = {job_in(kOther, kJobA), job_in(kOther, kJobB)};
  EXPECT_EQ(added(parent_of(children)).verdict, Admitted::enqueued);
  complete(other());
  raw("RPUSH", "emq:{other}:flow:outbox", "garbage");
  raw("SET", "emq:{q}:job:JOB0NgWEfAE00P:processed", "no hash");
  Delivered pass = deliver(kOther);
  EXPECT_EQ(pass.delivered, 0);
  EXPECT_EQ(pass.failed, 1);
  EXPECT_EQ(pass.malformed, 1);
  EXPECT_EQ(pass.read, 2);
  ASSERT_TRUE(pass.error);
  EXPECT_TRUE(pass.error->is(Errc::server_error)) << pass.error->message();

  raw("DEL", "emq:{q}:job:JOB0NgWEfAE00P:processed");
  pass = deliver(kOther);
  EXPECT_EQ(pass.delivered, 1);
  EXPECT_EQ(pass.failed, 0);
  EXPECT_FALSE(pass.error);
  EXPECT_THAT(values(), ElementsAre(Pair(kJobA, "r")));
  EXPECT_EQ(raw("LLEN", "emq:{other}:flow:outbox").as_integer(), 1);
}

// CASES 47: a parent waits for ever when its child fails, is removed or stalls. Every end of a child, under both
// policies, in the parent's queue and in another one: the parent reaches its end, and the counts are exact.
enum class End : std::uint8_t { success, failure, removal, stall, late_success };

class ParentReachesItsEnd : public FlowServer, public ::testing::WithParamInterface<std::tuple<End, ChildDeath, bool>> {
 protected:
  void end_child(const Queue& in, JobId child, End end) {
    if (end == End::success)
      return complete(in, "value");
    if (end == End::failure)
      return kill(in, "error");
    if (end == End::removal) {
      EXPECT_TRUE(in.remove(child).get());
      return;
    }
    const ClaimedJob claimed = take(in, {.lease = 1ms});
    std::this_thread::sleep_for(10ms);
    const Swept swept = in.sweep_stalled({.max_stalled = end == End::stall ? 1U : 3U}).get().value();
    EXPECT_EQ(swept.dead.size(), end == End::stall ? 1U : 0U);
    if (end == End::late_success) {
      EXPECT_TRUE(in.complete(claimed.id, claimed.token, {.result = "value"}).get());
    }
  }
};

TEST_P(ParentReachesItsEnd, WithExactCounts) {
  const auto& [end, on_death, across] = GetParam();
  const Queue childs = across ? other() : queue();
  const std::vector<FlowJob> children = {job_in(childs.name(), kJobA, on_death), job_in(kOther, kJobB)};
  EXPECT_EQ(added(parent_of(children)).verdict, Admitted::enqueued);
  end_child(childs, kJobA, end);
  (void)deliver(kOther);

  const bool good = end == End::success || end == End::late_success;
  if (!good && on_death == ChildDeath::fails_parent) {
    EXPECT_EQ(state(kParent), JobState::dead);
    EXPECT_THAT(places(kParent), ElementsAre("dead"));
    EXPECT_EQ(left(), 2) << "a death under fp is not counted";
    EXPECT_THAT(flow().failures(kParent).get().value(), ElementsAre(Pair(kJobA, ::testing::Not(""))));
    return;
  }
  EXPECT_EQ(left(), 1);
  EXPECT_EQ(state(kParent), JobState::awaiting_children);
  complete(other(), "b");
  (void)deliver(kOther);
  EXPECT_EQ(left(), 0);
  EXPECT_THAT(places(kParent), ElementsAre("pending"));
  if (good) {
    EXPECT_THAT(values(), UnorderedElementsAre(Pair(kJobA, "value"), Pair(kJobB, "b")));
  } else {
    const std::string error = end == End::failure ? "error" : end == End::removal ? "removed" : "stalled";
    EXPECT_THAT(flow().ignored_failures(kParent).get().value(), ElementsAre(Pair(kJobA, error)));
    EXPECT_THAT(values(), ElementsAre(Pair(kJobB, "b")));
  }
  EXPECT_EQ(take(queue()).id, kParent);
}

INSTANTIATE_TEST_SUITE_P(
    Cases47, ParentReachesItsEnd,
    ::testing::Combine(::testing::Values(End::success, End::failure, End::removal, End::stall, End::late_success),
                       ::testing::Values(ChildDeath::fails_parent, ChildDeath::is_ignored), ::testing::Bool()));

// CASES 40: at maxmemory admission is refused with a typed error and as a whole, and everything that leads to freed
// memory still works, deliveries to parents among it.
class FlowAtMaxmemory : public FlowServer {
 protected:
  [[nodiscard]] bool full() {
    const auto refused = queue().enqueue(std::string(200'000, 'x')).get();
    return !refused && refused.error().is(Errc::out_of_memory);
  }
};

TEST_F(FlowAtMaxmemory, SettlesAndDeliveriesGoOnWhileAdmissionIsRefused) {
  std::vector<FlowJob> children = {job_in(kOther, kJobA), job_in(kOther, kJobB, ChildDeath::is_ignored), job(kJobC)};
  EXPECT_EQ(added(parent_of(children)).verdict, Admitted::enqueued);
  EXPECT_TRUE(client().queue(QueueName{"rest"}).enqueue("p", {.id = kNode}).get());
  const ClaimedJob claimed_a = take(other());
  const ClaimedJob claimed_b = take(other());
  const ClaimedJob claimed_c = take(queue());

  raw("CONFIG", "SET", "maxmemory-policy", "noeviction");
  raw("CONFIG", "SET", "maxmemory", "1");
  ASSERT_TRUE(full());
  const std::string before = digest();
  const std::vector<FlowJob> fresh(3);
  FlowJob root;
  root.children = fresh;
  EXPECT_TRUE(flow().add(root).get().error().is(Errc::out_of_memory));
  std::vector<FlowJob> spread(2);
  spread[1].queue = kOther;
  root.children = spread;
  EXPECT_TRUE(flow().add(root).get().error().is(Errc::out_of_memory));
  EXPECT_EQ(digest(), before) << "nothing is half written";

  // Claim, renew, fail, complete, remove, clean.
  EXPECT_TRUE(other().extend(claimed_a.id, claimed_a.token, 1min).get());
  EXPECT_TRUE(other().complete(claimed_a.id, claimed_a.token, {.result = "a"}).get());
  EXPECT_EQ(other().retry(claimed_b.id, claimed_b.token, {.max_attempts = 1, .error = "e"}).get().value(),
            Retried::dead);
  EXPECT_EQ(deliver(kOther).delivered, 2);
  EXPECT_TRUE(queue().complete(claimed_c.id, claimed_c.token, {.result = "c"}).get());
  EXPECT_EQ(state(kParent), JobState::pending);
  const ClaimedJob parent = take(queue());
  EXPECT_EQ(parent.id, kParent);
  EXPECT_TRUE(queue().complete(parent.id, parent.token).get());
  EXPECT_TRUE(other().remove(kJobB).get());
  const Queue rest = client().queue(QueueName{"rest"});
  (void)take(rest, {.lease = 1ms});
  std::this_thread::sleep_for(10ms);
  EXPECT_EQ(rest.sweep_stalled({.max_stalled = 1}).get().value().dead.size(), 1U);
  EXPECT_TRUE(rest.reprocess(kNode).get());
  EXPECT_TRUE(rest.remove(kNode).get());

  raw("CONFIG", "SET", "maxmemory", "0");
  EXPECT_TRUE(flow().add(root).get());
}

}  // namespace
}  // namespace echomq::test
