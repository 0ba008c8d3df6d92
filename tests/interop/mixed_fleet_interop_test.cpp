// A mixed fleet: our worker beside the Node speaker's simple worker, on the same two queues, with lanes and flows that both
// have admitted. Theirs asks the canonical verbs one by one, pushes no token and never sleeps on the wake list.
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "echomq/flow.hpp"
#include "echomq/worker.hpp"
#include "interop/exchange_fixture.hpp"

namespace echomq::interop {
namespace {

constexpr int kEach = 600;  // jobs of each speaker, without its flows
constexpr int kFlows = 60;  // of each speaker; every second one has its children in the other queue
constexpr int kChildren = 3;
constexpr std::string_view kFailEnding = "7";  // these fail at their first attempt, whoever has them
constexpr std::array kLanes = {LaneId("PRT0NgWEfAE00X"), LaneId("PRT0NgWEfAE00Y"), LaneId("PRT0NgWEfAE00Z")};

class MixedFleet : public ExchangeTest {
 protected:
  static constexpr int kHere = 2 * (kEach + kFlows + kFlows / 2 * kChildren);
  static constexpr int kElsewhere = 2 * (kFlows / 2 * kChildren);

  [[nodiscard]] Queue other() { return client().queue(QueueName{"q.other"}); }

  [[nodiscard]] Worker start(const Queue& queue) {
    WorkerOptions options;
    options.concurrency = 2;
    options.lease = 10s;
    options.beat = 100ms;  // theirs pushes no token
    options.outbox_period = 50ms;
    auto worker = Worker::start(
        queue,
        [this](Job& job) -> Outcome {
          std::this_thread::sleep_for(2ms);
          if (job.attempt() == 1 && job.payload().ends_with(kFailEnding)) {
            ++failed_;
            return Retry("once", Milliseconds{0});
          }
          const std::lock_guard lock(mutex_);
          done_.emplace_back(job.payload());
          return Done("by ours");
        },
        options);
    if (!worker)
      throw std::runtime_error(worker.error().message());
    return *std::move(worker);
  }
  [[nodiscard]] std::vector<JobId> admit_ours() {
    std::vector<JobId> parents;
    for (int i = 0; i < kEach; ++i) {
      EnqueueOptions options;
      if (const std::size_t turn = static_cast<std::size_t>(i) % (kLanes.size() + 1); turn > 0)
        options.lane = kLanes[turn - 1];
      EXPECT_TRUE(queue().enqueue("cpp" + std::to_string(i), options).get());
    }
    const QueueName elsewhere = other().name();
    for (int i = 0; i < kFlows; ++i) {
      std::array<std::string, kChildren> texts;
      std::array<FlowJob, kChildren> children;
      for (std::size_t child = 0; child < kChildren; ++child) {
        texts[child] = "cpp-child" + std::to_string(i * kChildren + static_cast<int>(child));
        children[child].payload = texts[child];
        if (i % 2 == 1)
          children[child].queue = elsewhere;
      }
      const std::string payload = "cpp-parent" + std::to_string(i);
      const FlowAdded added = Flow(queue()).add({.payload = payload, .children = children}).get().value();
      parents.push_back(added.parent);
    }
    return parents;
  }
  void admit_theirs() {
    for (int i = 0; i < kFlows; ++i) {
      const std::string parent = peer().mint("JOB");
      json::array children;
      for (int child = 0; child < kChildren; ++child) {
        json::object one{{"id", peer().mint("JOB")}, {"payload", "node-child" + std::to_string(i * kChildren + child)}};
        if (i % 2 == 1)
          one["queue"] = "q.other";
        children.push_back(std::move(one));
      }
      const json::value answer =
          ask("flow_add", {{"parent", {{"id", parent}, {"payload", "node-parent" + std::to_string(i)}}},
                           {"children", std::move(children)}});
      EXPECT_TRUE(answer.is_object() && answer.as_object().contains("ok")) << json::serialize(answer);
      parents_.push_back(JobId::parse(parent).value());
    }
  }

