// Many jobs and several workers: each done once, in fair turns, within the ceilings.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

class WorkerLoad : public WorkerTest {};

TEST_F(WorkerLoad, ThousandsOfJobsByFourWorkersEachRunOnce) {
  constexpr int kFlat = 3000, kLanes = 1000;
  std::mutex mutex;
  std::map<std::string, int> runs;
  const auto handler = [&](Job& job) {
    const std::lock_guard lock(mutex);
    ++runs[std::string(job.id().text())];
    return Done();
  };
  Client other = open();
  std::vector<Worker> workers;
  for (int i = 0; i < 4; ++i) {
    workers.push_back(start_on((i % 2 == 0 ? *client_ : other).queue("work"), handler, quick_options(16)));
  }
  const auto begin = std::chrono::steady_clock::now();
  const LaneId lanes[] = {lane(), lane(), lane()};
  enqueue_many(kFlat);
  std::vector<Reply<Admission>> admissions;
  for (int i = 0; i < kLanes; ++i)
    admissions.push_back(queue_->enqueue("x", {.lane = lanes[i % 3]}));
  for (auto& admission : admissions)
    ASSERT_TRUE(admission.get());
  ASSERT_TRUE(eventually([&] { return counts().completed == kFlat + kLanes; }, 60s));
  std::printf("%d jobs in %lld ms\n", kFlat + kLanes, static_cast<long long>(since(begin).count()));
  EXPECT_EQ(runs.size(), std::size_t{kFlat + kLanes});
  for (const auto& [id, times] : runs)
    EXPECT_EQ(times, 1) << id;
  const QueueCounts left = counts();
  EXPECT_EQ(left.pending + left.active + left.scheduled + left.dead, 0);
  std::uint64_t completed = 0, errors = 0;
  for (Worker& worker : workers) {
    worker.stop();
    completed += worker.stats().completed;
    errors += worker.stats().errors + worker.stats().settles_refused + worker.stats().leases_lost;
  }
  EXPECT_EQ(completed, std::uint64_t{kFlat + kLanes});
  EXPECT_EQ(errors, 0U);
}

TEST_F(WorkerLoad, LanesAndFlatJobsAreServedInTurns) {
  ASSERT_TRUE(queue_->pause().get());
  const LaneId tenant = lane();
  for (int i = 0; i < 50; ++i) {
    enqueue("F");
    enqueue("L", {.lane = tenant});
  }
  std::string order;
  Worker worker = start([&](Job& job) {
    order += job.payload();
    return Done();
  });
  ASSERT_TRUE(eventually([&] { return parked(1); }));
  ASSERT_TRUE(queue_->resume().get());
  ASSERT_TRUE(eventually([&] { return counts().completed == 100; }));
  worker.stop();
  // In every stretch of ten served while both have jobs, neither has less than four.
  for (std::size_t at = 0; at + 10 <= 90; ++at) {
    const auto flat =
        std::count(order.begin() + static_cast<long>(at), order.begin() + static_cast<long>(at) + 10, 'F');
    EXPECT_GE(flat, 4) << order;
    EXPECT_LE(flat, 6) << order;
  }
}

TEST_F(WorkerLoad, AFlatBacklogDoesNotStarveALaneAndTheOtherWayRound) {
  const LaneId tenant = lane();
  std::atomic<int> flat{0}, laned{0}, flat_before{0};
  Worker worker = start([&](Job& job) {
    if (job.lane())
      flat_before = flat.load();
    ++(job.lane() ? laned : flat);
    std::this_thread::sleep_for(1ms);
    return Done();
  });
  enqueue_many(500);
  ASSERT_TRUE(eventually([&] { return flat > 20; }));
  enqueue("x", {.lane = tenant});
  const int before = flat;
  ASSERT_TRUE(eventually([&] { return laned == 1; }));
  EXPECT_LE(flat_before - before, 40) << "the lane waited for the flat backlog";
}

TEST_F(WorkerLoad, LanesTakeTurnsWhateverTheirDepth) {
  ASSERT_TRUE(queue_->pause().get());
  const LaneId deep = lane(), shallow = lane();
  for (int i = 0; i < 200; ++i)
    enqueue("deep", {.lane = deep});
  for (int i = 0; i < 10; ++i)
    enqueue("shallow", {.lane = shallow});
  std::vector<std::string> order;
  Worker worker = start([&](Job& job) {
    order.emplace_back(job.payload());
    return Done();
  });
  ASSERT_TRUE(eventually([&] { return parked(1); }));
  ASSERT_TRUE(queue_->resume().get());
  ASSERT_TRUE(eventually([&] { return counts().completed == 210; }));
  worker.stop();
  EXPECT_EQ(std::count(order.begin(), order.begin() + 24, "shallow"), 10);
}

