// Writes of a cache table, and loads that something newer overtakes.
#include "script/registry.hpp"
#include "server/cache_fixture.hpp"

namespace echomq::test {
namespace {

using CacheWrite = CacheServerTest;

TEST_F(CacheWrite, APutIsReadAtOnceInBothLayers) {
  ByteCache cache = table(client(), options());
  EXPECT_EQ(cache.put(kUserA, "alice", kV1).get(), CachePut::stored);
  EXPECT_EQ(got(cache, kUserA), "alice/hit");
  EXPECT_EQ(stored(kUserA), frame(kV1, "alice"));
  const std::string bytes("\0\xff", 2);
  EXPECT_EQ(cache.put(kUserA, bytes, kV3).get(), CachePut::stored);
  EXPECT_EQ(got(cache, kUserA), bytes + "/hit");
  EXPECT_EQ(cache.put(kUserB, "").get(), CachePut::stored);
  EXPECT_EQ(stored(kUserB).size(), 14U);
}

TEST_F(CacheWrite, OwnWritesAreReadByWhoeverAsksNext) {
  ByteCache cache = table(client(), options());
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop)
      (void)cache.get(kUserA).get();
  });
  for (int i = 0; i < 3000; ++i) {
    ASSERT_EQ(cache.put(kUserA, std::to_string(i)).get(), CachePut::stored);
    const auto answer = cache.get(kUserA).get();
    ASSERT_TRUE(answer);
    ASSERT_EQ(answer->value, std::to_string(i));
  }
  stop = true;
  reader.join();
}

TEST_F(CacheWrite, AnOlderVersionWritesNothingAndIsNotServed) {
  ByteCache one = table(client(), options());
  ByteCache two = table(client(), options());
  EXPECT_EQ(one.put(kUserA, "old", kV1).get(), CachePut::stored);
  EXPECT_EQ(two.put(kUserA, "new", kV2).get(), CachePut::stored);
  EXPECT_EQ(one.put(kUserA, "older still", kV1).get(), CachePut::superseded);
  EXPECT_EQ(got(one, kUserA), "new/l2") << "the row it had was known to be old";
  EXPECT_EQ(one.put(kUserA, "the same version", kV2).get(), CachePut::stored);
  EXPECT_EQ(stored(kUserA), frame(kV2, "the same version"));
}

TEST_F(CacheWrite, AnUncertainPutLeavesNothingInL1) {
  ByteCache cache = table(client(), options());
  EXPECT_EQ(cache.put(kUserA, "one", kV1).get(), CachePut::stored);
  raw("DEL", key(kUserA));
  raw("HSET", key(kUserA), "f", "v");
  EXPECT_FALSE(cache.put(kUserA, "two", kV2).get());
  CachedBytes into;
  EXPECT_FALSE(cache.peek(kUserA, into));
}

TEST_F(CacheWrite, InvalidateTakesBothRows) {
  ByteCache cache = table(client(), options());
  EXPECT_EQ(cache.put(kUserA, "alice", kV2).get(), CachePut::stored);
  EXPECT_TRUE(cache.invalidate(kUserA).get());
  EXPECT_EQ(stored(kUserA), "(none)");
  EXPECT_EQ(got(cache, kUserA), "(absent)/l2");
  EXPECT_TRUE(cache.invalidate(kUserB).get());
}

TEST_F(CacheWrite, ApplyDropsOlderRowsOnly) {
  ByteCache cache = table(client(), options());
  EXPECT_EQ(cache.put(kUserA, "alice", kV2).get(), CachePut::stored);
  EXPECT_EQ(cache.apply(kUserA, kV1), Applied::stale);
  EXPECT_EQ(cache.apply(kUserA, kV2), Applied::stale);
  EXPECT_EQ(got(cache, kUserA), "alice/hit");
  EXPECT_EQ(cache.apply(kUserA, kV3), Applied::applied);
  EXPECT_EQ(cache.apply(kUserA, kV3), Applied::stale);
  EXPECT_EQ(got(cache, kUserA), "alice/l2") << "L2 is not touched";
}

// CASES 57: hold the loader, invalidate, release.
TEST_F(CacheWrite, ALoadThatBeganBeforeAnInvalidationIsReturnedAndNotKept) {
  Source source;
  source.set(kUserA, "old");
  source.hold();
  ByteCache cache = table(client(), options(), source.loader());
  auto before = cache.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  source.set(kUserA, "new");
  ASSERT_TRUE(cache.invalidate(kUserA).get());
  auto after = cache.get(kUserA);  // joins the flight, but must not get what that read
  source.release();
  EXPECT_EQ(said(before.get()), "old/fill");
  EXPECT_EQ(said(after.get()), "new/fill");
  EXPECT_EQ(got(cache, kUserA), "new/hit");
  EXPECT_EQ(stored(kUserA).substr(14), "new");
  EXPECT_EQ(cache.stats().superseded, 1U);
}

TEST_F(CacheWrite, ALoadThatAMessageOvertakesIsNotKeptInEitherLayer) {
  Source source;
  source.set(kUserA, "old", kV1);
  source.hold();
  ByteCache cache = table(client(), options(), source.loader());
  auto before = cache.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  EXPECT_EQ(cache.apply(kUserA, kV2), Applied::stale) << "there is no row";
  source.set(kUserA, "new", kV2);
  auto after = cache.get(kUserA);
  source.release();
  EXPECT_EQ(said(before.get()), "old/fill");
  EXPECT_EQ(said(after.get()), "new/fill");
  EXPECT_EQ(stored(kUserA), frame(kV2, "new"));
  EXPECT_EQ(got(cache, kUserA), "new/hit");
}

