// Who is told of what: deaths that no settle tells, progress, a round of a batch; what a coroutine may ask of its job, delays that are
// no failures, and handlers that can only be moved.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "echomq/batch.hpp"
#include "echomq/events.hpp"
#include "echomq/flow.hpp"
#include "echomq/metrics.hpp"
#include "echomq/observer.hpp"
#include "echomq/typed.hpp"
#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

/// A beat that cannot be why a test passes.
constexpr WaitOptions kNoBeat{.timeout = 60s, .beat = 1h};

class WorkerTold : public WorkerTest {
 protected:
  void SetUp() override {
    WorkerTest::SetUp();
    EventListenerOptions options;
    options.on_event = [this](const JobEvent& event) {
      std::string line(event.name);
      for (const auto& [name, value] : event.extra)
        line += " " + std::string(name) + "=" + std::string(value);
      const std::lock_guard lock(mutex_);
      lines_.push_back(std::move(line));
    };
    auto opened = EventListener::open(*client_, queue_->name(), std::move(options));
    ASSERT_TRUE(opened) << opened.error().message();
    listener_.emplace(*std::move(opened));
  }
  void TearDown() override { listener_.reset(); }

  [[nodiscard]] std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  /// All that was published until now, in order; a word of the test's own is the mark.
  [[nodiscard]] std::vector<std::string> heard() {
    const JobId id = client_->mint_job().value();
    EXPECT_TRUE(queue_->publish("mark", id).get());
    EXPECT_TRUE(eventually([&] {
      const auto all = lines();
      return !all.empty() && all.back() == "mark";
    }));
    const std::lock_guard lock(mutex_);
    std::vector<std::string> out;
    out.swap(lines_);
    std::erase(out, "mark");
    return out;
  }
  [[nodiscard]] bool until_waited_for() {
    return eventually([&] {
      const Value counted = client_->command("PUBSUB", "NUMSUB", "emq:{work}:ended").get().value();
      return counted.size() == 2 && counted[1].as_integer().value_or(0) > 0;
    });
  }
  [[nodiscard]] JobId parent_of(const Queue& children_in, std::string_view child, Milliseconds keep = 0ms) {
    std::vector<FlowJob> children(1);
    children.front().payload = child;
    children.front().queue = children_in.name();
    FlowJob root;
    root.payload = "parent";
    root.children = children;
    if (keep > 0ms)
      root.run.keep = keep;
    return Flow(*queue_).add(root).get().value().parent;
  }

  std::mutex mutex_;
  std::vector<std::string> lines_;  // guarded by mutex_
  std::optional<EventListener> listener_;
};

[[nodiscard]] WorkerOptions silent(std::uint32_t concurrency = 1) {
  WorkerOptions options = quick_options(concurrency);
  options.events = WorkerEvents::nothing;
  options.outbox_period = 50ms;
  return options;
}

// A parent that a child takes with it is settled by nobody: who waited for it was told at the beat, seconds later.
TEST_F(WorkerTold, AFlowParentThatDiesOfItsChildWakesWhoWaitsForIt) {
  const Queue below = client_->queue("below");
  for (const Queue& children_in : {*queue_, below}) {
    const JobId plain = parent_of(children_in, "fails");
    const JobId kept = parent_of(children_in, "fails", 60s);
    auto of_plain = queue_->wait(plain, kNoBeat);
    auto of_kept = queue_->wait(kept, kNoBeat);
    ASSERT_TRUE(until_waited_for());
    std::this_thread::sleep_for(50ms);
    EXPECT_FALSE(of_plain.ready());
    const Worker worker = start_on(children_in, [](Job&) { return Dead("no luck"); }, silent());
    const auto ended = of_plain.get_for(30s);
    ASSERT_TRUE(ended) << "only the beat would have told";
    EXPECT_EQ(ended->value().how, EndedAs::dead);
    const auto ended_kept = of_kept.get_for(30s);
    ASSERT_TRUE(ended_kept);
    EXPECT_EQ(ended_kept->value().how, EndedAs::dead);
    EXPECT_EQ(ended_kept->value().text, "no luck");
    EXPECT_EQ(queue_->result(plain).get().value(), std::nullopt);
    const auto result = queue_->result(kept).get().value();
    ASSERT_TRUE(result);
    EXPECT_EQ(result->how, EndedAs::dead);
    EXPECT_EQ(result->text, "no luck");
  }
}

