// The claim that rides behind a parked worker's BLPOP: it is there in the moment the token comes, and it is no trap for jobs when
// its worker has gone, stops, or cannot be reached.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "queue/exchange.hpp"
#include "queue/state.hpp"
#include "support/proxy.hpp"
#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

/// A third of it, so long a claim rides. Under a sanitizer what must be done meanwhile may take longer.
constexpr std::chrono::milliseconds kLease = kSanitized ? 6s : 3s;

[[nodiscard]] WorkerOptions riding_options(std::uint32_t concurrency = 1) {
  WorkerOptions options = quick_options(concurrency);
  options.lease = kLease;
  return options;
}

class WorkerRide : public WorkerTest {
 protected:
  /// Whether a BLPOP waits on the server, behind which a claim has been sent with it, and nothing is under way.
  [[nodiscard]] bool rides() {
    const std::int64_t before = commands();
    std::this_thread::sleep_for(20ms);
    return commands() == before + 1 && parked(1) &&
           client_->command("CLIENT", "LIST").get().value().as_text().value_or("").find("flags=b") !=
               std::string_view::npos;
  }
  [[nodiscard]] std::int64_t commands() {
    const std::string stats(client_->command("INFO", "stats").get().value().as_text().value_or(""));
    const std::string_view name = "total_commands_processed:";
    return std::stoll(stats.substr(stats.find(name) + name.size()));
  }
};

// All that the worker had to say was said before the job came.
TEST_F(WorkerRide, AJobBeginsThoughItsWorkerCanSendNothingMore) {
  Proxy proxy(server_->url());
  const Client far = open(proxy.url());
  std::atomic<int> runs{0};
  const Worker worker = start_on(
      far.queue("work"),
      [&](Job&) {
        ++runs;
        return Done();
      },
      riding_options());
  ASSERT_TRUE(eventually([&] { return rides(); }));
  proxy.hold(Direction::to_server);
  const JobId id = enqueue();
  EXPECT_TRUE(eventually([&] { return runs == 1; }, 900ms));
  proxy.release();
  EXPECT_TRUE(eventually([&] { return state(id) == JobState::absent; }));
}

// Its handler's thread has read the answer itself.
TEST_F(WorkerRide, AJobBeginsThoughTheLibrarysThreadIsHeldUp) {
  const Client far = open(server_->url());
  const Queue queue = far.queue("work");
  for (const std::uint32_t concurrency : {1U, 4U}) {
    std::atomic<int> runs{0};
    const Worker worker = start_on(
        queue,
        [&](Job&) {
          ++runs;
          return Done();
        },
        riding_options(concurrency));
    for (int round = 1; round <= 3; ++round) {
      // A ride that is nearly over when the job comes gives nothing: not three in a row.
      bool began = false;
      for (int attempt = 0; attempt < 3 && !began; ++attempt) {
        ASSERT_TRUE(eventually([&] { return rides(); }));
        const int before = runs;
        const auto held = std::make_shared<std::promise<void>>();
        const auto go = std::make_shared<std::promise<void>>();
        queue.internal().core->after(0ms, [held, open = go->get_future().share()] {
          held->set_value();
          open.wait();
        });
        held->get_future().wait();
        const JobId id = enqueue();
        began = eventually([&] { return runs == before + 1; }, 900ms);
        go->set_value();
        EXPECT_TRUE(eventually([&] { return state(id) == JobState::absent; }));
        EXPECT_EQ(runs, before + 1);
      }
      EXPECT_TRUE(began) << round;
    }
  }
}

