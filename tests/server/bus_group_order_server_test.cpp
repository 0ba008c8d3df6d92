// Consumers that handle several records at once, with an order for each key; and how long failed records wait.
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>

#include "bus_fixture.hpp"
#include "echomq/stream_metrics.hpp"

namespace echomq::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;

class BusGroupOrder : public BusServerTest {
 protected:
  using Clock = std::chrono::steady_clock;
  [[nodiscard]] StreamGroup group() { return stream().group("g").value(); }
  [[nodiscard]] std::int64_t pending() { return raw("XPENDING", kKey, "g")[0].as_integer().value(); }
  void append_keyed(std::string_view key, std::string_view value) {
    const Field fields[] = {{"key", key}, {"k", value}};
    ASSERT_TRUE(stream().append(fields).get());
  }
  [[nodiscard]] static std::string key_of(const Record& record) { return *record.find("key"); }
  template <typename Condition>
  [[nodiscard]] static bool comes_true(Condition condition) {
    const auto until = Clock::now() + 20s;
    while (!condition()) {
      if (Clock::now() > until)
        return false;
      std::this_thread::sleep_for(2ms);
    }
    return true;
  }
  struct Run {
    std::string key;
    std::string value;
    std::uint64_t attempt;
    Clock::time_point at;
  };
  struct Runs {
    std::mutex mutex;
    std::vector<Run> runs;  // guarded by mutex
    void add(const StreamMessage& message) {
      const std::lock_guard lock(mutex);
      const std::string* key = message.record.find("key");
      runs.push_back({key == nullptr ? "" : *key, *message.record.find("k"), message.attempts, Clock::now()});
    }
    [[nodiscard]] std::vector<Run> of(const std::string& key) {
      const std::lock_guard lock(mutex);
      std::vector<Run> out;
      for (const Run& run : runs) {
        if (run.key == key)
          out.push_back(run);
      }
      return out;
    }
    /// How many runs of `one` there had been when the last of `other` began.
    [[nodiscard]] std::size_t before_last(const std::string& one, const std::string& other) {
      const std::lock_guard lock(mutex);
      std::size_t count = 0;
      std::size_t out = 0;
      for (const Run& run : runs) {
        count += run.key == one ? 1 : 0;
        if (run.key == other)
          out = count;
      }
      return out;
    }
    [[nodiscard]] std::size_t size() {
      const std::lock_guard lock(mutex);
      return runs.size();
    }
  };
};

TEST_F(BusGroupOrder, AFailedRecordWaitsLongerEachTimeAndHoldsNoneUp) {
  Runs runs;
  GroupConsumerOptions options;
  options.start = GroupStart::head;
  options.min_idle = 200ms;
  options.beat = 20ms;
  options.retry_delay = 60ms;
  options.retry_delay_max = 500ms;
  options.max_attempts = 6;
  auto consumer = GroupConsumer::start(
      group(), "c",
      [&](const StreamMessage& message) {
        runs.add(message);
        return *message.record.find("key") == "bad" ? Handled::failed : Handled::done;
      },
      options);
  ASSERT_TRUE(consumer);
  append_keyed("bad", "x");
  for (int i = 0; i < 20; ++i)
    append_keyed("good", std::to_string(i));
  EXPECT_TRUE(comes_true([&] { return runs.of("good").size() == 20; }));
  EXPECT_LT(runs.before_last("bad", "good"), 6U) << "the good ones did not wait for its end";
  EXPECT_TRUE(comes_true([&] { return consumer->stats().buried == 1; }));
  const auto bad = runs.of("bad");
  ASSERT_EQ(bad.size(), 6U);
  // 60, 120, 240, 480, 500: never sooner.
  const std::chrono::milliseconds least[] = {60ms, 120ms, 240ms, 480ms, 500ms};
  for (std::size_t i = 1; i < bad.size(); ++i) {
    EXPECT_GE(bad[i].at - bad[i - 1].at, least[i - 1] - 5ms) << i;
    EXPECT_LT(bad[i].at - bad[i - 1].at, least[i - 1] + 2s) << i;
    EXPECT_EQ(bad[i].attempt, i + 1);
  }
  EXPECT_TRUE(comes_true([&] { return pending() == 0; }));
}

