// Due jobs begin when they are due while scripts are flushed and workers come and go: whoever knows of the next due job may
// leave at any moment, and with it goes what it knows, unless it tells somebody.
//
// Beats are half a minute and rides ten seconds, so a hint that is lost shows as a job that begins seconds late. Jobs come
// one by one or by twos and threes, for the next one would come to the rescue of one that nobody was woken for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

using Clock = std::chrono::steady_clock;

class WorkerSoak : public WorkerTest {
 protected:
  static constexpr std::size_t kClients = 4;
  static constexpr std::size_t kWorkers = 8;
  /// A worker whose slots are taken looks for due jobs every quarter of a second; the rest is for a busy machine.
  static constexpr auto kLatest = bound(1s);

  /// When each run began, by the payload. Shared with the handlers.
  struct Begun {
    std::mutex mutex;
    std::map<std::string, Clock::time_point> times;
    int twice = 0;
    [[nodiscard]] std::optional<Clock::time_point> of(const std::string& payload) {
      const std::lock_guard lock(mutex);
      const auto found = times.find(payload);
      return found != times.end() ? std::optional(found->second) : std::nullopt;
    }
  };

  void TearDown() override {
    workers_.clear();
    clients_.clear();
  }

  void add_worker() {
    WorkerOptions options = quick_options(pick(4) == 0 ? 3 : 1);
    options.lease = 30s;
    workers_.push_back(std::make_unique<Worker>(start_on(
        clients_[next_client_++ % kClients].queue("work"),
        [begun = begun_, run = std::chrono::microseconds(pick(5) == 0 ? 20'000 : pick(1'000))](Job& job) {
          {
            const std::lock_guard lock(begun->mutex);
            begun->twice += begun->times.emplace(job.payload(), Clock::now()).second ? 0 : 1;
          }
          std::this_thread::sleep_for(run);
          return Done();
        },
        options)));
  }
  [[nodiscard]] std::size_t pick(std::size_t below) { return random_() % below; }
  [[nodiscard]] std::chrono::milliseconds wait(std::size_t from, std::size_t to) {
    return std::chrono::milliseconds(from + pick(to - from));
  }

  struct Due {
    std::string payload;
    Clock::time_point at;
  };

  void stop_one(std::vector<std::future<StopReport>>& stops) {
    const auto leaves = workers_.begin() + static_cast<std::ptrdiff_t>(pick(workers_.size()));
    stops.push_back(std::async(std::launch::async,
                               [worker = std::shared_ptr<Worker>(std::move(*leaves))] { return worker->stop(); }));
    workers_.erase(leaves);
  }

  /// Schedules some jobs, has workers come and go and scripts forgotten until they are due, and gives how late the latest
  /// began. From the last deed on nobody comes who would look at the queue for the first time.
  std::chrono::milliseconds episode() {
    std::vector<Due> due;
    std::vector<std::future<StopReport>> stops;
    const auto schedule = [&](std::chrono::milliseconds in) {
      due.push_back({std::to_string(next_++), Clock::now()});
      enqueue(due.back().payload, {.in = in});
      due.back().at = Clock::now() + in;  // the server's clock began no later
    };
    schedule(wait(1, 60));
    for (std::size_t i = 0, deeds = 1 + pick(8); i < deeds; ++i) {
      switch (pick(8)) {
        case 0: EXPECT_TRUE(client_->command("SCRIPT", "FLUSH").get()); break;
        case 1:
        case 2: schedule(wait(1, 60)); break;
        case 3: {
          // Some work for whoever holds what is known.
          due.push_back({std::to_string(next_++), Clock::now()});
          enqueue(due.back().payload);
          break;
        }
        case 4:
          // Its first look may be all that it does.
          add_worker();
          std::this_thread::sleep_for(std::chrono::microseconds(pick(1'500)));
          std::swap(workers_.back(), workers_[pick(workers_.size())]);
          stop_one(stops);
          break;
        default:
          if (workers_.size() > 1)
            stop_one(stops);
      }
      if (pick(2) == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(pick(pick(3) == 0 ? 30'000 : 1'000)));
    }
    std::chrono::milliseconds latest{0};
    for (const Due& one : due) {
      const auto limit = one.at + 40s;
      while (!begun_->of(one.payload) && Clock::now() < limit)
        std::this_thread::sleep_for(1ms);
      const auto began = begun_->of(one.payload).value_or(limit);
      latest = std::max(latest, std::chrono::duration_cast<std::chrono::milliseconds>(began - one.at));
    }
    for (auto& stop : stops)
      EXPECT_EQ(stop.get().unsettled, 0U);
    return latest;
  }

  /// Gives how many episodes there were.
  std::size_t soak(std::uint32_t seed, std::chrono::milliseconds length) {
    random_.seed(seed);
    for (std::size_t i = 0; i < kClients; ++i)
      clients_.push_back(open());
    std::vector<std::chrono::milliseconds> late;
    std::size_t episodes = 0;
    const auto begin = Clock::now();
    while (Clock::now() - begin < length) {
      // Few, so that a token is not always somebody else's at once; and many.
      const std::size_t workers = 1 + pick(kWorkers);
      while (workers_.size() < workers)
        add_worker();
      if (pick(2) != 0) {
        const auto count = static_cast<std::int64_t>(workers_.size());
        EXPECT_TRUE(eventually([&] { return parked(count); }))
            << integer("ZCARD", "emq:{work}:parked") << " of " << count << " are parked";
      }
      late.push_back(episode());
      ++episodes;
      if (late.back() > kLatest) {
        ADD_FAILURE() << "seed " << seed << ", episode " << episodes << ": a due job began " << late.back().count()
                      << " ms late";
        break;
      }
    }
    std::sort(late.begin(), late.end());
    std::printf("seed %u, %zu episodes: the latest job began %lld ms late, p99 of the episodes %lld ms\n", seed,
                episodes, static_cast<long long>(late.back().count()),
                static_cast<long long>(late[late.size() * 99 / 100].count()));
    EXPECT_EQ(begun_->twice, 0);
    EXPECT_TRUE(eventually([&] { return counts().completed == static_cast<std::int64_t>(next_); }));
    return episodes;
  }

  std::mt19937 random_;
  std::size_t next_ = 0;
  std::size_t next_client_ = 0;
  const std::shared_ptr<Begun> begun_ = std::make_shared<Begun>();
  std::vector<Client> clients_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

TEST_F(WorkerSoak, DueJobsBeginInTimeWhileWorkersComeAndGoAndScriptsAreForgotten) { EXPECT_GT(soak(16, 6s), 20U); }

class LongRunWorkerSoak : public WorkerSoak {};

TEST_F(LongRunWorkerSoak, DueJobsBeginInTimeWhileWorkersComeAndGoAndScriptsAreForgotten) {
  EXPECT_GT(soak(std::random_device{}(), 3min), 1'000U);
}

}  // namespace
}  // namespace echomq::test