// A handler's thread waits on it at that moment: it lets go, and what comes next is found all the same.
TEST_F(WorkerRide, AConnectionThatBreaksWhileItIsReadIsLetGo) {
  const Client far = open(server_->url());
  for (const std::uint32_t concurrency : {1U, 4U}) {
    std::atomic<int> runs{0};
    Worker worker = start_on(far.queue("work"), [&](Job&) { return ++runs, Done(); }, riding_options(concurrency));
    for (int round = 1; round <= 5; ++round) {
      ASSERT_TRUE(eventually([&] { return rides(); })) << round;
      const std::string list(client_->command("CLIENT", "LIST", "TYPE", "normal").get().value().as_text().value_or(""));
      std::string id;
      for (std::size_t begin = 0; begin < list.size() && id.empty(); begin = list.find('\n', begin) + 1) {
        const std::string line = list.substr(begin, list.find('\n', begin) - begin);
        if (line.find("flags=b") != std::string::npos)
          id = line.substr(3, line.find(' ') - 3);
      }
      ASSERT_NE(id, "") << list;
      ASSERT_TRUE(client_->command("CLIENT", "KILL", "ID", id).get());
      enqueue();
      EXPECT_TRUE(eventually([&] { return runs == round; })) << round;
    }
    ASSERT_TRUE(eventually([&] { return rides(); }));
    const auto begun = std::chrono::steady_clock::now();
    EXPECT_EQ(worker.stop(5s).leaked, 0U);
    EXPECT_LT(since(begun), 2s) << "and whoever waits on it does not hold a stop up";
  }
}

// Its BLPOP still takes tokens, for the server does not know that nobody is there any more.
TEST_F(WorkerRide, AWorkerThatIsCutOffIsGivenNothingAfterAThirdOfALease) {
  Proxy proxy(server_->url());
  const Client far = open(proxy.url());
  std::atomic<int> runs{0};
  Worker worker = start_on(
      far.queue("work"),
      [&](Job&) {
        ++runs;
        return Done();
      },
      riding_options());
  ASSERT_TRUE(eventually([&] { return rides(); }));
  proxy.hold();
  std::this_thread::sleep_for(kLease / 3 + 100ms);
  const JobId id = enqueue();
  std::this_thread::sleep_for(kLease / 3);
  EXPECT_EQ(state(id), JobState::pending);
  EXPECT_EQ(field(id, "attempts"), "0");
  proxy.release();
  EXPECT_TRUE(eventually([&] { return runs == 1; }));
  EXPECT_TRUE(eventually([&] { return state(id) == JobState::absent; }));
  EXPECT_EQ(runs, 1);
}

// What such a claim took comes back by its lease, and nothing was counted.
TEST_F(WorkerRide, AClaimWhoseAnswerIsLostIsCounted) {
  Proxy proxy(server_->url());
  const Client far = open(proxy.url());
  std::atomic<int> runs{0};
  Worker worker = start_on(
      far.queue("work"),
      [&](Job& job) {
        EXPECT_EQ(job.attempt(), 2U);
        ++runs;
        return Done();
      },
      riding_options());
  ASSERT_TRUE(eventually([&] { return rides(); }));
  EXPECT_EQ(worker.stats().errors, 0U);
  proxy.hold(Direction::to_client);
  const JobId id = enqueue();
  ASSERT_TRUE(eventually([&] { return state(id) == JobState::active; }));
  EXPECT_GE(proxy.cut(), 1U);
  proxy.heal();
  // Its upkeep may have been on its way too.
  EXPECT_TRUE(eventually([&] { return worker.stats().errors >= 1; }));
  EXPECT_TRUE(eventually([&] { return runs == 1; }, 20s));
  EXPECT_TRUE(eventually([&] { return state(id) == JobState::absent; }));
  EXPECT_EQ(worker.stats().claimed, 1U) << "the first one never came";
  EXPECT_TRUE(eventually([&] { return worker.stats().recovered == 1; }));
}