TEST_F(BusGroupOrder, ADelayedRecordIsNotTakenOverBeforeItsTimeUnlessItsConsumerIsGone) {
  Runs runs;
  GroupConsumerOptions options;
  options.start = GroupStart::head;
  options.min_idle = 600ms;
  options.beat = 20ms;
  options.retry_delay = 2500ms;
  std::atomic<bool> fails = true;
  const auto handler = [&](const StreamMessage& message) {
    runs.add(message);
    return fails ? Handled::failed : Handled::done;
  };
  append_keyed("a", "1");
  auto first = GroupConsumer::start(group(), "c1", handler, options);
  ASSERT_TRUE(first);
  ASSERT_TRUE(comes_true([&] { return runs.size() == 1; }));
  auto second = GroupConsumer::start(group(), "c2", handler, options);
  ASSERT_TRUE(second);
  ASSERT_TRUE(comes_true([&] { return runs.size() == 2; }));
  auto seen = runs.of("a");
  EXPECT_GE(seen[1].at - seen[0].at, 2400ms);
  // Its keeper goes: it comes back as any other idle entry.
  fails = false;
  first->stop();
  second->stop();
  auto third = GroupConsumer::start(group(), "c3", handler, options);
  ASSERT_TRUE(third);
  ASSERT_TRUE(comes_true([&] { return runs.size() == 3; }));
  seen = runs.of("a");
  EXPECT_LT(seen[2].at - seen[1].at, 2400ms);
}

TEST_F(BusGroupOrder, SeveralAtOnceInTheOrderOfTheirKeysAlsoAcrossRetries) {
  constexpr int kKeys = 8;
  constexpr int kEach = 60;
  for (int i = 0; i < kEach; ++i) {
    for (int key = 0; key < kKeys; ++key)
      append_keyed(std::to_string(key), std::to_string(i));
  }
  Runs runs;
  std::mutex mutex;
  std::map<std::string, int> running;
  std::map<std::string, int> failed;
  std::atomic<int> clashes = 0;
  std::atomic<int> now = 0;
  std::atomic<int> most = 0;
  GroupConsumerOptions options;
  options.start = GroupStart::head;
  options.beat = 20ms;
  options.min_idle = 5000ms;
  options.retry_delay = 30ms;
  options.concurrency = 4;
  options.order_key = key_of;
  options.max_held = 100;
  auto consumer = GroupConsumer::start(
      group(), "c",
      [&](const StreamMessage& message) {
        const std::string key = key_of(message.record);
        {
          const std::lock_guard lock(mutex);
          clashes += ++running[key] == 1 ? 0 : 1;
        }
        const int together = ++now;
        int seen = most;
        while (together > seen && !most.compare_exchange_weak(seen, together)) {
        }
        std::this_thread::sleep_for(500us);
        --now;
        runs.add(message);
        const std::lock_guard lock(mutex);
        --running[key];
        // Every tenth record fails twice, once by an exception.
        const std::string value = *message.record.find("k");
        if (std::stoi(value) % 10 != 3)
          return Handled::done;
        const int fails = failed[key + "/" + value]++;
        if (fails == 0)
          throw std::runtime_error("once");
        return fails == 1 ? Handled::failed : Handled::done;
      },
      options);
  ASSERT_TRUE(consumer);
  EXPECT_TRUE(comes_true([&] { return consumer->stats().handled == kKeys * kEach; })) << consumer->stats().handled;
  EXPECT_EQ(clashes, 0);
  EXPECT_GT(most, 1);
  for (int key = 0; key < kKeys; ++key) {
    std::vector<std::string> order;
    for (const Run& run : runs.of(std::to_string(key)))
      order.push_back(run.value + "/" + std::to_string(run.attempt));
    std::vector<std::string> expected;
    for (int i = 0; i < kEach; ++i) {
      expected.push_back(std::to_string(i) + "/1");
      if (i % 10 == 3) {
        expected.push_back(std::to_string(i) + "/2");
        expected.push_back(std::to_string(i) + "/3");
      }
    }
    EXPECT_EQ(order, expected) << "key " << key;
  }
  EXPECT_TRUE(comes_true([&] { return pending() == 0; }));
  EXPECT_TRUE(comes_true([&] { return consumer->stats().held == 0; }));
  EXPECT_EQ(consumer->stats().errors, 0U);
}

TEST_F(BusGroupOrder, AKeyThatFailsHoldsOnlyItselfUpUntilItsRecordIsDead) {
  Runs runs;
  GroupConsumerOptions options;
  options.start = GroupStart::head;
  options.beat = 20ms;
  options.min_idle = 300ms;
  options.retry_delay = 100ms;
  options.max_attempts = 4;
  options.concurrency = 3;
  options.order_key = key_of;
  append_keyed("bad", "poison");
  append_keyed("bad", "behind");
  for (int i = 0; i < 30; ++i)
    append_keyed("good", std::to_string(i));
  auto consumer = GroupConsumer::start(
      group(), "c",
      [&](const StreamMessage& message) {
        runs.add(message);
        return *message.record.find("k") == "poison" ? Handled::failed : Handled::done;
      },
      options);
  ASSERT_TRUE(consumer);
  EXPECT_TRUE(comes_true([&] { return runs.of("good").size() == 30; }));
  EXPECT_LT(runs.before_last("bad", "good"), 4U);
  EXPECT_TRUE(comes_true([&] { return runs.of("bad").size() == 5; }));
  const auto bad = runs.of("bad");
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(bad[i].value, "poison");
  EXPECT_EQ(bad[4].value, "behind");
  EXPECT_TRUE(comes_true([&] { return consumer->stats().buried == 1 && pending() == 0; }));
  const auto dead = client().stream("q", "s:dead").read().get();
  ASSERT_TRUE(dead);
  ASSERT_EQ(dead->records.size(), 1U);
  EXPECT_EQ(*dead->records[0].find("attempts"), "4");
}

