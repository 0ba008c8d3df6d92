#include "worker/gather.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

namespace {

using namespace std::chrono_literals;
using echomq::ClaimedJob;
using echomq::JobId;
using echomq::LaneId;
using echomq::Queue;
using echomq::Token;
using echomq::worker::Gather;
using echomq::worker::JobState;
using echomq::worker::TimePoint;

constexpr LaneId kX{"PRT0NgWEfAE00X"};
constexpr LaneId kY{"PRT0NgWEfAE00Y"};
constexpr TimePoint kStart{1000s};

std::shared_ptr<JobState> job(std::optional<LaneId> lane = {}) {
  ClaimedJob claimed;
  claimed.token = Token(1);
  claimed.lane = lane;
  return std::make_shared<JobState>(Queue(nullptr), std::move(claimed));
}

TEST(Gather, ABatchIsReadyWhenItHasItsLeastSizeAndNoMoreIsExpected) {
  Gather gather({.min_size = 2, .timeout = 100ms}, 3, false);
  gather.add(job(), kStart);
  EXPECT_TRUE(gather.take_ready(kStart, false).empty());
  gather.add(job(), kStart + 50ms);
  EXPECT_TRUE(gather.take_ready(kStart + 50ms, true).empty());
  EXPECT_EQ(gather.take_ready(kStart + 50ms, false).size(), 2U);
  EXPECT_EQ(gather.size(), 0U);
  EXPECT_EQ(gather.due(), TimePoint::max());
}

TEST(Gather, TheTimeRunsFromTheFirstJobAndTheVeryInstantCounts) {
  Gather gather({.min_size = 9, .timeout = 100ms}, 9, false);
  gather.add(job(), kStart);
  gather.add(job(), kStart + 90ms);
  EXPECT_EQ(gather.due(), kStart + 100ms);
  EXPECT_TRUE(gather.take_ready(kStart + 99ms, false).empty());
  EXPECT_EQ(gather.take_ready(kStart + 100ms, true).size(), 2U);
}

TEST(Gather, AFullBatchIsReadyWhateverIsExpectedAndTheNextOneFills) {
  Gather gather({.min_size = 1, .timeout = 100ms}, 3, false);
  for (int i = 0; i < 7; ++i)
    gather.add(job(), kStart);
  EXPECT_EQ(gather.take_ready(kStart, true).size(), 3U);
  EXPECT_EQ(gather.take_ready(kStart, true).size(), 3U);
  EXPECT_TRUE(gather.take_ready(kStart, true).empty());
  EXPECT_EQ(gather.size(), 1U);
}

TEST(Gather, EachLaneHasABatchOfItsOwn) {
  Gather gather({.min_size = 2, .timeout = 100ms}, 3, true);
  const auto x = job(kX);
  const auto y = job(kY);
  const auto z = job(kX);
  gather.add(x, kStart);
  gather.add(y, kStart + 1ms);
  gather.add(z, kStart + 2ms);
  const auto ready = gather.take_ready(kStart + 2ms, false);
  ASSERT_EQ(ready.size(), 2U);
  EXPECT_EQ(ready[0], x);
  EXPECT_EQ(ready[1], z);
  EXPECT_EQ(gather.due(), kStart + 101ms);
  EXPECT_TRUE(gather.take_over(kStart + 100ms).empty());
  EXPECT_EQ(gather.take_over(kStart + 101ms).size(), 1U);
}

TEST(Gather, AJobThatIsTakenOutLeavesItsPlaceToAnother) {
  Gather gather({.min_size = 2, .timeout = 100ms}, 2, false);
  const auto a = job();
  const auto b = job();
  gather.add(a, kStart);
  gather.add(b, kStart);
  EXPECT_TRUE(gather.remove(a.get()));
  EXPECT_FALSE(gather.remove(a.get()));
  EXPECT_EQ(gather.size(), 1U);
  EXPECT_TRUE(gather.take_ready(kStart, false).empty());
  gather.add(job(), kStart);
  EXPECT_EQ(gather.take_ready(kStart, true).size(), 2U);
  gather.add(a, kStart);
  EXPECT_TRUE(gather.remove(a.get()));
  EXPECT_EQ(gather.due(), TimePoint::max());
  gather.add(b, kStart);
  EXPECT_EQ(gather.size(), 1U);
}

}  // namespace