  std::mutex mutex_;
  std::vector<std::string> done_;
  std::atomic<int> failed_{0};
  std::vector<JobId> parents_;
};

TEST_F(MixedFleet, EveryJobIsDoneOnceAndRingAndCountersAreSound) {
  ASSERT_TRUE(queue().limit_lane(kLanes[0], 1).get());
  ASSERT_TRUE(queue().limit_lane(kLanes[1], 3).get());
  json::array lanes;
  for (const LaneId& lane : kLanes)
    lanes.push_back(text(lane));
  const auto consume = [&](std::string_view name, int total) {
    return peer().start("consume", name, {{"total", total}, {"lease_ms", 60000}, {"fail_ending", kFailEnding}});
  };
  const auto here = consume("q", kHere);
  const auto elsewhere = consume("q.other", kElsewhere);
  const auto produced = peer().start("produce", "q", {{"prefix", "node"}, {"count", kEach}, {"lanes", lanes}});
  Worker upper = start(queue());
  Worker lower = start(other());
  bool over_ceiling = false;
  std::jthread watch([&](std::stop_token over) {
    auto mine = Client::open(server().url()).value();
    while (!over.stop_requested()) {
      for (const auto& [lane, ceiling] : {std::pair(kLanes[0], 1), std::pair(kLanes[1], 3)}) {
        const auto count = mine.command("HGET", "emq:{q}:gactive", lane.text()).get().value();
        over_ceiling |= count.as_integer().value_or(0) > ceiling;
      }
      std::this_thread::sleep_for(1ms);
    }
  });
  // Theirs goes through the peer's one pipe, so it is this thread's; both admit at the same time.
  std::vector<JobId> ours;
  {
    const std::jthread producer([&] { ours = admit_ours(); });
    admit_theirs();
  }
  parents_.insert(parents_.end(), ours.begin(), ours.end());
  EXPECT_EQ(peer().wait(produced, 120s), kEach);
  const json::value theirs = peer().wait(here, 120s);
  const json::value theirs_elsewhere = peer().wait(elsewhere, 120s);
  watch.request_stop();
  watch.join();
  upper.stop();
  lower.stop();

  std::map<std::string, int> times;
  for (const std::string& payload : done_)
    ++times[payload];
  std::int64_t failed = failed_;
  std::size_t by_node = 0;
  for (const json::value* part : {&theirs, &theirs_elsewhere}) {
    for (const json::value& payload : part->at("done").as_array()) {
      ++times[std::string(payload.as_string())];
      ++by_node;
    }
    failed += part->at("failed").as_int64();
  }
  EXPECT_EQ(times.size(), static_cast<std::size_t>(kHere + kElsewhere));
  int failing = 0;
  for (const auto& [payload, count] : times) {
    EXPECT_EQ(count, 1) << payload;
    failing += payload.ends_with(kFailEnding) ? 1 : 0;
  }
  // A job that our worker hands back untouched has used up its first attempt without failing.
  const auto handed_back = static_cast<std::int64_t>(upper.stats().handed_back + lower.stats().handed_back);
  EXPECT_LE(failed, failing);
  EXPECT_GE(failed, failing - handed_back);
  // Both had a part in it; otherwise this shows nothing.
  EXPECT_GT(done_.size(), 20U);
  EXPECT_GT(by_node, 20U);
  std::printf("%zu jobs by ours, %zu by theirs, %lld failed once, %lld handed back\n", done_.size(), by_node,
              static_cast<long long>(failed), static_cast<long long>(handed_back));

  EXPECT_FALSE(over_ceiling);
  expect_counts({.completed = kHere});
  EXPECT_EQ(other().counts().get().value().completed, kElsewhere);
  const Flow flow(queue());
  for (const JobId& parent : parents_) {
    EXPECT_EQ(flow.dependencies(parent).get().value(), 0);
    EXPECT_EQ(flow.children_values(parent).get().value().size(), std::size_t{kChildren});
  }
  for (const std::string base : {"emq:{q}:", "emq:{q.other}:"}) {
    const json::value left = ask("raw", {{"command",
                                          {"EXISTS", base + "ring", base + "gactive", base + "active", base + "pending",
                                           base + "schedule", base + "dead", base + "flow:outbox", base + "parked"}}});
    EXPECT_EQ(left, 0) << base;
    const json::value rows = ask("raw", {{"command", {"KEYS", base + "job:??????????????"}}});
    EXPECT_TRUE(rows.as_array().empty()) << json::serialize(rows);
    const json::value waiting = ask("raw", {{"command", {"KEYS", base + "g:*:pending"}}});
    EXPECT_TRUE(waiting.as_array().empty()) << json::serialize(waiting);
  }
  EXPECT_EQ(upper.stats().errors + lower.stats().errors, 0U);
}

}  // namespace
}  // namespace echomq::interop