// No event said that a parent had died of its child.
TEST_F(WorkerTold, AFlowParentThatDiesOfItsChildIsToldAsAnyDeath) {
  const auto fails = [](Job&) { return Dead("no luck"); };
  WorkerOptions options = silent();
  options.events = WorkerEvents::settled;
  {
    // Child, parent and grandparent in one queue: the grandparent hears by the outbox.
    FlowJob root, middle;
    std::vector<FlowJob> leaves(1), below_root(1);
    leaves.front().payload = "leaf";
    middle.payload = "middle";
    middle.children = leaves;
    below_root.front() = middle;
    root.payload = "root";
    root.children = below_root;
    const JobId top = Flow(*queue_).add(root).get().value().parent;
    const Worker worker = start(fails, options);
    ASSERT_TRUE(eventually([&] { return state(top) == JobState::dead; }));
    EXPECT_TRUE(eventually([&] { return lines().size() >= 6; }));
    EXPECT_THAT(heard(), ElementsAre("failed error=no luck", "dead", "failed error=no luck", "dead",
                                     "failed error=no luck", "dead"));
  }
  {
    // The child in another queue: its workers bring the record, and the parent's queue is told.
    const JobId parent = parent_of(client_->queue("below"), "leaf");
    const Worker worker = start_on(client_->queue("below"), fails, options);
    ASSERT_TRUE(eventually([&] { return state(parent) == JobState::dead; }));
    EXPECT_TRUE(eventually([&] { return lines().size() >= 2; }));
    EXPECT_THAT(heard(), ElementsAre("failed error=no luck", "dead"));
  }
  {
    // Two children that one call ends: one parent, one death.
    std::vector<FlowJob> children(2);
    children[0].payload = children[1].payload = "leaf";
    FlowJob root;
    root.payload = "parent";
    root.children = children;
    (void)Flow(*queue_).add(root).get().value();
    Worker worker = start(fails, options);
    ASSERT_TRUE(eventually([&] { return counts().pending == 0 && counts().active == 0; }));
    worker.stop();
    const std::vector<std::string> all = heard();
    EXPECT_EQ(std::ranges::count(all, "dead"), 3);
    EXPECT_THAT(all, SizeIs(6));
  }
  {
    // One that lives on, and a worker that tells nothing.
    std::vector<FlowJob> children(1);
    children.front().payload = "leaf";
    children.front().on_death = ChildDeath::is_ignored;
    FlowJob root;
    root.payload = "parent";
    root.children = children;
    const JobId parent = Flow(*queue_).add(root).get().value().parent;
    const JobId quiet = parent_of(client_->queue("below"), "leaf");
    const Worker below = start_on(client_->queue("below"), fails, silent());
    const Worker worker = start([](Job& job) { return job.payload() == "leaf" ? Dead("no luck") : Done(); }, options);
    ASSERT_TRUE(eventually([&] { return state(parent) == JobState::absent && state(quiet) == JobState::dead; }));
    EXPECT_TRUE(eventually([&] { return lines().size() >= 3; }));
    EXPECT_THAT(heard(), ElementsAre("failed error=no luck", "dead", "completed"));
  }
}