TEST_F(BusGroupOrder, WhatIsInHandIsNotTakenOverAndComesBackFirstAfterARestart) {
  for (int i = 0; i < 40; ++i)
    append_keyed(std::to_string(i % 2), std::to_string(i));
  GroupConsumerOptions options;
  options.start = GroupStart::head;
  options.beat = 20ms;
  options.min_idle = 800ms;
  options.concurrency = 2;
  options.order_key = key_of;
  Runs first_runs;
  auto first = GroupConsumer::start(
      group(), "c1",
      [&](const StreamMessage& message) {
        first_runs.add(message);
        std::this_thread::sleep_for(200ms);
        return Handled::done;
      },
      options);
  ASSERT_TRUE(first);
  ASSERT_TRUE(comes_true([&] { return first_runs.size() >= 2; }));
  Runs others;
  auto second = GroupConsumer::start(
      group(), "c2",
      [&](const StreamMessage& message) {
        others.add(message);
        return Handled::done;
      },
      options);
  ASSERT_TRUE(second);
  std::this_thread::sleep_for(2s);
  EXPECT_EQ(others.size(), 0U) << "what waits in the hands of the first is kept fresh";
  second->stop();
  first->stop();
  const std::uint64_t handled = first->stats().handled;
  EXPECT_LT(handled, 40U);
  Runs rest;
  auto again = GroupConsumer::start(
      group(), "c1",
      [&](const StreamMessage& message) {
        rest.add(message);
        return Handled::done;
      },
      options);
  ASSERT_TRUE(again);
  EXPECT_TRUE(comes_true([&] { return rest.size() == 40 - handled; }));
  for (const char* key : {"0", "1"}) {
    int last = -1;
    for (const Run& run : rest.of(key)) {
      EXPECT_GT(std::stoi(run.value), last);
      last = std::stoi(run.value);
      EXPECT_GE(run.attempt, 2U);
    }
  }
  EXPECT_TRUE(comes_true([&] { return pending() == 0; }));
}

TEST_F(BusGroupOrder, StoppedFromItsHandlerAndRefusedOptions) {
  std::optional<GroupConsumer> consumer;
  std::atomic<int> calls = 0;
  GroupConsumerOptions options;
  options.concurrency = 3;
  std::mutex mutex;
  {
    const std::lock_guard lock(mutex);
    auto started = GroupConsumer::start(
        group(), "c",
        [&](const StreamMessage&) {
          const std::lock_guard inner(mutex);
          ++calls;
          consumer->stop();
          return Handled::done;
        },
        options);
    ASSERT_TRUE(started);
    consumer.emplace(*std::move(started));
  }
  append_keyed("a", "1");
  EXPECT_TRUE(comes_true([&] { return calls == 1; }));
  consumer->stop();
  EXPECT_EQ(pending(), 0);
  options.concurrency = 0;
  EXPECT_FALSE(GroupConsumer::start(group(), "c", [](const StreamMessage&) { return Handled::done; }, options));
  options.concurrency = 1;
  options.retry_delay = -1ms;
  EXPECT_FALSE(GroupConsumer::start(group(), "c", [](const StreamMessage&) { return Handled::done; }, options));
}

TEST_F(BusGroupOrder, LagAndPendingAreTold) {
  append_keyed("a", "1");
  append_keyed("a", "2");
  append_keyed("a", "3");
  ASSERT_TRUE(group().create(GroupStart::head).get());
  ASSERT_EQ(group().read_new("c", {.count = 2}).get()->size(), 2U);
  const Stream streams[] = {stream(), client().stream("q", "none")};
  const auto text = stream_prometheus(streams);
  ASSERT_TRUE(text) << text.error().message();
  EXPECT_THAT(*text, ::testing::HasSubstr("echomq_stream_records{queue=\"q\",stream=\"s\"} 3\n"));
  EXPECT_THAT(*text, ::testing::HasSubstr("echomq_group_lag{queue=\"q\",stream=\"s\",group=\"g\"} 1\n"));
  EXPECT_THAT(*text, ::testing::HasSubstr("echomq_group_pending{queue=\"q\",stream=\"s\",group=\"g\"} 2\n"));
  EXPECT_THAT(*text, ::testing::HasSubstr("echomq_group_consumers{queue=\"q\",stream=\"s\",group=\"g\"} 1\n"));
  EXPECT_EQ(text->find("none"), std::string::npos);
}

}  // namespace
}  // namespace echomq::test