TEST_F(WorkerRide, AJobThatComesWhileItsWorkerStopsIsNotLeftToItsLease) {
  std::minstd_rand random(5);
  int finished = 0;
  for (int round = 0; round < 60; ++round) {
    std::atomic<int> runs{0};
    Worker worker = start(
        [&](Job&) {
          ++runs;
          return Done();
        },
        riding_options());
    ASSERT_TRUE(eventually([&] { return rides(); }));
    const auto wait = std::chrono::microseconds(random() % 400);
    std::thread producer([&] {
      std::this_thread::sleep_for(wait);
      enqueue();
    });
    std::this_thread::sleep_for(200us);
    const StopReport report = worker.stop();
    producer.join();
    EXPECT_EQ(report.unsettled, 0U);
    const QueueCounts left = counts();
    EXPECT_EQ(left.active, 0) << "in round " << round;
    EXPECT_EQ(left.pending + runs, 1) << "in round " << round;
    finished += runs;
    ASSERT_TRUE(queue_->drain().get());
  }
  RecordProperty("finished", finished);
}

// An idle worker whose server is away has nothing to wait for.
TEST_F(WorkerRide, StoppingDoesNotWaitForAClaimThatHasNoConnection) {
  Proxy proxy(server_->url());
  const Client far = open(proxy.url());
  Worker worker = start_on(far.queue("work"), [](Job&) { return Done(); }, riding_options());
  ASSERT_TRUE(eventually([&] { return rides(); }));
  proxy.refuse_new(true);
  proxy.cut();
  std::this_thread::sleep_for(100ms);
  const auto start = std::chrono::steady_clock::now();
  (void)worker.stop(30s);
  EXPECT_LT(since(start), bound(3s));
}

// A BLPOP of several queues has no claims behind it; were it asked anew for each that parks, they would send each other home.
TEST_F(WorkerRide, IdleWorkersOfSeveralQueuesAreQuiet) {
  std::atomic<int> runs{0};
  const auto handler = [&](Job&) {
    ++runs;
    return Done();
  };
  const Worker first = start(handler, riding_options());
  ASSERT_TRUE(eventually([&] { return rides(); }));
  const Worker second = start_on(client_->queue("other"), handler, riding_options());
  ASSERT_TRUE(eventually([&] { return integer("ZCARD", "emq:{other}:parked") == 1 && parked(1); }));
  std::this_thread::sleep_for(100ms);
  const std::int64_t before = commands();
  std::this_thread::sleep_for(1s);
  EXPECT_LT(commands() - before, 40);
  enqueue();
  ASSERT_TRUE(client_->queue("other").enqueue("x").get());
  EXPECT_TRUE(eventually([&] { return runs == 2; }, 900ms));
}

// The second parks while the connection for BLPOPs is being made, with a BLPOP of the first only on its way.
TEST_F(WorkerRide, AQueueThatParksBeforeThereIsAConnectionIsWokenToo) {
  Proxy proxy(server_->url());
  proxy.delay(10ms);
  const Client far = open(proxy.url());
  std::atomic<int> runs{0};
  const auto handler = [&](Job&) {
    ++runs;
    return Done();
  };
  const Worker first = start_on(far.queue("work"), handler, riding_options());
  const Worker second = start_on(far.queue("other"), handler, riding_options());
  ASSERT_TRUE(eventually([&] { return integer("ZCARD", "emq:{other}:parked") == 1 && parked(1); }));
  std::this_thread::sleep_for(500ms);
  ASSERT_TRUE(client_->queue("other").enqueue("x").get());
  EXPECT_TRUE(eventually([&] { return runs == 1; }, 900ms));
}

TEST_F(WorkerRide, WorkersOfOneQueueAndOneClientTakeTurns) {
  std::atomic<int> first_runs{0};
  std::atomic<int> second_runs{0};
  const Worker first = start([&](Job&) { return ++first_runs, Done(); }, riding_options());
  const Worker second = start([&](Job&) { return ++second_runs, Done(); }, riding_options());
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(eventually([&] { return parked(2); }));
    enqueue();
    ASSERT_TRUE(eventually([&] { return first_runs + second_runs == i + 1; }, 900ms)) << "job " << i;
  }
  EXPECT_GT(first_runs, 5);
  EXPECT_GT(second_runs, 5);
}