// Nor of one that died of a child that nobody ran to its end.
TEST_F(WorkerTold, AFlowParentIsToldOfWhateverItsChildDiedOf) {
  const auto family = [&](std::size_t count, RunOptions run = {}) {
    std::vector<FlowJob> children(count);
    for (FlowJob& child : children) {
      child.payload = "leaf";
      child.run = run;
    }
    FlowJob root;
    root.payload = "parent";
    root.children = children;
    return Flow(*queue_).add(root).get().value();
  };
  WorkerOptions options = silent();
  options.events = WorkerEvents::settled;
  options.max_stalled = 1;
  {
    const FlowAdded flow = family(1);
    EXPECT_EQ(queue_->cancel(flow.ids[1]).get(), CancelVerdict::cancelled);
    EXPECT_THAT(heard(), ElementsAre("cancelled", "failed error=cancelled", "dead"));
  }
  {
    const FlowAdded flow = family(1, {.expire = 1ms});
    std::this_thread::sleep_for(5ms);
    const Worker worker = start([](Job&) { return Done(); }, options);
    ASSERT_TRUE(eventually([&] { return state(flow.parent) == JobState::dead; }));
    EXPECT_TRUE(eventually([&] { return lines().size() >= 4; }));
    EXPECT_THAT(heard(), ElementsAre("failed error=expired", "dead", "failed error=expired", "dead"));
  }
  {
    const FlowAdded flow = family(2);
    ASSERT_THAT(queue_->claim_batch({.size = 2, .lease = 1ms}).get().value(), SizeIs(2));
    std::this_thread::sleep_for(5ms);
    const Worker worker = start([](Job&) { return Done(); }, options);
    ASSERT_TRUE(eventually([&] { return state(flow.parent) == JobState::dead; }));
    EXPECT_TRUE(eventually([&] { return lines().size() >= 6; }));
    const std::vector<std::string> all = heard();
    EXPECT_EQ(std::ranges::count(all, "failed error=stalled"), 3) << "two children and one parent";
    EXPECT_EQ(std::ranges::count(all, "dead"), 3);
    EXPECT_THAT(all, SizeIs(6));
  }
  {
    // A parent that a child had killed before, and that lives again.
    const FlowAdded flow = family(2);
    const auto held = queue_->claim_batch({.size = 2, .lease = 1h}).get().value();
    ASSERT_THAT(held, SizeIs(2));
    ASSERT_EQ(queue_->retry(held[0].id, held[0].token, {.max_attempts = 1, .error = "e"}).get(), Retried::dead);
    ASSERT_EQ(state(flow.parent), JobState::dead);
    ASSERT_TRUE(queue_->reprocess(flow.parent).get());
    const std::string key = "emq:{work}:active";
    ASSERT_EQ(integer("ZADD", key, "XX", "CH", "1", held[1].id.text()), 1);
    ASSERT_TRUE(queue_->pause().get());  // so that the parent does not run
    const Worker worker = start([](Job&) { return Done(); }, options);
    ASSERT_TRUE(eventually([&] { return state(flow.parent) == JobState::dead; }));
    EXPECT_TRUE(eventually([&] { return lines().size() >= 4; }));
    EXPECT_THAT(heard(), ElementsAre("failed error=stalled", "dead", "failed error=stalled", "dead"));
  }
}

