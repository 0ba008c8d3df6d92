// Cache tables against the laws of cache_history.hpp, over a played server: any order of reads, puts, loads, deletions, pushes,
// losses of connections noticed late, failed calls and time, in each way of hearing.
//
// A failure prints the seed and every step. To play it again: ECHOMQ_MODEL_SEED=<seed> ECHOMQ_MODEL_HISTORIES=1.
#include <gtest/gtest.h>

#include <chrono>
#include <iostream>

#include "model/cache_play.hpp"

namespace echomq::model {
namespace {

class CacheModel : public ::testing::TestWithParam<Hears> {
 protected:
  static void expect_soundness(std::uint64_t histories, std::uint64_t first_seed, bool extended = false) {
    CacheCount count;
    const auto begin = std::chrono::steady_clock::now();
    const auto wrong = play_cache(
        {.hears = GetParam(), .histories = histories, .first_seed = first_seed, .extended = extended}, count);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::cout << count.steps << " histories from seed " << first_seed << ", " << count.reads << " reads, " << count.hits
              << " hits, " << count.load_waits << " waits for others' loads, " << count.drops << " drops, "
              << count.invalidations << " invalidations, " << took.count() << " s\n";
    EXPECT_FALSE(wrong.has_value()) << *wrong;
  }
};
class LongRunCacheModel : public CacheModel {};

[[nodiscard]] std::string name_of(const ::testing::TestParamInfo<Hears>& hears) {
  switch (hears.param) {
    case Hears::nothing: return "nothing";
    case Hears::broadcast: return "broadcast";
    case Hears::tracking: return "tracking";
    case Hears::job_lane: return "job_lane";
  }
  return "";
}
constexpr auto kAll = {Hears::nothing, Hears::broadcast, Hears::tracking, Hears::job_lane};
INSTANTIATE_TEST_SUITE_P(Hears, CacheModel, ::testing::ValuesIn(kAll), name_of);
INSTANTIATE_TEST_SUITE_P(Hears, LongRunCacheModel, ::testing::ValuesIn(kAll), name_of);

TEST_P(CacheModel, NoReadIsOlderThanItMayBe) { expect_soundness(20'000, 1); }

// With shared loads, tags, entries that have a time to live of their own and deadlines of loaders.
TEST_P(CacheModel, NorWithWhatPeersDoNotKnow) { expect_soundness(20'000, 1, true); }

TEST_P(LongRunCacheModel, NoReadIsOlderThanItMayBe) { expect_soundness(2'000'000, 1'000'000); }
TEST_P(LongRunCacheModel, NorWithWhatPeersDoNotKnow) { expect_soundness(2'000'000, 1'000'000, true); }

}  // namespace
}  // namespace echomq::model