// Claims wait in line for the BLPOP, and their time is over with that of the first: they come with new ones.
TEST_F(WorkerRide, OfManyIdleWorkersOneRidesHoweverLongTheyAreIdle) {
  std::atomic<std::chrono::steady_clock::time_point> asked{};
  ProxyOptions tapping;
  tapping.tap = [&](std::uint64_t, Direction direction, std::string_view bytes) {
    if (direction == Direction::to_server && bytes.find("BLPOP") != std::string_view::npos)
      asked = std::chrono::steady_clock::now();
  };
  Proxy proxy(server_->url(), tapping);
  const Client far = open(proxy.url());
  std::atomic<int> runs{0};
  std::vector<Worker> workers;
  for (int i = 0; i < 4; ++i)
    workers.push_back(start_on(far.queue("work"), [&](Job&) { return ++runs, Done(); }, riding_options()));
  // At its end a ride gives nothing any more; its first half is still to come or has just begun.
  const auto one_rides = [&] {
    const auto age = since(asked.load());
    return age > 30ms && age < kLease / 12 && parked(4);
  };
  int jobs = 0;
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(i * kLease / 4);  // a ride lasts a third of a lease
    // A claim that has waited in line may be nearly over when it is written, and a busy machine then too late for it: not
    // three in a row.
    bool rode = false;
    for (int attempt = 0; attempt < 3 && !rode; ++attempt) {
      ASSERT_TRUE(eventually(one_rides)) << i;
      proxy.hold(Direction::to_server);  // a worker that is only told could not ask for the job
      enqueue();
      ++jobs;
      rode = eventually([&] { return runs == jobs; }, 900ms);
      proxy.release();
      ASSERT_TRUE(eventually([&] { return counts().completed == jobs; }));
    }
    EXPECT_TRUE(rode) << i;
  }
  const std::int64_t before = commands();
  std::this_thread::sleep_for(3s);
  const std::int64_t took = commands() - before;
  std::printf("%lld commands in three seconds of four idle workers\n", static_cast<long long>(took));
  EXPECT_LT(took, 200);
}

// The claim is done on the server, its answer is on its way, and the request to cancel overtakes it.
TEST_F(WorkerRide, ACancelThatOvertakesTheJobStopsItAllTheSame) {
  std::atomic<std::uint64_t> blocking{0};
  ProxyOptions tapping;
  tapping.tap = [&](std::uint64_t connection, Direction direction, std::string_view bytes) {
    if (direction == Direction::to_server && bytes.find("BLPOP") != std::string_view::npos)
      blocking = connection;
  };
  Proxy proxy(server_->url(), tapping);
  const Client far = open(proxy.url());
  std::atomic<bool> ran_on{false};
  WorkerOptions options = riding_options();
  options.lease = 60s;
  Worker worker = start_on(
      far.queue("work"),
      [&](Job& job) {
        const auto until = std::chrono::steady_clock::now() + 5s;
        while (!job.stop_token().stop_requested() && std::chrono::steady_clock::now() < until)
          std::this_thread::sleep_for(1ms);
        if (job.stop_cause() != StopCause::cancelled)
          ran_on = true;
        return Retry("stopped");
      },
      options);
  ASSERT_TRUE(eventually([&] { return rides(); }));
  const auto listens = [&] {
    const Value reply = client_->command("PUBSUB", "NUMSUB", "emq:{work}:cancel").get().value();
    return reply.size() == 2 && reply[1].as_integer() == 1;
  };
  ASSERT_TRUE(eventually(listens));
  proxy.hold(Direction::to_client, blocking);
  const JobId id = enqueue();
  ASSERT_TRUE(eventually([&] { return state(id) == JobState::active; }));
  const auto asked = queue_->cancel(id).get();
  ASSERT_TRUE(asked) << asked.error().message();
  EXPECT_EQ(*asked, CancelVerdict::requested);
  std::this_thread::sleep_for(200ms);  // the channel has told it
  proxy.release();
  EXPECT_TRUE(eventually([&] { return state(id) == JobState::dead; }));
  EXPECT_EQ(field(id, "last_error"), "cancelled");
  EXPECT_FALSE(ran_on) << "it ended by a later claim, which found the mark";
}

