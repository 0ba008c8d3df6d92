// Workers in processes of their own that are killed, stopped or that end themselves in the middle of a job.
//
// The child is this very program, started again with a filter that selects `WorkerChild`.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "child_program.hpp"
#include "support/proxy.hpp"
#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

/// The child: runs until it is killed. What it learns goes to the list `verdicts`, a run that begins to `begun`, and what it
/// has counted of lost claims to the key `counted`.
TEST(WorkerChild, DISABLED_Serve) {
  const std::string url = variable("ECHOMQ_CHILD_URL");
  if (url.empty())
    GTEST_SKIP() << "started by the tests below, with their server's address";
  const pid_t parent = ::getppid();
  auto client = Client::open(url);
  ASSERT_TRUE(client) << client.error().message();
  const auto tell = [&](const std::string& what) { client->command("RPUSH", "verdicts", what).detach(); };
  WorkerOptions options = quick_options(static_cast<std::uint32_t>(std::stoul(variable("ECHOMQ_CHILD_CONCURRENCY"))));
  options.lease = std::chrono::milliseconds(std::stol(variable("ECHOMQ_CHILD_LEASE")));
  options.beat = 200ms;
  options.sweep_period = 500ms;
  options.max_stalled = 2;
  options.on_settled = [&](const Job&, std::string_view verdict) { tell(std::string(verdict)); };
  options.on_lease_lost = [&](const Job&) { tell("lost"); };
  auto worker = Worker::start(
      client->queue("work"),
      [&](Job& job) {
        client->command("RPUSH", "begun", job.id().text()).detach();
        if (job.payload() == "poison")
          std::abort();
        if (job.payload() == "healthy")
          return Done();
        // A job of four seconds, two leases: long enough to be killed or stopped in the middle.
        for (int i = 0; i < 400 && !job.stop_token().stop_requested(); ++i)
          std::this_thread::sleep_for(10ms);
        return Done();
      },
      options);
  ASSERT_TRUE(worker) << worker.error().message();
  std::uint64_t counted = 0;
  while (::getppid() == parent) {
    std::this_thread::sleep_for(50ms);
    const WorkerStats stats = worker->stats();
    if (const std::uint64_t now = stats.errors + stats.settles_refused + stats.leases_lost; now != counted) {
      counted = now;
      client
          ->command("SET", "counted",
                    "errors " + std::to_string(stats.errors) + ", refused " + std::to_string(stats.settles_refused) +
                        ", lost " + std::to_string(stats.leases_lost))
          .detach();
    }
  }
}

/// A process that runs the test above.
class ChildWorker : public ChildProgram {
 public:
  ChildWorker(const std::string& url, int concurrency, std::chrono::milliseconds lease = 2s)
      : ChildProgram("WorkerChild.DISABLED_Serve", {{"ECHOMQ_CHILD_URL", url},
                                                    {"ECHOMQ_CHILD_CONCURRENCY", std::to_string(concurrency)},
                                                    {"ECHOMQ_CHILD_LEASE", std::to_string(lease.count())}}) {}
};

class WorkerKill : public WorkerTest {
 protected:
  [[nodiscard]] WorkerOptions options(std::uint32_t concurrency = 1) {
    WorkerOptions options = quick_options(concurrency);
    options.lease = 2s;
    options.sweep_period = 1s;
    return options;
  }
  [[nodiscard]] std::vector<std::string> verdicts() {
    std::vector<std::string> out;
    const Value list = client_->command("LRANGE", "verdicts", "0", "-1").get().value();
    for (const Value& item : list.items())
      out.emplace_back(item.as_text().value());
    return out;
  }

  /// A child that is stopped when the server has given it a job and before it has read that; it goes on when the job is done
  /// by another worker. Its handler never begins, and it has counted what became of the claim.
  void stop_before_the_answer(std::chrono::milliseconds lease) {
    Proxy proxy(server_->tcp_url());
    ChildWorker child(proxy.url(), 1, lease);
    ASSERT_TRUE(eventually([&] { return parked(1); }, 20s));
    std::this_thread::sleep_for(100ms);  // its BLPOP is on the server
    if (lease < 1500ms) {
      // Too short for a claim behind the BLPOP: the token comes through, the answer to the claim does not.
      proxy.hold(Direction::to_client, 1);
    } else {
      proxy.hold(Direction::to_client);
    }
    const JobId id = enqueue();
    ASSERT_TRUE(eventually([&] { return counts().active == 1; }));
    ASSERT_TRUE(child.stop());
    (void)integer("DEL", "counted");  // what was counted before has nothing to do with the claim
    proxy.release();
    std::atomic<int> runs{0};
    Worker b = start(
        [&](Job& job) {
          ++runs;
          EXPECT_EQ(job.attempt(), 2U);
          return Done();
        },
        options());
    ASSERT_TRUE(eventually([&] { return counts().completed == 1; }, 10s));
    std::this_thread::sleep_for(lease);
    child.signal(SIGCONT);
    ASSERT_TRUE(eventually([&] { return integer("EXISTS", "counted") == 1; }, 10s));
    std::string all;
    for (const std::string& verdict : verdicts())
      all += verdict + "; ";
    const Value counted = client_->command("GET", "counted").get().value();
    std::printf("counted %s; told %s\n", std::string(counted.as_text().value()).c_str(), all.c_str());
    EXPECT_EQ(integer("LLEN", "begun"), 0);
    EXPECT_EQ(runs, 1);
    EXPECT_EQ(counts().completed, 1);
    EXPECT_EQ(state(id), JobState::absent);
    // And it goes on.
    b.stop();
    const JobId next = enqueue("healthy");
    EXPECT_TRUE(eventually([&] { return counts().completed == 2; }, 20s));
    EXPECT_EQ(state(next), JobState::absent);
    EXPECT_EQ(integer("LLEN", "begun"), 1);
  }
};

