// The hit rate of L1 beside other policies at equal capacity. The bench does the same on longer traces.
#include <gtest/gtest.h>

#include "../../bench/cache_policies.hpp"

namespace echomq::policies {
namespace {

class CachePolicy : public ::testing::TestWithParam<std::size_t> {};

TEST_P(CachePolicy, WithinTwoPointsOfTheBestOnEachTrace) {
  constexpr std::size_t kMost = 1'000;
  const Trace trace = traces(kMost, 100 * kMost)[GetParam()];
  const Rates all = rates(kMost, 1, trace);
  EXPECT_GE(all.ours, all.best() - 2.0) << trace.name << ": LRU " << all.lru << ", LFU " << all.lfu << ", ARC "
                                        << all.arc << ", S3-FIFO " << all.s3_fifo << ", W-TinyLFU " << all.w_tiny_lfu;
  // No better than the best possible, or the bound is not what it should be.
  EXPECT_LE(all.ours, all.best() + 2.0) << trace.name;
}

INSTANTIATE_TEST_SUITE_P(Traces, CachePolicy, ::testing::Range<std::size_t>(0, 4));

/// That the policies beside it are what they are called: rates that can be had by hand.
TEST(CachePolicies, AreWhatTheyAreCalled) {
  std::vector<Id> loop;
  for (int i = 0; i < 300; ++i)
    loop.push_back(static_cast<Id>(i % 30));
  EXPECT_EQ(rate(Lru(20), loop), 0.0);
  EXPECT_EQ(rate(Lru(30), loop), 90.0);
  EXPECT_EQ(rate(Lfu(30), loop), 90.0);
  EXPECT_EQ(rate(Arc(30), loop), 90.0);
  EXPECT_EQ(rate(S3Fifo(30), loop), 90.0);
  EXPECT_GT(rate(WTinyLfu(20), loop), 45.0);
  EXPECT_EQ(rate(Lfu(2), {1, 1, 2, 3, 1, 4, 1}), 300.0 / 7) << "1 is never the least used";
  EXPECT_EQ(rate(Lru(2), {1, 1, 2, 3, 1, 4, 1}), 200.0 / 7);
}

}  // namespace
}  // namespace echomq::policies
