// Handles cost no connections, and what is closed is closed. Elsewhere each queue had its own, until maxclients.
#include <algorithm>
#include <atomic>
#include <thread>

#include "echomq/worker.hpp"
#include "wire_chaos.hpp"

namespace echomq::test {
namespace {

class Connections : public WireChaos {
 protected:
  // CLIENT LIST has one line for each connection, our own of the direct client among them.
  [[nodiscard]] std::int64_t connections() {
    const Value list = ask("CLIENT", "LIST");
    const std::string_view text = list.as_text().value_or("");
    return std::ranges::count(text, '\n');
  }
  [[nodiscard]] bool comes_back_to(std::int64_t number) {
    for (int attempt = 0; attempt < 2000; ++attempt) {
      if (connections() == number) {
        return true;
      }
      std::this_thread::sleep_for(10ms);
    }
    return false;
  }
};

TEST_F(Connections, TenThousandQueuesOpenNone) {
  const std::int64_t before = connections();
  std::int64_t most = before;
  for (int number = 0; number < 10'000; ++number) {
    const Queue queue = client().queue(numbered("many", number % 1000));
    if (number % 10 == 0) {
      ASSERT_TRUE(queue.enqueue("payload").get());
    }
    if (number % 1000 == 0) {
      most = std::max(most, connections());
    }
  }
  EXPECT_EQ(most, before);
  EXPECT_TRUE(comes_back_to(before));
}

TEST_F(Connections, AClosedClientLeavesNone) {
  const std::int64_t before = connections();
  for (int number = 0; number < 200; ++number) {
    auto opened = Client::open(server().tcp_url());
    ASSERT_TRUE(opened) << opened.error().message();
    ASSERT_TRUE(opened->queue(QueueName{"one"}).enqueue("payload").get());
    auto subscription = opened->subscribe("news", {}).get();
    ASSERT_TRUE(subscription) << subscription.error().message();
    if (number % 2 == 0) {
      opened->close();
    }
  }
  EXPECT_TRUE(comes_back_to(before));
}

TEST_F(Connections, TwoThousandWorkersShareFour) {
  constexpr int kQueues = 2000;
  const std::int64_t before = connections();
  auto opened = Client::open(server().tcp_url(), {.name = "workers"});
  ASSERT_TRUE(opened) << opened.error().message();
  std::atomic<int> done{0};
  {
    std::vector<Worker> workers;
    for (int number = 0; number < kQueues; ++number) {
      WorkerOptions options;
      options.beat = 5min;  // only a wake-up is quicker than the test
      options.concurrency = 1;
      auto worker = Worker::start(
          opened->queue(numbered("work", number)),
          [&done](Job&) {
            ++done;
            return Done();
          },
          options);
      ASSERT_TRUE(worker) << worker.error().message();
      workers.push_back(*std::move(worker));
    }
    // All of them asleep on their wake lists, and each one woken by its own job.
    std::this_thread::sleep_for(500ms);
    EXPECT_LE(connections() - before, 4);
    for (int number = 0; number < kQueues; ++number) {
      ASSERT_TRUE(direct().queue(numbered("work", number)).enqueue("payload").get());
    }
    // As long as some come: a worker that nothing wakes looks after minutes.
    int seen = 0;
    for (int quiet = 0; quiet < 3000 && done < kQueues; ++quiet) {
      std::this_thread::sleep_for(10ms);
      if (const int now = done; now != std::exchange(seen, now))
        quiet = 0;
    }
    EXPECT_EQ(done, kQueues);
    EXPECT_LE(connections() - before, 4);
  }
  opened->close();
  EXPECT_TRUE(comes_back_to(before));
}

}  // namespace
}  // namespace echomq::test