// The mark of a request to cancel stayed with the dead row. A runtime that reprocesses the job without knowing of it left it
// there, and the next claim ended the job once more.
TEST_F(WorkerTold, AJobThatAPeerReprocessesIsNotCancelledAgain) {
  const auto reprocessed_by_a_peer = [&](const JobId& id) {
    const std::string row = "emq:{work}:job:" + std::string(id.text());
    EXPECT_EQ(integer("ZREM", "emq:{work}:dead", id.text()), 1);
    EXPECT_EQ(integer("HDEL", row, "last_error"), 1);
    (void)integer("HSET", row, "state", "pending");
    EXPECT_EQ(integer("ZADD", "emq:{work}:pending", "0", id.text()), 1);
  };
  WorkerOptions options = silent();
  options.max_stalled = 1;
  std::atomic<int> runs{0};
  const auto until_cancelled = [&](Job& job) -> Outcome {
    ++runs;
    for (int i = 0; i < 10'000 && !job.stop_token().stop_requested(); ++i)
      std::this_thread::sleep_for(1ms);
    return Retry("stopped");
  };
  std::vector<JobId> dead;
  for (const bool in_flow : {false, true}) {
    // Cancelled while it ran; a flow's child is settled by another way of the script.
    const JobId id = in_flow ? JobId(client_->mint_job().value()) : enqueue("runs");
    if (in_flow) {
      std::vector<FlowJob> children(1);
      children.front().payload = "runs";
      children.front().id = id;
      FlowJob root;
      root.payload = "parent";
      root.children = children;
      ASSERT_TRUE(Flow(*queue_).add(root).get());
    }
    const int before = runs;
    const Worker worker = start(until_cancelled, options);
    ASSERT_TRUE(eventually([&] { return runs == before + 1; }));
    ASSERT_EQ(queue_->cancel(id).get(), CancelVerdict::requested);
    ASSERT_TRUE(eventually([&] { return state(id) == JobState::dead; }));
    EXPECT_EQ(field(id, "last_error"), "cancelled");
    dead.push_back(id);
  }
  {
    // Cancelled while a process had it that died, and never came back.
    const JobId id = enqueue("lost");
    ASSERT_TRUE(queue_->claim({.lease = 1ms}).get().value());
    ASSERT_EQ(queue_->cancel(id).get(), CancelVerdict::requested);
    std::this_thread::sleep_for(5ms);
    const Worker worker = start([](Job&) { return Done(); }, options);
    ASSERT_TRUE(eventually([&] { return state(id) == JobState::dead; }));
    EXPECT_EQ(field(id, "last_error"), "stalled");
    ASSERT_TRUE(eventually([&] { return field(id, "cancel").empty(); }));
    dead.push_back(id);
  }
  {
    // Cancelled, handed back, and then too old.
    const JobId id = enqueue("old", {.run = {.expire = 300ms}});
    const auto held = queue_->claim().get().value();
    ASSERT_TRUE(held);
    ASSERT_EQ(queue_->cancel(id).get(), CancelVerdict::requested);
    ASSERT_TRUE(queue_->hand_back(id, held->token).get());
    std::this_thread::sleep_for(350ms);
    const Worker worker = start([](Job&) { return Done(); }, options);
    ASSERT_TRUE(eventually([&] { return state(id) == JobState::dead; }));
    EXPECT_EQ(field(id, "last_error"), "expired");
    (void)integer("HDEL", "emq:{work}:job:" + std::string(id.text()), "expires_at");
    dead.push_back(id);
  }
  for (const bool by_batch : {false, true}) {
    // Cancelled while it ran by hand, or in a round of a batch, and dead of something else: the script `retry` does not know the mark.
    for (const bool at_once : {false, true}) {
      if (at_once && !by_batch)
        continue;
      const JobId id = enqueue("by hand");
      const auto handler = [&](std::span<const ClaimedJob>) {
        EXPECT_EQ(queue_->cancel(id).get(), CancelVerdict::requested);
        return std::vector<std::optional<Outcome>>{at_once ? Dead("e") : Retry("e")};
      };
      if (by_batch) {
        ASSERT_THAT(run_batch(*queue_, handler, {.max_attempts = 1}).value().dead, ElementsAre(id));
      } else {
        const auto held = queue_->claim().get().value();
        ASSERT_TRUE(held);
        (void)handler({});
        ASSERT_EQ(queue_->retry(id, held->token, {.max_attempts = 1, .error = "e"}).get(), Retried::dead);
      }
      EXPECT_EQ(field(id, "cancel"), "") << by_batch << at_once;  // behind it on the same connection
      dead.push_back(id);
    }
  }
  {
    // A parent that ran, was asked to end, and died of a child first.
    FlowJob root;
    std::vector<FlowJob> children(1);
    children.front().payload = "child";
    root.payload = "parent";
    root.children = children;
    const FlowAdded flow = Flow(*queue_).add(root).get().value();
    const auto child = queue_->claim().get().value();
    ASSERT_TRUE(child);
    ASSERT_EQ(queue_->retry(child->id, child->token, {.max_attempts = 1, .error = "e"}).get(), Retried::dead);
    ASSERT_TRUE(queue_->reprocess(flow.parent).get());
    ASSERT_TRUE(queue_->claim({.lease = 1h}).get().value());
    ASSERT_EQ(queue_->cancel(flow.parent).get(), CancelVerdict::requested);
    ASSERT_TRUE(queue_->reprocess(child->id).get());
    const Worker worker = start([](Job&) { return Dead("e"); }, options);
    ASSERT_TRUE(eventually([&] { return state(flow.parent) == JobState::dead; }));
    EXPECT_EQ(field(flow.parent, "cancel"), "");
  }
  for (const JobId& id : dead)
    reprocessed_by_a_peer(id);
  const Worker worker = start([](Job&) { return Done(); }, options);
  for (const JobId& id : dead)
    EXPECT_TRUE(eventually([&] { return state(id) == JobState::absent; })) << field(id, "last_error");
  EXPECT_TRUE(eventually([&] { return worker.stats().completed == dead.size(); }));
  EXPECT_EQ(worker.stats().cancelled, 0U);
}

/// Writes down what was told of expired jobs.
class Expiries final : public WorkerObserver {
 public:
  void expired(const QueueName& queue, std::span<const JobId> dead) override {
    const std::lock_guard lock(mutex);
    EXPECT_EQ(queue.text(), "work");
    ids.insert(ids.end(), dead.begin(), dead.end());
  }
  std::mutex mutex;
  std::vector<JobId> ids;
};

// A job that a claim found too old was dead, and neither an event nor an observer said so.
TEST_F(WorkerTold, WhatDiesOfAgeIsToldAsAnyDeath) {
  const JobId old = enqueue("old", {.run = {.expire = 1ms, .keep = 60s}});
  const JobId older = enqueue("older", {.run = {.expire = 1ms}});
  std::this_thread::sleep_for(5ms);
  auto waiting = queue_->wait(old, kNoBeat);
  WorkerOptions options = quick_options();
  const auto told = std::make_shared<Expiries>();
  options.observer = told;
  Worker worker = start([](Job&) { return Done(); }, options);
  ASSERT_TRUE(eventually([&] { return lines().size() >= 4; }));
  const auto ended = waiting.get().value();
  EXPECT_EQ(ended.how, EndedAs::dead);
  EXPECT_EQ(ended.text, "expired");
  EXPECT_EQ(queue_->result(old).get().value().value_or(Ended{}).text, "expired");
  worker.stop();
  EXPECT_THAT(heard(), UnorderedElementsAre("failed error=expired", "dead", "failed error=expired", "dead"));
  EXPECT_EQ(worker.stats().expired, 2U);
  const std::lock_guard lock(told->mutex);
  EXPECT_THAT(told->ids, UnorderedElementsAre(old, older));
}

// The end of a job that lost its last lease was kept for nobody, whatever it had asked for.
TEST_F(WorkerTold, WhatDiesOfLostLeasesIsKeptAndTold) {
  const JobId id = enqueue("x", {.run = {.keep = 60s}});
  auto waiting = queue_->wait(id, kNoBeat);
  ASSERT_TRUE(until_waited_for());
  ASSERT_TRUE(queue_->claim({.lease = 1ms}).get().value());
  std::this_thread::sleep_for(5ms);
  EXPECT_THAT(queue_->sweep_stalled({.max_stalled = 1}).get().value().dead, ElementsAre(id));
  const auto ended = waiting.get_for(30s);
  ASSERT_TRUE(ended) << "only the beat would have told";
  EXPECT_EQ(ended->value().how, EndedAs::dead);
  EXPECT_EQ(ended->value().text, "stalled");
  const auto result = queue_->result(id).get().value();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->text, "stalled");
}

