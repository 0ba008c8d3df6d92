// What a worker owes at its edges: under a backlog without end, at the in-flight bound, at a rate window, beside peers that push no
// tokens, and when the system gives no thread.
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "echomq/flow.hpp"
#include "script/registry.hpp"
#include "support/proxy.hpp"
#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

using Clock = std::chrono::steady_clock;

class WorkerEdges : public WorkerTest {
 protected:
  /// Keeps the flat set filled until it is destroyed.
  class Backlog {
   public:
    explicit Backlog(Client client) : client_(std::move(client)) {
      fill(client_.queue("work"), 60);
      for (int i = 0; i < 2; ++i) {
        threads_.emplace_back([own = client_.queue("work")](const std::stop_token& over) {
          while (!over.stop_requested()) {
            const auto counts = own.counts().get();
            if (counts && counts->pending < 50'000) {
              fill(own, 5);
            } else {
              std::this_thread::sleep_for(5ms);
            }
          }
        });
      }
    }

   private:
    static void fill(const Queue& queue, int thousands) {
      const std::vector<NewJob> jobs(1000, NewJob{.payload = "x", .id = {}});
      for (int i = 0; i < thousands; ++i)
        EXPECT_TRUE(queue.enqueue_many(jobs).get());
    }

    Client client_;
    std::vector<std::jthread> threads_;
  };

  void log_commands() {
    ASSERT_TRUE(client_->command("CONFIG", "SET", "slowlog-max-len", "100000").get());
    ASSERT_TRUE(client_->command("CONFIG", "SET", "slowlog-log-slower-than", "0").get());
    ASSERT_TRUE(client_->command("SLOWLOG", "RESET").get());
  }
  /// Microseconds of each run of the script since `log_commands`, by the server's clock.
  [[nodiscard]] std::vector<std::int64_t> runs_of(std::string_view script) {
    EXPECT_TRUE(client_->command("CONFIG", "SET", "slowlog-log-slower-than", "-1").get());
    const Value log = client_->command("SLOWLOG", "GET", "100000").get().value();
    const std::string_view sha = script::find_script(script)->sha1;
    std::vector<std::int64_t> out;
    for (const Value& entry : log.items()) {
      const Value& words = entry[3];
      if (words.size() > 1 && words[0].as_text() == "EVALSHA" && words[1].as_text() == sha)
        out.push_back(entry[2].as_integer().value_or(0));
    }
    return out;
  }
  /// As a peer admits that pushes no token.
  void admit_untold(std::string_view payload) {
    const JobId id(client_->mint("JOB").value());
    ASSERT_TRUE(client_
                    ->command("HSET", "emq:{work}:job:" + std::string(id.text()), "state", "pending", "attempts", "0",
                              "payload", payload)
                    .get());
    ASSERT_TRUE(client_->command("ZADD", "emq:{work}:pending", "0", id.text()).get());
  }
};

