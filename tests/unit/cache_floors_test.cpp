// What a shard has heard of ids lately.
#include "cache/floors.hpp"

#include <gtest/gtest.h>

namespace echomq {
namespace {

using cache::Floors;
using cache::Ticks;

TEST(CacheFloors, TheNewestHoldsUntilItsTime) {
  Floors floors;
  EXPECT_EQ(floors.of(1, 0), 0U);
  floors.raise(1, 10, 0, 100);
  floors.raise(1, 7, 50, 150);
  EXPECT_EQ(floors.of(1, 99), 10U);
  EXPECT_EQ(floors.of(1, 100), 7U) << "what was below it holds longer";
  EXPECT_EQ(floors.of(1, 149), 7U);
  EXPECT_EQ(floors.of(1, 150), 0U);
  EXPECT_EQ(floors.of(2, 50), 0U);
}

/// A source that went back: what is loaded again and again kept the newest that was ever heard of alive.
TEST(CacheFloors, WhatIsBelowDoesNotMakeTheNewestLastLonger) {
  Floors floors;
  floors.raise(1, 10, 0, 100);
  for (Ticks at = 10; at <= 300; at += 10) {
    floors.raise(1, 7, at, at + 100);
    ASSERT_EQ(floors.of(1, at), at < 100 ? 10U : 7U) << at;
  }
  EXPECT_EQ(floors.of(1, 399), 7U);
  EXPECT_EQ(floors.of(1, 400), 0U);
  // And further.
  for (Ticks at = 310; at <= 700; at += 10) {
    floors.raise(1, 4, at, at + 100);
    ASSERT_EQ(floors.of(1, at), at < 400 ? 7U : 4U) << at;
  }
  floors.raise(1, 9, 710, 810);
  EXPECT_EQ(floors.of(1, 809), 9U);
  EXPECT_EQ(floors.of(1, 810), 0U);
}

TEST(CacheFloors, WhatIsOverDoesNotComeBackWithWhatIsBelow) {
  Floors floors;
  floors.raise(1, 10, 0, 100);
  floors.raise(1, 7, 200, 300);
  EXPECT_EQ(floors.of(1, 250), 7U);
}

TEST(CacheFloors, WhatIsBelowIsNotOverWithTheNewest) {
  Floors floors;
  floors.raise(1, 10, 0, 100);
  floors.raise(1, 7, 50, 1000);
  for (std::uint64_t id = 2; id < 200; ++id)
    floors.raise(id, id, 500, 600);
  EXPECT_EQ(floors.of(1, 500), 7U);
}

TEST(CacheFloors, ALaterShorterTimeDoesNotEndALongerOne) {
  Floors floors;
  floors.raise(1, 10, 0, 1000);
  floors.raise(1, 11, 5, 100);
  EXPECT_EQ(floors.of(1, 500), 11U);
}

TEST(CacheFloors, WhatIsOverGoesAndWhatIsRaisedAgainStays) {
  Floors floors;
  for (std::uint64_t id = 1; id <= 100; ++id)
    floors.raise(id, id, 0, 10);
  floors.raise(1, 5, 5, 1000);
  for (std::uint64_t id = 201; id <= 400; ++id)
    floors.raise(id, id, 20, 1000);
  EXPECT_EQ(floors.of(1, 20), 5U);
  EXPECT_EQ(floors.of(2, 5), 0U) << "gone, not only over";
  EXPECT_EQ(floors.of(400, 20), 400U);
  EXPECT_EQ(floors.size(), 201U);
}

TEST(CacheFloors, AHotIdDoesNotDriveOutTheOthers) {
  Floors floors;
  floors.raise(1, 1, 0, 1'000'000);
  for (std::uint64_t i = 0; i < 100'000; ++i)
    floors.raise(2, i, i, i + 1'000'000);
  EXPECT_EQ(floors.of(1, 100'000), 1U);
  EXPECT_EQ(floors.of(2, 100'000), 99'999U);
}

TEST(CacheFloors, TheNewestThousandAreKnownAndNoMore) {
  Floors floors;
  for (std::uint64_t id = 1; id <= 100'000; ++id)
    floors.raise(id, id, 0, 1000);
  EXPECT_EQ(floors.size(), Floors::kMost);
  for (std::uint64_t id = 100'000 - Floors::kMost + 1; id <= 100'000; ++id)
    ASSERT_EQ(floors.of(id, 0), id);
  EXPECT_EQ(floors.of(100'000 - Floors::kMost, 0), 0U);
}

TEST(CacheFloors, WhatWasOnlyGivenDrivesOutNothingThatHolds) {
  Floors floors;
  for (std::uint64_t id = 1; id <= Floors::kMost; ++id)
    floors.raise(id, id, 0, 1000);
  floors.raise(5000, 7, 500, 2000, Floors::Full::leave_out);
  EXPECT_EQ(floors.of(5000, 500), 0U);
  EXPECT_EQ(floors.of(1, 500), 1U);
  floors.raise(1, 8, 500, 2000, Floors::Full::leave_out);
  EXPECT_EQ(floors.of(1, 500), 8U) << "it is there";
  floors.raise(5000, 7, 1000, 2000, Floors::Full::leave_out);
  EXPECT_EQ(floors.of(5000, 1000), 7U) << "others are over";
  EXPECT_LE(floors.size(), Floors::kMost);
}

}  // namespace
}  // namespace echomq