TEST_F(WorkerTold, WhatIsCancelledWhileItWaitsIsKept) {
  const JobId id = enqueue("x", {.run = {.keep = 60s}});
  ASSERT_TRUE(queue_->cancel(id).get());
  ASSERT_TRUE(queue_->remove(id).get());
  const auto ended = queue_->wait(id, kNoBeat).get().value();
  EXPECT_EQ(ended.how, EndedAs::dead) << "it was gone, and nothing kept";
  EXPECT_EQ(ended.text, "cancelled");
}

// Progress was published by the script, whatever the worker publishes, uncut, and no JSON when the text was no UTF-8.
TEST_F(WorkerTold, ProgressIsPublishedAsTheOtherEventsOfTheWorker) {
  const auto run = [&](const std::function<void(WorkerOptions&)>& set, const std::string& text) {
    WorkerOptions options = quick_options();
    set(options);
    const JobId id = enqueue("x", {.run = {.keep = 60s}});
    std::atomic<bool> stored{false};
    Worker worker = start(
        [&](Job& job) {
          stored = job.progress(text) && field(job.id(), "progress") == text;
          return Done();
        },
        options);
    EXPECT_EQ(queue_->wait(id, kNoBeat).get().value().how, EndedAs::completed);
    worker.stop();
    EXPECT_TRUE(stored);
    return heard();
  };
  EXPECT_THAT(run([](WorkerOptions& options) { options.events = WorkerEvents::nothing; }, "half"), IsEmpty());
  EXPECT_THAT(run(
                  [](WorkerOptions& options) {
                    options.events = WorkerEvents::sampled;
                    options.event_rate = 0;
                  },
                  "half"),
              IsEmpty());
  EXPECT_THAT(run([](WorkerOptions&) {}, "half"), ElementsAre("progress progress=half", "completed"));
  const std::string bytes = "\xff" + std::string(2000, 'x');
  EXPECT_THAT(run([](WorkerOptions&) {}, bytes),
              ElementsAre("progress progress=\xef\xbf\xbd" + std::string(1023, 'x'), "completed"));
  EXPECT_EQ(listener_->stats().malformed, 0U);
}