TEST_F(WorkerLoad, TheCeilingOfALaneHoldsOverAllWorkers) {
  const LaneId tenant = lane();
  ASSERT_TRUE(queue_->limit_lane(tenant, 3).get());
  std::atomic<int> running{0}, most{0};
  const auto handler = [&](Job&) {
    const int now = ++running;
    int seen = most;
    while (seen < now && !most.compare_exchange_weak(seen, now)) {
    }
    std::this_thread::sleep_for(2ms);
    --running;
    return Done();
  };
  for (int i = 0; i < 200; ++i)
    enqueue("x", {.lane = tenant});
  Client other = open();
  Worker first = start(handler, quick_options(8)), second = start_on(other.queue("work"), handler, quick_options(8));
  ASSERT_TRUE(eventually([&] { return counts().completed == 200; }, 20s));
  EXPECT_EQ(most, 3);
  EXPECT_EQ(integer("HEXISTS", "emq:{work}:gactive", tenant.text()), 0);
}

// Under steady load a worker that moves due jobs only when it is idle never does.
TEST_F(WorkerLoad, DueJobsAndExpiredLeasesAreMovedUnderSteadyLoad) {
  WorkerOptions options = quick_options();
  options.sweep_period = 300ms;
  enqueue("stalled");
  ASSERT_TRUE(queue_->claim({.lease = 1ms, .deadline = {}}).get().value());
  enqueue("due", {.in = 300ms});
  std::atomic<bool> feed{true}, due{false}, stalled{false};
  std::atomic<int> done{0};
  for (int i = 0; i < 50; ++i)
    enqueue("load");
  Worker worker = start(
      [&](Job& job) {
        if (job.payload() == "due")
          due = true;
        if (job.payload() == "stalled")
          stalled = true;
        if (job.payload() == "load" && feed)
          queue_->enqueue("load").detach();
        std::this_thread::sleep_for(1ms);
        ++done;
        return Done();
      },
      options);
  EXPECT_TRUE(eventually([&] { return due && stalled; }, 3s));
  EXPECT_GE(counts().pending, 40);
  feed = false;
}

TEST_F(WorkerLoad, MoreDueJobsThanOneBiteAreMovedInOneSpell) {
  const std::vector<NewJob> jobs(350, NewJob{.payload = "x", .id = {}});
  ASSERT_TRUE(queue_->enqueue_many(jobs, {.lane = {}, .at = {}, .in = 200ms, .deadline = {}}).get());
  Worker worker = start([](Job&) { return Done(); }, quick_options(4));
  EXPECT_TRUE(eventually([&] { return counts().completed == 350; }, 3s));
  EXPECT_TRUE(eventually([&] { return worker.stats().promoted == 350; })) << worker.stats().promoted;
}

TEST_F(WorkerLoad, SomeHandlersMayFillAllSlotsAndTheQueueGoesOnAfterThem) {
  std::atomic<int> running{0};
  std::atomic<bool> go{false};
  enqueue_many(20);
  Worker worker = start(
      [&](Job&) {
        ++running;
        while (!go)
          std::this_thread::sleep_for(1ms);
        return Done();
      },
      quick_options(5));
  ASSERT_TRUE(eventually([&] { return running == 5; }));
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(running, 5);
  EXPECT_EQ(counts().active, 5);
  EXPECT_EQ(worker.stats().running, 5U);
  go = true;
  EXPECT_TRUE(eventually([&] { return counts().completed == 20; }));
}