// Case 5: a killed process lost its jobs, or they came back only at a restart or after an hour.
TEST_F(WorkerKill, TheOtherWorkerHasAllJobsOfAKilledOneWithinLeaseAndSweep) {
  enqueue_many(20);
  ChildWorker child(server_->url(), 20);
  ASSERT_TRUE(eventually([&] { return counts().active == 20; }, 20s));

  std::mutex mutex;
  std::map<std::string, int> runs;
  Worker survivor = start(
      [&](Job& job) {
        const std::lock_guard lock(mutex);
        ++runs[std::string(job.id().text())];
        return Done();
      },
      options(20));
  ASSERT_TRUE(eventually([&] { return parked(1); }));
  child.kill();
  const auto killed = std::chrono::steady_clock::now();
  ASSERT_TRUE(eventually([&] { return counts().completed == 20; }, 30s));
  std::printf("all 20 done %lld ms after the kill\n", static_cast<long long>(since(killed).count()));
  EXPECT_LE(since(killed), 2s + 1s + bound(1s));
  survivor.stop();
  EXPECT_EQ(runs.size(), 20U);
  for (const auto& [id, times] : runs)
    EXPECT_EQ(times, 1) << id;
  EXPECT_EQ(survivor.stats().recovered, 20U);
}

// Case 6: a job that kills its process went round for ever and blocked the fleet.
TEST_F(WorkerKill, AJobThatKillsItsProcessIsDeadAfterTheSecondDeathAndTheQueueGoesOn) {
  const JobId poison = enqueue("poison");
  std::optional<ChildWorker> child;
  int deaths = 0;
  child.emplace(server_->url(), 1);
  ASSERT_TRUE(eventually(
      [&] {
        if (child->ended()) {
          ++deaths;
          child.emplace(server_->url(), 1);
        }
        return state(poison) == JobState::dead;
      },
      40s));
  EXPECT_EQ(deaths, 2);
  EXPECT_EQ(field(poison, "last_error"), "stalled");
  enqueue("healthy");
  EXPECT_TRUE(eventually([&] { return counts().completed == 1; }, 20s));
  EXPECT_FALSE(child->ended());
}

// Case 16: a crash ate an attempt, and attempts 1 meant straight to the archive.
TEST_F(WorkerKill, AKillIsNoAttemptOfTheJob) {
  const JobId id = enqueue();
  ChildWorker child(server_->url(), 1);
  ASSERT_TRUE(eventually([&] { return counts().active == 1; }, 20s));
  child.kill();
  WorkerOptions once = options();
  once.max_attempts = 1;
  std::string stalled;
  Worker worker = start(
      [&](Job& job) {
        EXPECT_EQ(job.attempt(), 2U);
        stalled = field(job.id(), "stalled");
        return Retry("the one failure that it has");
      },
      once);
  ASSERT_TRUE(eventually([&] { return state(id) == JobState::dead; }, 30s));
  EXPECT_EQ(stalled, "1");
  EXPECT_EQ(field(id, "last_error"), "the one failure that it has");
}

// Case 1: a process that is stopped for three leases goes on with a job that another worker has finished meanwhile.
TEST_F(WorkerKill, AProcessStoppedForThreeLeasesIsRefusedAndLearnsItAtOnce) {
  const JobId id = enqueue();
  ChildWorker child(server_->url(), 1);
  // Not only claimed: of a job whose handler has not begun there is nothing to stop.
  ASSERT_TRUE(eventually([&] { return integer("LLEN", "begun") == 1; }, 20s));
  ASSERT_TRUE(child.stop());
  std::atomic<int> runs{0};
  Worker b = start(
      [&](Job& job) {
        ++runs;
        EXPECT_EQ(job.attempt(), 2U);
        return Done();
      },
      options());
  ASSERT_TRUE(eventually([&] { return counts().completed == 1; }, 10s));
  std::this_thread::sleep_for(3s);
  child.signal(SIGCONT);
  // Its handler needs two seconds more, unless it is told.
  const auto continued = std::chrono::steady_clock::now();
  ASSERT_TRUE(eventually([&] { return verdicts().size() >= 2; }, 10s));
  EXPECT_LE(since(continued), bound(1s));
  EXPECT_EQ(verdicts()[0], "lost");
  EXPECT_NE(verdicts()[1].find("no such job"), std::string::npos) << verdicts()[1];
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(counts().completed, 1);
  EXPECT_EQ(state(id), JobState::absent);
}

// Case 1, before the run: whoever looked whether a job was active stopped the process now and then before it had read its claim.
// Then no handler begins, and nothing is told of a lost lease; the claim is counted all the same.
TEST_F(WorkerKill, AProcessStoppedBeforeItReadsItsClaimBeginsNothingAndCountsIt) { stop_before_the_answer(1s); }
TEST_F(WorkerKill, AProcessStoppedBeforeItReadsAClaimBehindTheBlpopCountsIt) { stop_before_the_answer(2s); }

}  // namespace
}  // namespace echomq::test