// A job that was put off twice and then failed was at its third attempt, against what the header says.
TEST_F(WorkerTold, DelaysAreNotHeldAgainstTheMaximum) {
  WorkerOptions options = quick_options();
  options.max_attempts = 2;
  std::atomic<int> runs{0};
  std::atomic<std::uint64_t> failures_then{9}, failures_last{9};
  const JobId id = enqueue("x", {.run = {.keep = 60s}});
  Worker worker = start(
      [&](Job& job) {
        // Five delays, then one failure: the second failure would be death.
        const int run = ++runs;
        if (run <= 5)
          return Delay(1ms);
        (run == 6 ? failures_then : failures_last) = job.failures();
        return run == 6 ? Retry("first failure", 0ms) : Done();
      },
      options);
  EXPECT_EQ(queue_->wait(id, kNoBeat).get().value().how, EndedAs::completed);
  EXPECT_EQ(runs, 7);
  EXPECT_EQ(failures_then, 0U);
  EXPECT_EQ(failures_last, 1U);
  worker.stop();

  // The verb `retry` knows of it too, and so does a round of a batch.
  const JobId other = enqueue("y");
  const auto put_off = [](std::span<const ClaimedJob>) { return std::vector<std::optional<Outcome>>{Delay(0ms)}; };
  EXPECT_THAT(run_batch(*queue_, put_off).value().delayed, ElementsAre(other));
  EXPECT_EQ(field(other, "delays"), "1");
  ASSERT_EQ(queue_->promote().get().value(), 1);
  const auto again = queue_->claim().get().value();
  ASSERT_TRUE(again);
  EXPECT_EQ(again->token.value(), 2U);
  EXPECT_EQ(queue_->retry(other, again->token, {.max_attempts = 2, .error = "e"}).get().value(), Retried::scheduled);
}

// A round of a batch told `failed` without its error, never `retry` or `dead`, and did not know a sample.
TEST_F(WorkerTold, ARoundOfABatchIsToldAsByAWorker) {
  const auto handler = [](std::span<const ClaimedJob> jobs) {
    std::vector<std::optional<Outcome>> out;
    for (const ClaimedJob& job : jobs) {
      out.push_back(job.payload == "fails"   ? Retry("no luck")
                    : job.payload == "dies"  ? Dead("no use")
                    : job.payload == "waits" ? Delay(1h)
                                             : Done());
    }
    return out;
  };
  for (const char* payload : {"fails", "dies", "waits", "works"})
    enqueue(payload);
  ASSERT_TRUE(run_batch(*queue_, handler, {.retry_delay = 1h}));
  EXPECT_THAT(heard(),
              ElementsAre("failed error=no luck retry=1", "failed error=no use", "dead", "delayed", "completed"));
  enqueue("fails");
  ASSERT_TRUE(run_batch(*queue_, handler, {.max_attempts = 1}));
  EXPECT_THAT(heard(), ElementsAre("failed error=no luck", "dead"));
  enqueue("works");
  ASSERT_TRUE(run_batch(*queue_, handler, {.events = WorkerEvents::sampled, .event_rate = 0}));
  enqueue("works");
  ASSERT_TRUE(run_batch(*queue_, handler, {.events = WorkerEvents::nothing}));
  EXPECT_THAT(heard(), IsEmpty());
  EXPECT_TRUE(run_batch(*queue_, handler, {.event_rate = 1.5}).error().is(Errc::invalid_argument));

  // A flow parent that died of a member was told by nobody, and what a row asks to keep was not kept.
  const JobId parent = parent_of(*queue_, "dies", 60s);
  const JobId kept = enqueue("works", {.run = {.keep = 60s}});
  ASSERT_TRUE(run_batch(*queue_, handler));
  EXPECT_EQ(state(parent), JobState::dead);
  EXPECT_THAT(heard(), ElementsAre("failed error=no use", "dead", "completed", "failed error=no use", "dead"));
  EXPECT_EQ(queue_->result(kept).get().value().value_or(Ended{}).how, EndedAs::completed);
}

