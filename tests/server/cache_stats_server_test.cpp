// What a table counts of loads, of rows that have gone, and of what it hears.
#include <gmock/gmock.h>

#include "echomq/cache_metrics.hpp"
#include "server/cache_fixture.hpp"

namespace echomq::test {
namespace {

TEST_F(CacheServerTest, RowsThatHaveGoneAreCountedByWhy) {
  CacheOptions with = options();
  with.l1_bytes = 1000;
  with.jitter = 0;
  ByteCache cache = table(client(), with);
  const auto user = [](std::uint64_t number) { return *BrandedId::encode("USR", kUserA.value() + number); };
  ASSERT_TRUE(cache.put(kUserA, "one", kV1).get());
  ASSERT_TRUE(cache.put(kUserA, "two", kV2).get());
  EXPECT_EQ(cache.stats().replaced, 1U);
  EXPECT_EQ(cache.apply(kUserA, kV3), Applied::applied);
  EXPECT_EQ(cache.stats().invalidated, 1U);
  for (std::uint64_t i = 0; i < 40; ++i)
    ASSERT_TRUE(cache.put(user(i + 1), std::string(100, 'x')).get());
  const CacheStats full = cache.stats();
  EXPECT_GT(full.evicted, 30U);
  EXPECT_EQ(full.rows + full.evicted, 40U);
  EXPECT_LE(full.bytes, 1000U);
  cache.flush();
  ASSERT_EQ(cache.put(kUserB, "after").get(), CachePut::stored);
  EXPECT_EQ(cache.stats().flushed, full.rows);

  CacheOptions brief = with;
  brief.ttl = 40ms;
  ByteCache other = table(client(), brief);
  ASSERT_TRUE(other.put(kUserA, "one").get());
  std::this_thread::sleep_for(80ms);
  ASSERT_TRUE(other.put(kUserA, "two").get());
  EXPECT_EQ(other.stats().expired, 1U);
  EXPECT_EQ(other.stats().replaced, 0U);
}

TEST_F(CacheServerTest, LoadsAndWhatIsHeardAreTimed) {
  CacheOptions with = options(Coherence::broadcast);
  ByteCache cache = table(client(), with, [](const BrandedId&) -> Result<std::optional<Loaded<std::string>>> {
    std::this_thread::sleep_for(20ms);
    return std::optional<Loaded<std::string>>({"alice", std::nullopt});
  });
  ASSERT_TRUE(cache.get(kUserA).get());
  const CacheStats loaded = cache.stats();
  EXPECT_EQ(loaded.load_time.count, 1U);
  EXPECT_GE(loaded.load_time.max, 20ms);
  EXPECT_LT(loaded.load_time.max, 5s);
  EXPECT_EQ(loaded.coherence_lag.count, 0U);
  const BrandedId version = client().mint("USR").value();
  std::this_thread::sleep_for(30ms);
  ASSERT_EQ(CacheWriter(client(), "t").broadcast(kUserA, version).get(), 1);
  ASSERT_TRUE(eventually([&] { return cache.stats().coherence_lag.count == 1; }));
  EXPECT_GE(cache.stats().coherence_lag.max, 29ms);
  EXPECT_LT(cache.stats().coherence_lag.max, 5s);

  const CacheTableStats both[] = {{"t", cache.stats()}, {"u", CacheStats()}};
  const std::string page = cache_prometheus(both);
  for (const char* line :
       {"# TYPE echomq_cache_flights_total counter\n", "echomq_cache_flights_total{table=\"t\",came_to=\"fill\"} 1\n",
        "echomq_cache_flights_total{table=\"u\",came_to=\"fill\"} 0\n", "echomq_cache_misses_total{table=\"t\"} 1\n",
        "echomq_cache_rows_gone_total{table=\"t\",why=\"invalidated\"} 1\n",
        "# TYPE echomq_cache_load_seconds histogram\n", "echomq_cache_load_seconds_bucket{table=\"t\",le=\"0.01\"} 0\n",
        "echomq_cache_load_seconds_bucket{table=\"t\",le=\"+Inf\"} 1\n",
        "echomq_cache_load_seconds_count{table=\"t\"} 1\n", "echomq_cache_coherence_lag_seconds_count{table=\"t\"} 1\n",
        "# TYPE echomq_cache_bytes gauge\n"})
    EXPECT_THAT(page, ::testing::HasSubstr(line));
  EXPECT_EQ(cache_prometheus({}), "");
}

}  // namespace
}  // namespace echomq::test