// Claims are in flight all the time, and nobody sleeps whom a token could reach.
TEST_F(WorkerEdges, DueJobsAreMovedWhileQuickHandlersWorkOffABacklog) {
  const Backlog backlog(open());
  std::atomic<int> due{0};
  Worker worker = start(
      [&](Job& job) {
        if (job.payload() == "due")
          ++due;
        return Done();
      },
      quick_options(100));
  ASSERT_TRUE(eventually([&] { return worker.stats().completed > 2'000; }));
  const LaneId tenant = lane();
  for (int round = 1; round <= 8; ++round) {
    enqueue("due", {.lane = tenant, .in = 200ms});
    EXPECT_TRUE(eventually([&] { return due == round; }, 1s)) << round;
    ASSERT_GT(counts().pending, 0) << "this shows nothing";
  }
}

TEST_F(WorkerEdges, ACancelOfSomebodyElsesJobIsAskedForOnceForEachClaimInFlight) {
  const JobId elsewhere = enqueue();
  ASSERT_TRUE(queue_->claim({.lease = 1h, .deadline = {}}).get().value());
  const Backlog backlog(open());
  Proxy proxy(server_->url());
  proxy.delay(3ms);  // so that there is always one
  const Client far = open(proxy.url());
  Worker worker = start_on(far.queue("work"), [](Job&) { return Done(); }, quick_options(400));
  ASSERT_TRUE(eventually([&] { return worker.stats().completed > 4'000; }));
  log_commands();
  ASSERT_EQ(queue_->cancel(elsewhere).get().value(), CancelVerdict::requested);
  std::this_thread::sleep_for(500ms);
  EXPECT_TRUE(eventually([&] { return runs_of("settle_and_take").size() > 10; }))
      << "on a busy machine they take longer";
  const std::size_t asked = runs_of("marks").size();
  const std::size_t exchanges = runs_of("settle_and_take").size();
  std::printf("%zu times asked beside %zu exchanges\n", asked, exchanges);
  EXPECT_GT(exchanges, 10U);
  EXPECT_LE(asked, 5U) << "four may be in flight, and the subscription may just have been confirmed";
  ASSERT_GT(counts().pending, 0) << "this shows nothing";
}

// Others fill the client up to its bound: what the worker says is no part of that.
TEST_F(WorkerEdges, AWorkerIsNotRefusedAtTheInFlightBoundOfItsClient) {
  ClientOptions narrow;
  narrow.max_in_flight = 4;
  narrow.overflow = Overflow::refuse;
  const Client client = open({}, narrow);
  const Queue queue = client.queue("work");
  std::atomic<bool> lost{false}, over{false};
  std::atomic<int> begun{0};
  WorkerOptions options = quick_options(2);
  options.lease = kSanitized ? 6s : 2s;
  for (int i = 0; i < 2; ++i)
    enqueue();
  Worker worker = start_on(
      queue,
      [&](Job& job) {
        ++begun;
        while (!over) {
          std::this_thread::sleep_for(5ms);
          if (job.lease_lost())
            lost = true;
        }
        return Done();
      },
      options);
  {
    const std::jthread flood([other = client.queue("other")](const std::stop_token& enough) {
      while (!enough.stop_requested())
        other.enqueue("x").detach();
    });
    EXPECT_TRUE(eventually([&] { return begun == 2; }));
    std::this_thread::sleep_for(2 * options.lease);
    EXPECT_GT(client.stats().overloads, 0U);
    over = true;
    EXPECT_TRUE(eventually([&] { return worker.stats().completed == 2; }));
  }
  EXPECT_FALSE(lost);
  EXPECT_EQ(worker.stats().leases_lost, 0U);
  EXPECT_EQ(worker.stats().errors, 0U);
}

TEST_F(WorkerEdges, ARateIsKeptAndEachWindowIsUsedAtOnce) {
  ASSERT_TRUE(client_->command("HSET", "emq:{work}:meta", "max", "5", "duration", "400").get());
  enqueue_many(20);
  std::mutex mutex;
  std::vector<Clock::time_point> begun;
  Worker worker = start(
      [&](Job&) {
        const std::lock_guard lock(mutex);
        begun.push_back(Clock::now());
        return Done();
      },
      quick_options(4));
  ASSERT_TRUE(eventually([&] { return counts().completed == 20; }, 5s)) << "the beat is 30 s";
  const std::lock_guard lock(mutex);
  // Whenever a window began: no six within less than one.
  for (std::size_t i = 0; i + 5 < begun.size(); i += 5)
    EXPECT_GE(since(begun[i]) - since(begun[i + 5]), 300ms) << i;
}

TEST_F(WorkerEdges, ARateThatIsRaisedOrLiftedIsNoticedAtTheBeat) {
  // The window is of a day, and of centuries.
  for (const char* window : {"86400000", "9000000000000000"}) {
    SCOPED_TRACE(window);
    const std::int64_t before = counts().completed;
    ASSERT_TRUE(client_->command("HSET", "emq:{work}:meta", "max", "1", "duration", "86400000").get());
    ASSERT_TRUE(client_->command("SET", "emq:{work}:limiter", "1", "PX", window).get());
    enqueue_many(3);
    WorkerOptions options = quick_options();
    options.beat = 200ms;
    Worker worker = start([](Job&) { return Done(); }, options);
    std::this_thread::sleep_for(500ms);
    EXPECT_EQ(counts().completed, before);
    EXPECT_EQ(worker.stats().errors, 0U);
    ASSERT_TRUE(client_->command("DEL", "emq:{work}:limiter").get());
    EXPECT_TRUE(eventually([&] { return counts().completed == before + 1; }, 2s)) << "lifted";
    ASSERT_TRUE(client_->command("HSET", "emq:{work}:meta", "max", "100").get());
    EXPECT_TRUE(eventually([&] { return counts().completed == before + 3; }, 2s)) << "raised";
    worker.stop();
  }
}

// Its claims wait behind the BLPOP for less than a beat.
TEST_F(WorkerEdges, TheBeatAdaptsToUntoldWorkWhereARideIsShorter) {
  WorkerOptions options = quick_options();
  options.lease = 3s;
  options.beat = 10s;
  std::atomic<int> begun{0};
  Worker worker = start([&](Job&) { return ++begun, Done(); }, options);
  enqueue();
  ASSERT_TRUE(eventually([&] { return begun == 1; }));
  std::vector<std::int64_t> waits;
  for (int i = 0; i < 8; ++i) {
    std::this_thread::sleep_for(50ms);
    ASSERT_TRUE(eventually([&] { return parked(1); }));
    const auto sent = Clock::now();
    admit_untold("x");
    ASSERT_TRUE(eventually([&] { return begun == i + 2; }, 8s));
    waits.push_back(since(sent).count());
    std::printf("%lld ms ", static_cast<long long>(waits.back()));
  }
  std::printf("\n");
  EXPECT_LE(waits.back(), bound(400ms).count()) << "a ride is 1,250 ms";
}

// A peer's `delay` of a lane's job leaves the count one too high: at its ceiling the lane would get nothing any more.
TEST_F(WorkerEdges, ALaneWhoseCountIsWrongIsMendedByWhoeverHasTheSweepsTurn) {
  const LaneId tenant = lane();
  ASSERT_TRUE(queue_->limit_lane(tenant, 1).get());
  ASSERT_TRUE(client_->command("HSET", "emq:{work}:gactive", tenant.text(), "1").get());
  enqueue("x", {.lane = tenant});
  ASSERT_EQ(integer("LLEN", "emq:{work}:ring"), 0) << "the lane counts as full";
  WorkerOptions options = quick_options();
  options.sweep_period = 200ms;
  Worker worker = start([](Job&) { return Done(); }, options);
  EXPECT_TRUE(eventually([&] { return counts().completed == 1; }, 5s));
  EXPECT_TRUE(eventually([&] { return integer("EXISTS", "emq:{work}:gactive") == 0; }));
  EXPECT_EQ(worker.stats().errors, 0U);
}

/// No thread can be started: its stack would not fit.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_init(&attributes_);
    pthread_getattr_default_np(&attributes_);
    pthread_attr_getstacksize(&attributes_, &before_);
    pthread_attr_setstacksize(&attributes_, std::size_t{1} << 47U);
    failed_ = pthread_setattr_default_np(&attributes_) != 0;
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;
  ~NoThreads() {
    pthread_attr_setstacksize(&attributes_, before_);
    pthread_setattr_default_np(&attributes_);
    pthread_attr_destroy(&attributes_);
  }
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  pthread_attr_t attributes_{};
  std::size_t before_ = 0;
  bool failed_ = false;
};

TEST_F(WorkerEdges, AHandlerThatNoThreadCanReplaceKeepsItsSlot) {
  struct Shared {
    std::atomic<bool> go{false};
    std::atomic<int> others{0};
  };
  const auto shared = std::make_shared<Shared>();
  WorkerOptions options = quick_options();
  options.timeout = 200ms;
  options.stop_patience = 50ms;
  options.max_attempts = 1;
  const JobId stuck = enqueue("stuck");
  Worker worker = start(
      [shared](Job& job) {
        if (job.payload() == "stuck") {
          while (!shared->go)
            std::this_thread::sleep_for(1ms);
        } else {
          ++shared->others;
        }
        return Done();
      },
      options);
  {
    const NoThreads none;
    ASSERT_FALSE(none.failed());
    ASSERT_TRUE(eventually([&] { return state(stuck) == JobState::dead; }));
    EXPECT_EQ(worker.stats().leaked, 1U);
    enqueue("other");
    std::this_thread::sleep_for(500ms);
    EXPECT_EQ(shared->others, 0);
    EXPECT_EQ(counts().active, 0) << "others can have it";
    EXPECT_EQ(counts().pending, 1);
  }
  shared->go = true;
  EXPECT_TRUE(eventually([&] { return shared->others == 1; })) << "its slot is free again";
  EXPECT_TRUE(eventually([&] { return worker.stats().leaked == 0; }));
}

// What is promised of bites holds for each script of upkeep: a millisecond of the server's time at most.
TEST_F(WorkerEdges, TheBitesOfUpkeepAreBounded) {
  const auto expect_short = [&](std::string_view script, std::size_t least) {
    std::vector<std::int64_t> bites = runs_of(script);
    ASSERT_GE(bites.size(), least) << script;
    std::sort(bites.begin(), bites.end());
    std::printf("%s: %zu bites, median %lld us, longest %lld us\n", std::string(script).c_str(), bites.size(),
                static_cast<long long>(bites[bites.size() / 2]), static_cast<long long>(bites.back()));
    EXPECT_LE(bites[bites.size() / 2], 1'000 * bound(1ms).count()) << script;
  };
  // Expired leases of lanes, half of them for the last time.
  const LaneId tenant = lane();
  for (int i = 0; i < 2'000; ++i)
    queue_->enqueue("x", {.lane = tenant}).detach();
  ASSERT_TRUE(
      eventually([&] { return integer("ZCARD", "emq:{work}:g:" + std::string(tenant.text()) + ":pending") == 2'000; }));
  for (int i = 0; i < 2; ++i)
    ASSERT_EQ(queue_->claim_lane_batch({.size = 1'000, .lease = 1ms, .deadline = {}}).get().value().size(), 1'000U);
  std::this_thread::sleep_for(5ms);
  log_commands();
  for (int i = 0; i < 40; ++i)
    EXPECT_TRUE(queue_->sweep_stalled({.max_stalled = i % 2 == 0 ? 1U : 3U, .limit = 50}).get());
  expect_short("sweep_stalled", 40);
  EXPECT_EQ(counts().active, 0);
  // Counts of lanes: 300 jobs in flight, and a hundred wrong counts.
  ASSERT_EQ(queue_->claim_lane_batch({.size = 300, .lease = 1h, .deadline = {}}).get().value().size(), 300U);
  for (int i = 0; i < 100; ++i)
    ASSERT_TRUE(client_->command("HSET", "emq:{work}:gactive", lane().text(), "1").get());
  log_commands();
  const auto upkeep = script::find_script("upkeep");
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(client_->command("SCRIPT", "LOAD", upkeep->source).get());
    ASSERT_TRUE(client_->command("DEL", "emq:{work}:upkeep").get());
    const Value reply =
        client_
            ->command("EVALSHA", upkeep->sha1, "5", "emq:{work}:upkeep", "emq:{work}:active", "emq:{work}:flow:outbox",
                      "emq:{work}:repeat", "emq:{work}:gactive", "1000", "1000", "1000", "emq:{work}:job:")
            .get()
            .value();
    ASSERT_EQ(reply.size(), 5U) << reply.to_string();
    EXPECT_GE(reply[4].size(), 99U) << "any hundred of them, one of which may be the sound one";
  }
  expect_short("upkeep", 20);
  // Repeats.
  for (int i = 0; i < 1'000; ++i)
    queue_->register_repeat("r" + std::to_string(i), {.every = 1h, .payload = "tick"}).detach();
  ASSERT_TRUE(eventually([&] { return integer("ZCARD", "emq:{work}:repeat") == 1'000; }));
  log_commands();
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(queue_->fire_repeats(50).get().value(), 50);
  expect_short("repeat_fire", 20);
  // Deaths of children elsewhere.
  std::vector<FlowJob> children(200);
  for (FlowJob& child : children) {
    child.queue = QueueName{"below"};
    child.payload = "x";
  }
  FlowJob root;
  root.children = children;
  ASSERT_TRUE(Flow(*queue_).add(root).get());
  log_commands();
  WorkerOptions options = quick_options(4);
  options.outbox_period = 50ms;
  Worker below = start_on(client_->queue("below"), [](Job&) { return Dead("no luck"); }, options);
  ASSERT_TRUE(eventually([&] { return below.stats().delivered == 200; }));
  below.stop();
  expect_short("flow_death_deliver", 200);
}

}  // namespace
}  // namespace echomq::test