// A worker that sleeps because the queue is at its ceiling is told as soon as a settle of another process frees a slot, though
// that worker takes no more.
TEST_F(WorkerLoad, ASlotUnderTheCeilingIsToldToWhoSleeps) {
  constexpr int kRounds = 5;
  ASSERT_TRUE(client_->command("HSET", "emq:{work}:meta", "concurrency", "1").get());
  Client other = open();
  std::atomic<int> stops{0};
  ClientOptions telling;
  telling.log = [&](LogLevel, std::string_view event, std::span<const LogField>) {
    stops += event == "worker_stopping" ? 1 : 0;
  };
  Client told = open({}, std::move(telling));
  std::vector<std::chrono::milliseconds> waits;
  for (int round = 0; round < kRounds; ++round) {
    std::atomic<bool> go{false};
    std::atomic<int> running{0}, begun{0};
    std::optional<Worker> first(start_on(told.queue("work"), [&](Job&) {
      ++running;
      while (!go)
        std::this_thread::sleep_for(1ms);
      return Done();
    }));
    enqueue();
    ASSERT_TRUE(eventually([&] { return running == 1; }));
    Worker second = start_on(other.queue("work"), [&](Job&) {
      ++begun;
      return Done();
    });
    ASSERT_TRUE(eventually([&] { return parked(1); }));
    enqueue();
    std::this_thread::sleep_for(20ms);  // the hint of the admission is taken, and finds the ceiling
    ASSERT_TRUE(eventually([&] { return parked(1); }));
    const int stops_before = stops;
    std::thread stopping([&] { (void)first->stop(); });
    // From then on it claims nothing more.
    EXPECT_TRUE(eventually([&] { return stops > stops_before; }));
    EXPECT_EQ(begun, 0);
    const auto freed = std::chrono::steady_clock::now();
    go = true;
    EXPECT_TRUE(eventually([&] { return begun == 1; }, 20s));
    waits.push_back(since(freed));
    stopping.join();
    ASSERT_TRUE(eventually([&] { return counts().completed == 2 * (round + 1); }));
  }
  std::ranges::sort(waits);
  EXPECT_LT(waits[kRounds / 2], bound(50ms));
  EXPECT_LT(waits.back(), bound(2s));
}

// Workers of a queue at its ceiling take up what their own settles freed.
TEST_F(WorkerLoad, AQueueWithACeilingIsServedToItsEnd) {
  ASSERT_TRUE(client_->command("HSET", "emq:{work}:meta", "concurrency", "2").get());
  enqueue_many(40);
  Client other = open();
  const auto handler = [](Job&) {
    std::this_thread::sleep_for(2ms);
    return Done();
  };
  Worker first = start(handler, quick_options(8)), second = start_on(other.queue("work"), handler, quick_options(8));
  EXPECT_TRUE(eventually([&] { return counts().completed == 40; }, 10s));
}

// A sweep that lets a job die frees its slot under the queue's ceiling, and puts nothing back that would tell so.
TEST_F(WorkerLoad, ASlotThatADeathInASweepFreesIsTakenAtOnce) {
  ASSERT_TRUE(client_->command("HSET", "emq:{work}:meta", "concurrency", "1").get());
  const JobId lost = enqueue("lost");
  ASSERT_TRUE(queue_->claim({.lease = 500ms}).get().value());
  enqueue("waits");
  std::atomic<int> runs{0};
  WorkerOptions options = quick_options();
  options.max_stalled = 1;
  Worker worker = start([&](Job&) { return ++runs, Done(); }, options);
  EXPECT_TRUE(eventually([&] { return runs == 1; }));
  EXPECT_EQ(state(lost), JobState::dead);
}

// A claim that has only found such jobs has found something.
TEST_F(WorkerLoad, AHeapOfJobsThatAreTooOldHoldsNobodyUp) {
  constexpr int kOld = 30'000;
  EnqueueManyOptions how;
  how.run.expire = 1ms;
  const std::vector<NewJob> jobs(1000, NewJob{.payload = "old", .id = {}});
  std::vector<Reply<std::vector<Result<Admission>>>> admissions;
  for (int i = 0; i < kOld / 1000; ++i)
    admissions.push_back(queue_->enqueue_many(jobs, how));
  for (auto& admission : admissions)
    ASSERT_TRUE(admission.get());
  std::this_thread::sleep_for(20ms);
  enqueue("live");
  std::atomic<int> runs{0};
  const auto begin = std::chrono::steady_clock::now();
  Worker worker = start([&](Job&) { return ++runs, Done(); });
  EXPECT_TRUE(eventually([&] { return runs == 1; }, 60s));
  const auto took = since(begin);
  std::printf("%d jobs that were too old held a live one up for %lld ms\n", kOld, static_cast<long long>(took.count()));
  // Looks between the claims would each find work and take the worker's name out, and soon be slowed down.
  const std::string stats(client_->command("INFO", "commandstats").get().value().as_text().value_or(""));
  const std::size_t at = stats.find("cmdstat_zrem:calls=");
  const int looks = at == std::string::npos ? 0 : std::stoi(stats.substr(stats.find('=', at) + 1));
  EXPECT_LT(looks, 12);
  EXPECT_EQ(counts().dead, kOld);
}

}  // namespace
}  // namespace echomq::test