// One member whose end is refused before it is sent holds up none of the others.
TEST_F(WorkerTold, ARoundOfABatchSettlesEachMemberThoughOneCannotBe) {
  for (int i = 0; i < 250; ++i)
    enqueue("x");
  const auto handler = [](std::span<const ClaimedJob> jobs) {
    std::vector<std::optional<Outcome>> out(jobs.size(), Done(std::string(20'000, 'r')));
    out[120] = Retry("negative", -5ms);
    return out;
  };
  const BatchReport report = run_batch(*queue_, handler, {.events = WorkerEvents::nothing}).value();
  EXPECT_THAT(report.completed, SizeIs(249));
  EXPECT_THAT(report.retried, SizeIs(1));
  EXPECT_EQ(counts().completed, 249);
  EXPECT_EQ(counts().active, 1);
}

// After its first `co_await` a coroutine runs on a thread of the library's, where the blocking calls answer would_deadlock.
TEST_F(WorkerTold, ACoroutineAsksOfItsJobAfterItWaited) {
  const JobId parent = parent_of(*queue_, "child", 60s);
  std::atomic<int> ok{0};
  std::atomic<std::size_t> lines_now{0};
  std::string given;
  auto worker = Worker::start(
      *queue_,
      [&](Job& job) -> Task<Outcome> {
        if (job.payload() == "child")
          co_return Done("given");
        for (int i = 0; i < 20; ++i)
          (void)co_await queue_->counts();
        ok += co_await job.progress_async("half") ? 1 : 0;
        ok += co_await job.log_async("a line") ? 1 : 0;
        const auto logged = co_await job.log_async("another");
        lines_now = static_cast<std::size_t>(logged ? *logged : 0);
        ok += co_await job.extend_async(60s) ? 1 : 0;
        const auto refused = co_await job.extend_async(0ms);
        ok += !refused && refused.error().is(Errc::invalid_argument) ? 1 : 0;
        const auto children = co_await job.children_values_async();
        if (children && children->size() == 1)
          given = children->front().second;
        const auto row = co_await queue_->job(job.id());
        const std::string* stored = row && *row ? (*row)->find("progress") : nullptr;
        ok += stored != nullptr && *stored == "half" ? 1 : 0;
        co_return Done("all");
      },
      quick_options(4));
  ASSERT_TRUE(worker) << worker.error().message();
  EXPECT_EQ(queue_->wait(parent, kNoBeat).get().value().text, "all");
  worker->stop();
  EXPECT_EQ(ok, 5);
  EXPECT_EQ(lines_now, 2U);
  EXPECT_EQ(given, "given");
}

// Handlers were `std::function` from the start: one that owns a unique_ptr did not compile.
TEST_F(WorkerTold, HandlersThatCanOnlyBeMoved) {
  const auto text = [] { return std::make_unique<std::string>("moved"); };
  const auto ends_as = [&](const Queue& queue) {
    return queue.enqueue_and_wait("moved", {.run = {.keep = 60s}}, kNoBeat).get().value().text;
  };
  const Queue plain = client_->queue("plain");
  auto one = Worker::start(plain, [own = text()](Job&) { return Done(*own); }, quick_options(2));
  ASSERT_TRUE(one);
  EXPECT_EQ(ends_as(plain), "moved");
  const Queue coroutine = client_->queue("coroutine");
  auto two =
      Worker::start(coroutine, [own = text()](Job&) -> Task<Outcome> { co_return Done(*own); }, quick_options(2));
  ASSERT_TRUE(two);
  EXPECT_EQ(ends_as(coroutine), "moved");
  const Queue batch = client_->queue("batch");
  auto three = BatchWorker::start(batch,
                                  [own = text()](std::span<Job> jobs) {
                                    BatchVerdicts verdicts;
                                    for (const Job& job : jobs)
                                      verdicts.emplace(job.id(), Done(*own));
                                    return verdicts;
                                  },
                                  {.worker = quick_options(1)});
  ASSERT_TRUE(three);
  EXPECT_EQ(ends_as(batch), "moved");
  const Queue waiting_batch = client_->queue("waiting_batch");
  auto four = BatchWorker::start(waiting_batch,
                                 [own = text()](std::span<Job> jobs) -> Task<BatchVerdicts> {
                                   BatchVerdicts verdicts;
                                   for (const Job& job : jobs)
                                     verdicts.emplace(job.id(), Done(*own));
                                   co_return verdicts;
                                 },
                                 {.worker = quick_options(1)});
  ASSERT_TRUE(four);
  EXPECT_EQ(ends_as(waiting_batch), "moved");
  const TypedQueue<std::string> typed(client_->queue("typed"));
  auto five = typed.start_worker([own = text()](const std::string& value) { return Done(value == *own ? *own : ""); },
                                 quick_options(1));
  ASSERT_TRUE(five);
  EXPECT_EQ(ends_as(typed.untyped()), "moved");
}

}  // namespace
}  // namespace echomq::test