// A worker without a free slot passes a token on when there is work and somebody who sleeps. Whether there is, it cannot learn.
TEST_F(WorkerRide, ATokenIsPassedOnWhenTheLookForItsWorkFails) {
  Proxy proxy(server_->url());
  ClientOptions client_options;
  client_options.deadline = 2s;
  const Client far = open(proxy.url(), client_options);
  std::atomic<bool> begun{false}, go{false};
  WorkerOptions options = riding_options();
  options.lease = 60s;
  Worker worker = start_on(
      far.queue("work"),
      [&](Job&) {
        begun = true;
        while (!go)
          std::this_thread::sleep_for(1ms);
        return Done();
      },
      options);
  ASSERT_TRUE(eventually([&] { return rides(); }));
  proxy.hold(Direction::to_server);
  enqueue_many(2);
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  EXPECT_EQ(integer("LLEN", "emq:{work}:wake"), 0);
  std::this_thread::sleep_for(3s);  // the time of the looks is over, that of the token is not
  proxy.release();
  EXPECT_TRUE(eventually([&] { return integer("LLEN", "emq:{work}:wake") == 1; }));
  go = true;
  EXPECT_TRUE(eventually([&] { return counts().completed == 2; }));
}

// A sleeping worker looks once in a beat. While the answer is on its way a token tells it of a job that will be due, and its claim
// behind the BLPOP finds nothing yet: that look is older than the job, and nobody would come before the next beat.
TEST_F(WorkerRide, ALookThatIsOlderThanATokenIsTakenAgain) {
  std::atomic<bool> armed{false}, held{false};
  Proxy* of = nullptr;
  ProxyOptions tapping;
  tapping.tap = [&](std::uint64_t connection, Direction direction, std::string_view bytes) {
    if (direction == Direction::to_server && armed && bytes.find(":parked") != std::string_view::npos &&
        !held.exchange(true))
      of->hold(Direction::to_client, connection);
  };
  Proxy proxy(server_->url(), tapping);
  of = &proxy;
  const Client far = open(proxy.url());
  std::atomic<bool> begun{false};
  WorkerOptions options = riding_options();
  options.lease = 60s;
  options.beat = 3s;
  Worker worker = start_on(far.queue("work"), [&](Job&) { return begun = true, Done(); }, options);
  ASSERT_TRUE(eventually([&] { return rides(); }));
  const std::uint64_t wakes = worker.stats().wakes;
  armed = true;
  ASSERT_TRUE(eventually([&] { return held.load(); }));
  enqueue("x", {.in = 100ms});
  ASSERT_TRUE(eventually([&] { return worker.stats().wakes == wakes + 1; }));
  const auto released = std::chrono::steady_clock::now();
  proxy.release();
  EXPECT_TRUE(eventually([&] { return begun.load(); }));
  EXPECT_LT(since(released), kSanitized ? 2s : 1s) << "the next beat comes no sooner than after 2.2 s";
}

TEST_F(WorkerRide, AClaimAfterItsLastMomentTakesNothing) {
  const JobId id = enqueue();
  queue::TakeRequest take{.most = 1, .lease = 1s};
  take.last_moment = UnixMillis(1s);
  const auto late = queue::exchange(*queue_, {}, take).get();
  ASSERT_TRUE(late) << late.error().message();
  EXPECT_EQ(late->gate, queue::Gate::late);
  EXPECT_TRUE(late->jobs.empty());
  EXPECT_EQ(state(id), JobState::pending);
  take.last_moment = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now()) + 1h;
  const auto in_time = queue::exchange(*queue_, {}, take).get();
  ASSERT_TRUE(in_time) << in_time.error().message();
  ASSERT_EQ(in_time->jobs.size(), 1U);
  EXPECT_EQ(in_time->jobs[0].job.id, id);
  EXPECT_GT(in_time->claimed_at, UnixMillis(1s));
}

}  // namespace
}  // namespace echomq::test
