// Everything at random, for a while: cuts at any byte, held links, refused connections, bytes one by one, the server
// killed. In the end each job that was admitted is done, and counted once.
#include <atomic>
#include <functional>
#include <random>
#include <set>
#include <thread>

#include "echomq/worker.hpp"
#include "wire_chaos.hpp"

namespace echomq::test {
namespace {

class RandomFaults : public WireChaos {
 protected:
  [[nodiscard]] echomq::testing::PrivateServerOptions server_options() const override {
    // With `everysec` a write that waits for a slow fsync dies with the server: what it has acknowledged would be lost there.
    return {.append_only = echomq::testing::AppendOnly::always};
  }
  [[nodiscard]] ClientOptions client_options() const override {
    ClientOptions options = hasty();
    options.heartbeat = 200ms;
    options.deadline = 10s;
    return options;
  }

  const QueueName name_{"random"};
  static constexpr std::size_t kEnough = 51;
  std::atomic<std::size_t> sure_{0};

  // Admits jobs through the proxy until told to stop; what is surely admitted, and what may be.
  struct Admitted {
    std::set<JobId> sure;
    std::set<JobId> unsure;
  };
  [[nodiscard]] Admitted produce(const std::stop_token& stop) {
    Admitted out;
    const Queue queue = client().queue(name_);
    while (!stop.stop_requested()) {
      const JobId id = *client().mint_job();
      const auto admitted = queue.enqueue("payload", {.id = id}).get();
      if (admitted) {
        EXPECT_NE(admitted->verdict, echomq::Admitted::duplicate);
        out.sure.insert(id);
        sure_ = out.sure.size();
      } else {
        const Error& error = admitted.error();
        EXPECT_TRUE(error.is(Errc::outcome_unknown) || error.is(Errc::unreachable) || error.is(Errc::timeout) ||
                    error.is(Errc::disconnected) || error.is(Errc::loading))
            << error.message();
        out.unsure.insert(id);
      }
      std::this_thread::sleep_for(500us);
    }
    return out;
  }

  [[nodiscard]] WorkerOptions worker_options() const {
    WorkerOptions options;
    options.concurrency = 4;
    options.lease = 500ms;
    options.beat = 200ms;
    options.sweep_period = 200ms;
    options.max_stalled = 1000;  // faults are many here, and no job is to blame
    options.backoff = Backoff::fixed(10ms);
    return options;
  }

  // Waits for an empty queue, then compares what was admitted, run and counted.
  void settle_accounts(const Admitted& admitted, const std::set<JobId>& run) {
    proxy().heal();
    const Queue queue = direct().queue(name_);
    Result<QueueCounts> counts = queue.counts().get();
    for (int attempt = 0; attempt < 3000; ++attempt) {
      counts = queue.counts().get();
      if (counts && counts->pending + counts->active + counts->scheduled == 0) {
        break;
      }
      std::this_thread::sleep_for(10ms);
    }
    ASSERT_TRUE(counts) << counts.error().message();
    EXPECT_EQ(counts->pending, 0);
    EXPECT_EQ(counts->active, 0);
    EXPECT_EQ(counts->scheduled, 0);
    EXPECT_EQ(counts->dead, 0);
    std::size_t lost = 0;
    for (const JobId& id : admitted.sure) {
      lost += run.contains(id) ? 0 : 1;
    }
    EXPECT_EQ(lost, 0U);
    // Each job that ran was admitted, and is counted once.
    for (const JobId& id : run) {
      EXPECT_TRUE(admitted.sure.contains(id) || admitted.unsure.contains(id)) << id.text();
    }
    EXPECT_EQ(counts->completed, static_cast<std::int64_t>(run.size()));
    EXPECT_GE(admitted.sure.size(), kEnough);
    const auto rows = ask("KEYS", "emq:{random}:job:*");
    EXPECT_EQ(rows.size(), 0U);
  }

  /// Does harm for that long, and for a while longer where little was admitted or `enough` says no: on a busy machine.
  template <typename Harm>
  void run_with(std::chrono::milliseconds time, Harm harm, const std::function<bool()>& enough = [] { return true; }) {
    std::mutex mutex;
    std::set<JobId> run;
    auto worker = Worker::start(
        client().queue(name_),
        [&](Job& job) {
          const std::lock_guard guard(mutex);
          run.insert(job.id());
          return Done();
        },
        worker_options());
    ASSERT_TRUE(worker) << worker.error().message();
    Admitted admitted;
    std::jthread producer([&](const std::stop_token& stop) { admitted = produce(stop); });
    const auto until = std::chrono::steady_clock::now() + time;
    const auto raced = [&] { return sure_ >= kEnough && enough(); };
    while (std::chrono::steady_clock::now() < until ||
           (!raced() && std::chrono::steady_clock::now() < until + std::chrono::seconds(20))) {
      harm();
    }
    proxy().heal();
    producer.request_stop();
    producer.join();
    settle_accounts(admitted, run);
    worker->stop(5s);
  }
};

TEST_F(RandomFaults, CutsHoldsAndSwallowedBytes) {
  std::mt19937 random(7);
  const auto below = [&](int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random); };
  run_with(15s, [&] {
    const auto direction = below(2) == 0 ? Direction::to_server : Direction::to_client;
    switch (below(8)) {
      case 0: proxy().hold(direction); break;
      case 1: proxy().split(1); break;
      case 2: proxy().swallow_after(direction, static_cast<std::uint64_t>(below(400))); break;
      case 3: proxy().refuse_new(true); break;
      case 4: (void)proxy().cut(); break;
      default: proxy().cut_after(direction, static_cast<std::uint64_t>(below(2000))); break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{5 + below(60)});
    if (below(2) == 0) {
      proxy().heal();
    }
  });
}

TEST_F(RandomFaults, TheServerIsKilledAndStartedAgain) {
  int kills = 0;
  run_with(
      12s,
      [&] {
        std::this_thread::sleep_for(1200ms);
        server().kill();
        std::this_thread::sleep_for(100ms);
        const auto again = server().restart();
        ASSERT_TRUE(again) << again.error().message();
        ++kills;
      },
      [&] { return kills >= 4; });
  EXPECT_GE(kills, 4);
}

// Byte by byte, each reply and each request arrives in as many pieces as it has bytes.
TEST_F(RandomFaults, BytesOneByOne) {
  proxy().split(1, 0us);
  run_with(3s, [] { std::this_thread::sleep_for(100ms); });
}

}  // namespace
}  // namespace echomq::test
