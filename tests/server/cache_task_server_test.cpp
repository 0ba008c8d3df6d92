// Loaders that are coroutines: they await, are asked to stop when nobody waits any more, and what they bring is kept. And
// what a table counts of loads, of rows that have gone, and of what it hears.
#include <gmock/gmock.h>

#include "echomq/cache_metrics.hpp"
#include "server/cache_fixture.hpp"

namespace echomq::test {
namespace {

using Loading = Task<Result<std::optional<Loaded<std::string>>>>;

[[nodiscard]] Result<std::optional<Loaded<std::string>>> brought(std::string value) {
  return std::optional<Loaded<std::string>>({std::move(value), kV1});
}
[[nodiscard]] Result<std::optional<Loaded<std::string>>> nothing() { return std::optional<Loaded<std::string>>(); }

class CacheTask : public CacheServerTest {
 protected:
  [[nodiscard]] static ByteCache task_table(const Client& on, CacheOptions with, LoadBytesTask load) {
    auto opened = ByteCache::open_task(on, std::move(with), std::move(load));
    if (!opened)
      throw std::runtime_error(opened.error().message());
    return *std::move(opened);
  }
};

TEST_F(CacheTask, ALoaderMayAwaitTheServer) {
  raw("SET", "source", "alice");
  ByteCache cache = task_table(client(), options(), [this](BrandedId id, CancelToken) -> Loading {
    auto asked = client().command("GET", "source");
    const auto found = co_await asked;
    if (!found)
      co_return std::unexpected<Error>(found.error());
    if (id == kUserB)
      co_return nothing();
    co_return brought(std::string(found->as_text().value_or("")));
  });
  EXPECT_EQ(got(cache, kUserA), "alice/fill");
  EXPECT_EQ(got(cache, kUserA), "alice/hit");
  EXPECT_EQ(got(cache, kUserB), "(absent)/fill");
  EXPECT_EQ(stored(kUserA), frame(kV1, "alice"));
}

TEST_F(CacheTask, ManyCallersShareOneRun) {
  std::atomic<int> runs{0};
  ByteCache cache = task_table(client(), options(), [&](BrandedId, CancelToken) -> Loading {
    ++runs;
    auto asked = client().command("PING");
    (void)co_await asked;
    co_return brought("alice");
  });
  std::vector<Reply<CachedBytes>> replies;
  for (int i = 0; i < 100; ++i)
    replies.push_back(cache.get(kUserA));
  for (Reply<CachedBytes>& one : replies)
    EXPECT_EQ(said(one.get()).substr(0, 6), "alice/");
  EXPECT_EQ(runs, 1);
}

TEST_F(CacheTask, AnExceptionIsAnError) {
  ByteCache cache = task_table(client(), options(), [](BrandedId, CancelToken) -> Loading {
    throw std::runtime_error("no database");
    co_return nothing();
  });
  const auto answer = cache.get(kUserA).get();
  ASSERT_FALSE(answer);
  EXPECT_TRUE(answer.error().is(Errc::handler_failed));
  EXPECT_THAT(answer.error().text, ::testing::HasSubstr("no database"));
}

TEST_F(CacheTask, AfterItsDeadlineItIsAskedToStop) {
  CacheOptions with = options();
  with.load_deadline = 30ms;
  std::atomic<bool> asked_to_stop{false};
  ByteCache cache = task_table(client(), with, [&](BrandedId, CancelToken stop) -> Loading {
    std::optional<std::string> reason;
    while (!(reason = stop.take())) {
      auto pause = client().command("PING");
      (void)co_await pause;
    }
    asked_to_stop = true;
    if (*reason != "load_deadline is over")
      co_return fail(Errc::handler_failed, *reason);
    co_return brought("late");
  });
  const auto answer = cache.get(kUserA).get();
  ASSERT_FALSE(answer);
  EXPECT_TRUE(answer.error().is(Errc::handler_failed)) << answer.error().message();
  EXPECT_TRUE(eventually([&] { return asked_to_stop.load(); }));
  EXPECT_TRUE(eventually([&] { return got(cache, kUserA) == "late/hit"; })) << "what it brings is kept";
  EXPECT_EQ(cache.stats().load_late, 1U);
}

TEST_F(CacheTask, WhenTheTableClosesItIsAskedToStop) {
  auto stopped = std::make_shared<std::atomic<bool>>(false);
  auto began = std::make_shared<std::atomic<bool>>(false);
  std::optional<Reply<CachedBytes>> reply;
  {
    ByteCache cache = task_table(client(), options(), [this, stopped, began](BrandedId, CancelToken stop) -> Loading {
      *began = true;
      while (!stop.take()) {
        auto pause = client().command("PING");
        (void)co_await pause;
      }
      *stopped = true;
      co_return fail(Errc::cancelled, "asked to stop");
    });
    reply.emplace(cache.get(kUserA));
    ASSERT_TRUE(eventually([&] { return began->load(); }));
  }
  EXPECT_FALSE(reply->get());
  EXPECT_TRUE(*stopped);
}

TEST_F(CacheTask, ATypedTableHasThemToo) {
  struct Upper {
    static Result<std::string> encode(const std::string& value) { return "<" + value + ">"; }
    static Result<std::string> decode(std::string bytes) { return bytes.substr(1, bytes.size() - 2); }
  };
  auto opened = Cache<std::string, Upper>::open_task(
      client(), options(), [](BrandedId, CancelToken) -> Loading { co_return brought("alice"); });
  ASSERT_TRUE(opened);
  const auto answer = opened->get(kUserA).get();
  ASSERT_TRUE(answer && *answer);
  EXPECT_EQ(**answer, "alice");
  EXPECT_EQ(stored(kUserA), frame(kV1, "<alice>"));
}

TEST_F(CacheTask, RowsThatHaveGoneAreCountedByWhy) {
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
  ASSERT_TRUE(cache.put(kUserB, "after", kV1).get());
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

TEST_F(CacheTask, LoadsAndWhatIsHeardAreTimed) {
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
       {"# TYPE echomq_cache_reads_total counter\n", "echomq_cache_reads_total{table=\"t\",from=\"fill\"} 1\n",
        "echomq_cache_reads_total{table=\"u\",from=\"fill\"} 0\n",
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
