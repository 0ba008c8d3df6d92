// The lanes of a consumer that handles several records at once.
#include "bus/group_pool.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>

namespace echomq::bus {
namespace {

using namespace std::chrono_literals;

PoolItem item(std::string entry) { return {.delivery = {.entry = std::move(entry), .record = std::nullopt}}; }

class Ran {
 public:
  void add(const std::string& entry) {
    const std::lock_guard lock(mutex_);
    entries_.push_back(entry);
  }
  [[nodiscard]] std::vector<std::string> entries() const {
    const std::lock_guard lock(mutex_);
    return entries_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> entries_;  // guarded by mutex_
};

TEST(GroupPool, ALaneRunsInOrderAlsoAcrossARetryAndHoldsNoOtherUp) {
  Ran ran;
  std::atomic<int> failures = 0;
  GroupPool pool(4, [&](PoolItem& one) -> std::optional<Milliseconds> {
    ran.add(one.delivery.entry);
    if (one.delivery.entry == "a1" && ++failures < 4)
      return 200ms;
    return std::nullopt;
  });
  pool.add("a", item("a1"));
  pool.add("a", item("a2"));
  pool.add("b", item("b1"));
  pool.add("a", item("a3"));
  pool.add("b", item("b2"));
  ASSERT_TRUE(pool.wait_below(1, 10s));
  std::vector<std::string> a;
  std::vector<std::string> b;
  const auto entries = ran.entries();
  for (const std::string& entry : entries)
    (entry[0] == 'a' ? a : b).push_back(entry);
  EXPECT_THAT(a, ::testing::ElementsAre("a1", "a1", "a1", "a1", "a2", "a3"));
  EXPECT_THAT(b, ::testing::ElementsAre("b1", "b2"));
  const auto b2 = std::ranges::find(entries, "b2");
  EXPECT_LT(b2, std::ranges::find(entries, "a2")) << "a lane that waits holds no other up";
}

/// What was dropped when it was not in hand any more was passed over the next time.
TEST(GroupPool, AnEntryThatWasDroppedAfterItsEndRunsWhenItComesAgain) {
  Ran ran;
  GroupPool pool(1, [&](PoolItem& one) -> std::optional<Milliseconds> {
    ran.add(one.delivery.entry);
    return std::nullopt;
  });
  pool.add("a", item("a1"));
  ASSERT_TRUE(pool.wait_below(1, 10s));
  pool.drop({"a1", "a2"});
  pool.add("a", item("a1"));
  pool.add("a", item("a2"));
  ASSERT_TRUE(pool.wait_below(1, 10s));
  EXPECT_THAT(ran.entries(), ::testing::ElementsAre("a1", "a1", "a2"));
}

TEST(GroupPool, WhatIsDroppedWhileItWaitsIsNotRun) {
  Ran ran;
  std::atomic<bool> go = false;
  GroupPool pool(1, [&](PoolItem& one) -> std::optional<Milliseconds> {
    ran.add(one.delivery.entry);
    while (!go)
      std::this_thread::sleep_for(1ms);
    return std::nullopt;
  });
  pool.add("a", item("a1"));
  pool.add("a", item("a2"));
  pool.add("a", item("a3"));
  while (ran.entries().empty())
    std::this_thread::sleep_for(1ms);
  pool.drop({"a1", "a2"});
  EXPECT_THAT(pool.entries(), ::testing::ElementsAre("a3"));
  go = true;
  ASSERT_TRUE(pool.wait_below(1, 10s));
  EXPECT_THAT(ran.entries(), ::testing::ElementsAre("a1", "a3"));
  pool.add("a", item("a2"));
  ASSERT_TRUE(pool.wait_below(1, 10s));
  EXPECT_THAT(ran.entries(), ::testing::ElementsAre("a1", "a3", "a2"));
}

/// An entry that others have was counted by who refreshes what is in hand, and once more when its turn came.
TEST(GroupPool, WhatIsFoundLostTwiceIsCountedOnce) {
  GroupPool* the_pool = nullptr;
  std::atomic<std::size_t> refreshed = 0;
  std::atomic<int> in_its_turn = 0;
  GroupPool pool(1, [&](PoolItem& one) -> std::optional<Milliseconds> {
    if (one.delivery.entry == "a1")
      refreshed += the_pool->drop({"a1"});
    in_its_turn += the_pool->lose(one) ? 1 : 0;
    EXPECT_EQ(the_pool->drop({one.delivery.entry}), 0U) << "in hand no more";
    return std::nullopt;
  });
  the_pool = &pool;
  pool.add("a", item("a1"));
  ASSERT_TRUE(pool.wait_below(1, 10s));
  EXPECT_EQ(refreshed, 1U);
  EXPECT_EQ(in_its_turn, 0);
  pool.add("a", item("a2"));
  ASSERT_TRUE(pool.wait_below(1, 10s));
  EXPECT_EQ(in_its_turn, 1);
  // Each may come again.
  pool.add("a", item("a1"));
  ASSERT_TRUE(pool.wait_below(1, 10s));
  EXPECT_EQ(refreshed, 2U);
}

TEST(GroupPool, OneOfALaneAtATime) {
  std::atomic<int> running = 0;
  std::atomic<int> most = 0;
  std::map<std::string, std::atomic<int>> in_lane;
  for (int lane = 0; lane < 5; ++lane)
    in_lane[std::to_string(lane)] = 0;
  std::atomic<int> clashes = 0;
  GroupPool pool(5, [&](PoolItem& one) -> std::optional<Milliseconds> {
    auto& mine = in_lane.find(one.delivery.entry)->second;
    clashes += ++mine == 1 ? 0 : 1;
    const int now = ++running;
    int seen = most;
    while (now > seen && !most.compare_exchange_weak(seen, now)) {
    }
    std::this_thread::sleep_for(1ms);
    --running;
    --mine;
    return std::nullopt;
  });
  for (int i = 0; i < 200; ++i)
    pool.add(std::to_string(i % 5), item(std::to_string(i % 5)));
  ASSERT_TRUE(pool.wait_below(1, 10s));
  EXPECT_EQ(clashes, 0);
  EXPECT_GT(most, 1);
}

TEST(GroupPool, WhatIsLostIsNotRunAndWhatWaitsIsLeftAtTheEnd) {
  Ran ran;
  std::mutex gate;
  gate.lock();
  GroupPool pool(1, [&](PoolItem& one) -> std::optional<Milliseconds> {
    ran.add(one.delivery.entry);
    const std::lock_guard lock(gate);
    return std::nullopt;
  });
  for (const char* entry : {"1", "2", "3"})
    pool.add("lane", item(entry));
  while (ran.entries().empty())
    std::this_thread::sleep_for(1ms);
  EXPECT_THAT(pool.entries(), ::testing::ElementsAre("1", "2", "3"));
  pool.drop({"2"});
  EXPECT_THAT(pool.entries(), ::testing::ElementsAre("1", "3"));
  gate.unlock();
  ASSERT_TRUE(pool.wait_below(1, 10s));
  EXPECT_THAT(ran.entries(), ::testing::ElementsAre("1", "3"));
  EXPECT_FALSE(pool.inside());
  pool.stop();
  pool.add("lane", item("4"));
  EXPECT_EQ(pool.held(), 1U);
  EXPECT_EQ(ran.entries().size(), 2U);
}

}  // namespace
}  // namespace echomq::bus