TEST_F(CacheWrite, AMessageThatTheLoadAlreadyKnowsSpoilsNothing) {
  Source source;
  source.set(kUserA, "new", kV2);
  source.hold();
  ByteCache cache = table(client(), options(), source.loader());
  auto load = cache.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  EXPECT_EQ(cache.apply(kUserA, kV2), Applied::stale);
  source.release();
  EXPECT_EQ(said(load.get()), "new/fill");
  EXPECT_EQ(got(cache, kUserA), "new/hit");
  EXPECT_EQ(source.loads(), 1);
}

TEST_F(CacheWrite, ASourceThatStaysOlderThanAMessageIsAskedOnceMoreNotForEver) {
  Source source;
  source.set(kUserA, "old", kV1);
  source.hold();
  ByteCache cache = table(client(), options(), source.loader());
  auto before = cache.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  (void)cache.apply(kUserA, kV2);
  auto after = cache.get(kUserA);
  source.release();
  EXPECT_EQ(said(before.get()), "old/fill");
  EXPECT_EQ(said(after.get()), "old/fill");
  EXPECT_EQ(source.loads(), 2);
}

TEST_F(CacheWrite, APutWhileALoadRunsIsWhatIsServedAfterwards) {
  Source source;
  source.set(kUserA, "old", kV1);
  source.hold();
  ByteCache cache = table(client(), options(), source.loader());
  auto load = cache.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  EXPECT_EQ(cache.put(kUserA, "new", kV2).get(), CachePut::stored);
  EXPECT_EQ(got(cache, kUserA), "new/hit");
  source.release();
  EXPECT_EQ(said(load.get()), "old/fill");
  EXPECT_EQ(got(cache, kUserA), "new/hit");
  EXPECT_EQ(stored(kUserA), frame(kV2, "new"));
}

TEST_F(CacheWrite, AFillThatMeetsANewerRowAnswersWithThatRow) {
  Source source;
  source.set(kUserA, "old", kV1);
  source.hold();
  ByteCache cache = table(client(), options(), source.loader());
  auto load = cache.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  raw("SET", key(kUserA), frame(kV2, "new"), "PX", "60000");
  source.release();
  EXPECT_EQ(said(load.get()), "new/l2");
  EXPECT_EQ(got(cache, kUserA), "new/hit");
  EXPECT_EQ(stored(kUserA), frame(kV2, "new"));
}

TEST_F(CacheWrite, AFillThatMeetsAnOlderRowReplacesIt) {
  Source source;
  source.set(kUserA, "new", kV2);
  source.hold();
  ByteCache cache = table(client(), options(), source.loader());
  auto load = cache.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  raw("SET", key(kUserA), frame(kV1, "old"), "PX", "60000");
  source.release();
  EXPECT_EQ(said(load.get()), "new/fill");
  EXPECT_EQ(stored(kUserA), frame(kV2, "new"));
}

TEST_F(CacheWrite, ScriptsCompareBytesAndRefuseBadArguments) {
  const auto call = [&](std::string_view script, std::initializer_list<std::string_view> arguments) {
    const std::string row = key(kUserA);
    const std::string_view keys[] = {row};
    const auto answer = client().eval(script, keys, std::span(arguments.begin(), arguments.size())).get();
    return answer ? (answer->as_integer() ? std::to_string(*answer->as_integer())
                                          : std::string(answer->as_text().value_or("?")))
                  : answer.error().text.substr(0, answer.error().text.find(" script:"));
  };
  EXPECT_EQ(call("cache_put", {kV1.text(), "v", "1000"}), "1");
  EXPECT_EQ(call("cache_put", {kV1.text(), "v", "1000"}), "2");
  EXPECT_EQ(call("cache_put", {"USR0NgWEfAEJfa", "lower", "1000"}), "2");
  // Between 'Z' and 'a' a locale may think otherwise.
  EXPECT_EQ(call("cache_put", {"USR0NgWEfAEJfZ", "upper", "1000"}), "USR0NgWEfAEJfalower");
  EXPECT_EQ(call("coherence_drop", {"ZZZ0NgWEfAEJfZ"}), "0");
  EXPECT_EQ(call("coherence_drop", {"AAA0NgWEfAEJfb"}), "1");
  EXPECT_EQ(call("coherence_drop", {"AAA0NgWEfAEJfb"}), "0");
  raw("SET", key(kUserA), "zzzzzzzzzzzzzz");
  EXPECT_EQ(call("cache_put", {kV1.text(), "v", "1000"}), "1") << "a version that is none is not the newest";
  raw("SET", key(kUserA), "short");
  EXPECT_EQ(call("coherence_drop", {kV1.text()}), "1");
  for (const char* ttl : {"0", "-1", "1.5", "x", "", "1e3", "9999999999999999"})
    EXPECT_TRUE(call("cache_put", {kV1.text(), "v", ttl}).starts_with("ERR ttl must be")) << ttl;
  EXPECT_TRUE(call("cache_put", {"short", "v", "10"}).starts_with("ERR version must be 14 bytes"));
  EXPECT_TRUE(call("coherence_drop", {""}).starts_with("ERR version must be 14 bytes"));
  EXPECT_EQ(stored(kUserA), "(none)");
}

}  // namespace
}  // namespace echomq::test
