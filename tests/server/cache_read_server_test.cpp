// Reads of a cache table: where answers come from, one flight a miss, several ids at once, expiry, outage, bad input.
#include <array>
#include <set>
#include <vector>

#include "server/cache_fixture.hpp"
#include "support/proxy.hpp"

namespace echomq::test {
namespace {

using CacheRead = CacheServerTest;

TEST_F(CacheRead, FillThenHitThenL2) {
  Source source;
  source.set(kUserA, "alice", kV1);
  ByteCache one = table(client(), options(), source.loader());
  EXPECT_EQ(got(one, kUserA), "alice/fill");
  EXPECT_EQ(stored(kUserA), frame(kV1, "alice"));
  EXPECT_GT(raw("PTTL", key(kUserA)).as_integer(), 50'000);
  EXPECT_EQ(got(one, kUserA), "alice/hit");
  ByteCache two = table(client(), options(), source.loader());
  EXPECT_EQ(got(two, kUserA), "alice/l2");
  EXPECT_EQ(got(one, kUserB), "(absent)/fill");
  EXPECT_EQ(source.loads(), 2);
  const CacheStats stats = one.stats();
  EXPECT_EQ(stats.hits, 1U);
  EXPECT_EQ(stats.misses, 2U);
  EXPECT_EQ(stats.fills, 1U);
  EXPECT_EQ(stats.absent, 1U);
  EXPECT_EQ(stats.rows, 1U);
}

TEST_F(CacheRead, AMintedVersionIsOfTheKindAndOlderThanTheLoad) {
  Source source;
  source.set(kUserA, "alice");
  ByteCache cache = table(client(), options(), source.loader());
  const auto answer = cache.get(kUserA).get();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->version.brand(), "USR");
  const auto later = client().mint("USR");
  EXPECT_TRUE(is_newer(*later, answer->version));
  EXPECT_EQ(stored(kUserA), frame(answer->version, "alice"));
}

TEST_F(CacheRead, ManyCallersOnOneColdIdAreOneLoad) {
  Source source;
  source.set(kUserA, "alice", kV1);
  source.hold();
  ByteCache cache = table(client(), options(), source.loader());
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      std::vector<Reply<CachedBytes>> replies;
      for (int j = 0; j < 25; ++j)
        replies.push_back(cache.get(kUserA));
      for (auto& reply : replies)
        right += said(reply.get()) == "alice/fill";
    });
  }
  ASSERT_TRUE(source.wait_loads(1));
  EXPECT_TRUE(eventually([&] { return cache.stats().misses == 200; }));
  source.release();
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(right, 200);
  EXPECT_EQ(source.loads(), 1);
  EXPECT_EQ(cache.stats().coalesced, 199U);
  EXPECT_EQ(cache.stats().fills, 1U);
}

TEST_F(CacheRead, ACallBringsItsOwnLoader) {
  Source source;
  source.set(kUserA, "alice", kV1);
  ByteCache cache = table(client(), options());
  EXPECT_EQ(got(cache, kUserA), "(absent)/l2");
  EXPECT_EQ(said(cache.get_or_load(kUserA, source.loader()).get()), "alice/fill");
  EXPECT_EQ(stored(kUserA), frame(kV1, "alice"));
  EXPECT_EQ(got(cache, kUserA), "alice/hit");
  EXPECT_EQ(said(cache.get_or_load(kUserA, source.loader()).get()), "alice/hit");
  EXPECT_EQ(source.loads(), 1);
  ByteCache other = table(client(), options());
  EXPECT_EQ(said(other.get_or_load(kUserA, source.loader()).get()), "alice/l2");
  EXPECT_EQ(said(other.get_or_load(kUserB, source.loader()).get()), "(absent)/fill");
  EXPECT_EQ(source.loads(), 2);

  EXPECT_TRUE(cache.get_or_load(kUserA, {}).get().error().is(Errc::invalid_argument));
  EXPECT_TRUE(cache.get_or_load(kOrder, source.loader()).get().error().is(Errc::wrong_kind));
  const auto thrown = cache
                          .get_or_load(kUserB,
                                       [](const BrandedId&) -> Result<std::optional<Loaded<std::string>>> {
                                         throw std::runtime_error("no luck");
                                       })
                          .get();
  EXPECT_TRUE(thrown.error().is(Errc::handler_failed)) << thrown.error().message();
  EXPECT_EQ(got(cache, kUserB), "(absent)/l2");
}

TEST_F(CacheRead, ACallsLoaderIsInPlaceOfTheTables) {
  Source tables;
  Source calls;
  tables.set(kUserA, "of the table", kV1);
  calls.set(kUserA, "of the call", kV1);
  Cache<std::string> cache = *Cache<std::string>::open(client(), options(), tables.loader());
  const auto answer = cache.get_or_load(kUserA, calls.loader()).get();
  ASSERT_TRUE(answer) << answer.error().message();
  EXPECT_EQ(answer->value, "of the call");
  EXPECT_EQ(answer->from, CacheFrom::fill);
  EXPECT_EQ(tables.loads(), 0);
  ASSERT_TRUE(cache.invalidate(kUserA).get());
  EXPECT_EQ(cache.get(kUserA).get()->value, "of the table");
}

TEST_F(CacheRead, ManyCallersWithLoadersAreOneLoad) {
  Source source;
  source.set(kUserA, "alice", kV1);
  source.hold();
  ByteCache cache = table(client(), options());
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 25; ++j)
        right += said(cache.get_or_load(kUserA, source.loader()).get()) == (j == 0 ? "alice/fill" : "alice/hit");
    });
  }
  ASSERT_TRUE(source.wait_loads(1));
  EXPECT_TRUE(eventually([&] { return cache.stats().misses == 8; }));
  // One that has no loader waits for theirs.
  Reply<CachedBytes> without = cache.get(kUserA);
  source.release();
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(said(without.get()), "alice/fill");
  EXPECT_EQ(right, 200);
  EXPECT_EQ(source.loads(), 1);
}

/// It gives its loader to a read that had none; a read that has found nothing before is followed by one of its own.
TEST_F(CacheRead, ACallWithALoaderIsNotAnsweredByAReadThatHasNone) {
  Proxy proxy(server().url());
  Client far = Client::open(proxy.url(), {.node_lease = NodeLease::never}).value();
  Source source;
  source.set(kUserA, "alice", kV1);
  ByteCache cache = table(far, options());
  proxy.hold(Direction::to_client);
  Reply<CachedBytes> without = cache.get(kUserA);
  Reply<CachedBytes> with = cache.get_or_load(kUserA, source.loader());
  EXPECT_EQ(cache.stats().coalesced, 1U);
  proxy.release();
  EXPECT_EQ(said(with.get()), "alice/fill");
  EXPECT_EQ(said(without.get()), "alice/fill");
  EXPECT_EQ(source.loads(), 1);
  // Any moment between the two: of many tries some come when it is decided that nobody loads.
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(cache.invalidate(kUserA).get());
    const Reply<CachedBytes> reads = cache.get(kUserA);
    std::this_thread::sleep_for(std::chrono::microseconds(i % 150));
    ASSERT_EQ(said(cache.get_or_load(kUserA, source.loader()).get()).substr(0, 5), "alice") << i;
  }
}

TEST_F(CacheRead, SeveralIdsAreOneWriteAndPartialHits) {
  ByteCache cache = table(client(), options());
  std::vector<BrandedId> ids;
  for (std::uint64_t i = 0; i < 50; ++i) {
    ids.push_back(BrandedId::encode("USR", 1000 + i).value());
    if (i % 2 == 0)
      raw("SET", key(ids.back()), frame(kV1, std::to_string(i)), "PX", "60000");
  }
  EXPECT_EQ(got(cache, ids[0]), "0/l2");
  const std::uint64_t writes = client().stats().writes;
  ids.push_back(kOrder);
  ids.push_back(ids[0]);
  const auto answers = cache.get_many(ids).get();
  ASSERT_TRUE(answers);
  EXPECT_LE(client().stats().writes - writes, 2U);
  ASSERT_EQ(answers->size(), 52U);
  EXPECT_EQ(said((*answers)[0]), "0/hit");
  EXPECT_EQ(said((*answers)[51]), "0/hit");
  for (std::size_t i = 1; i < 50; ++i)
    EXPECT_EQ(said((*answers)[i]), i % 2 == 0 ? std::to_string(i) + "/l2" : "(absent)/l2");
  EXPECT_TRUE((*answers)[50].error().is(Errc::wrong_kind));
  EXPECT_TRUE(cache.get_many({}).get()->empty());
}

TEST_F(CacheRead, BothLayersExpireAndL1NeverOutlivesL2) {
  ByteCache cache = table(client(), options());
  raw("SET", key(kUserA), frame(kV1, "alice"), "PX", "1500");
  EXPECT_EQ(got(cache, kUserA), "alice/l2");
  EXPECT_EQ(got(cache, kUserA), "alice/hit");
  std::this_thread::sleep_for(1510ms);
  EXPECT_EQ(got(cache, kUserA), "(absent)/l2");
}

TEST_F(CacheRead, AForeignRowWithoutExpiryLivesOneTtlInL1) {
  CacheOptions with = options();
  with.ttl = 1500ms;
  ByteCache cache = table(client(), with);
  raw("SET", key(kUserA), frame(kV1, "one"));
  EXPECT_EQ(got(cache, kUserA), "one/l2");
  raw("SET", key(kUserA), frame(kV2, "two"));
  EXPECT_EQ(got(cache, kUserA), "one/hit");
  std::this_thread::sleep_for(1510ms);
  EXPECT_EQ(got(cache, kUserA), "two/l2");
}

TEST_F(CacheRead, AbsenceIsRememberedInL1AloneAndOnlyByChoice) {
  Source source;
  CacheOptions with = options();
  with.negative_ttl = 10s;
  ByteCache cache = table(client(), with, source.loader());
  EXPECT_EQ(got(cache, kUserA), "(absent)/fill");
  EXPECT_EQ(got(cache, kUserA), "(absent)/hit");
  EXPECT_EQ(source.loads(), 1);
  EXPECT_EQ(stored(kUserA), "(none)");
  EXPECT_EQ(cache.put(kUserA, "alice").get(), CachePut::stored);
  EXPECT_EQ(got(cache, kUserA), "alice/hit");
}

TEST_F(CacheRead, WhatIsNoFrameIsAMissAndIsOverwritten) {
  Source source;
  source.set(kUserA, "alice", kV1);
  for (const std::string& bytes : {std::string("short"), std::string("zzzzzzzzzzzzzzvalue"), std::string()}) {
    raw("SET", key(kUserA), bytes);
    ByteCache cache = table(client(), options(), source.loader());
    EXPECT_EQ(got(cache, kUserA), "alice/fill");
    EXPECT_EQ(stored(kUserA), frame(kV1, "alice"));
    EXPECT_EQ(cache.stats().corrupt, 1U);
  }
}

TEST_F(CacheRead, ErrorsAreTheirOwnersAndNotKept) {
  int calls = 0;
  ByteCache cache = table(client(), options(), [&](const BrandedId&) -> Result<std::optional<Loaded<std::string>>> {
    if (++calls == 1)
      return fail(Errc::codec_failed, "db down");
    throw std::runtime_error("thrown");
  });
  EXPECT_TRUE(cache.get(kUserA).get().error().is(Errc::codec_failed));
  const auto thrown = cache.get(kUserA).get();
  ASSERT_FALSE(thrown);
  EXPECT_TRUE(thrown.error().is(Errc::handler_failed));
  EXPECT_NE(thrown.error().text.find("thrown"), std::string::npos);
  EXPECT_EQ(cache.stats().load_errors, 2U);
  EXPECT_EQ(stored(kUserA), "(none)");
  raw("HSET", key(kUserB), "f", "v");
  EXPECT_TRUE(cache.get(kUserB).get().error().is(Errc::server_error));
}

TEST_F(CacheRead, ALoaderMayAnswerLaterOrNever) {
  std::vector<LoadDone> waiting;
  std::mutex mutex;
  auto opened = ByteCache::open_async(client(), options(), [&](const BrandedId&, LoadDone done) {
    const std::lock_guard lock(mutex);
    waiting.push_back(std::move(done));
  });
  ASSERT_TRUE(opened);
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    return waiting.size();
  };
  auto first = opened->get(kUserA);
  ASSERT_TRUE(eventually([&] { return count() == 1; }));
  waiting[0](std::optional<Loaded<std::string>>({"alice", kV1}));
  waiting[0](std::optional<Loaded<std::string>>({"twice", kV2}));
  EXPECT_EQ(said(first.get()), "alice/fill");
  auto second = opened->get(kUserB);
  ASSERT_TRUE(eventually([&] { return count() == 2; }));
  waiting.clear();
  EXPECT_TRUE(second.get().error().is(Errc::handler_failed));
}

TEST_F(CacheRead, WhileTheServerIsAwayTheLoaderAnswersAndL1StillHits) {
  Source source;
  source.set(kUserA, "alice", kV1);
  source.set(kUserB, "bob", kV1);
  CacheOptions with = options();
  with.l2_deadline = 1s;
  ByteCache cache = table(client(), with, source.loader());
  with.outage = CacheOutage::fail;
  ByteCache strict = table(client(), with, source.loader());
  EXPECT_EQ(got(cache, kUserA), "alice/fill");
  server().pause();
  EXPECT_EQ(got(cache, kUserA), "alice/hit");
  EXPECT_EQ(got(cache, kUserB), "bob/fill");
  EXPECT_FALSE(strict.get(kUserB).get());
  server().resume();
  EXPECT_EQ(cache.stats().outages, 1U);
  EXPECT_TRUE(eventually([&] { return stored(kUserB) == "(none)"; }));
}

TEST_F(CacheRead, AFullServerDoesNotTakeTheFillButTheCallerGetsIt) {
  Source source;
  source.set(kUserA, "alice", kV1);
  ByteCache cache = table(client(), options(), source.loader());
  raw("CONFIG", "SET", "maxmemory", "1");
  EXPECT_EQ(got(cache, kUserA), "alice/fill");
  EXPECT_TRUE(cache.put(kUserB, "bob", kV1).get().error().is(Errc::out_of_memory));
  raw("CONFIG", "SET", "maxmemory", "0");
  EXPECT_EQ(cache.stats().l2_write_errors, 1U);
  EXPECT_EQ(stored(kUserA), "(none)");
  EXPECT_EQ(got(cache, kUserA), "alice/hit");
}

TEST_F(CacheRead, BadOptionsAreNamed) {
  const auto refused = [&](auto change) {
    CacheOptions bad = options();
    change(bad);
    const auto opened = ByteCache::open(client(), bad);
    return opened ? std::string("accepted") : opened.error().message();
  };
  const auto names = [](const std::string& message, const char* what) {
    return message.find(what) != std::string::npos;
  };
  EXPECT_TRUE(names(refused([](CacheOptions& o) { o.kind = "usr"; }), "kind"));
  EXPECT_TRUE(names(refused([](CacheOptions& o) { o.kind = ""; }), "kind"));
  EXPECT_TRUE(names(refused([](CacheOptions& o) { o.ttl = 0ms; }), "ttl"));
  EXPECT_TRUE(names(refused([](CacheOptions& o) { o.ttl = std::chrono::hours(500); }), "ttl"));
  EXPECT_TRUE(names(refused([](CacheOptions& o) { o.jitter = 0.6; }), "jitter"));
  EXPECT_TRUE(names(refused([](CacheOptions& o) { o.negative_ttl = -1ms; }), "negative_ttl"));
  EXPECT_TRUE(names(refused([](CacheOptions& o) { o.l2_deadline = 0ms; }), "l2_deadline"));
  EXPECT_TRUE(names(refused([](CacheOptions& o) { o.load_threads = 0; }), "load_threads"));
}

TEST_F(CacheRead, OtherKindsAndAClosedTableSendNothing) {
  ByteCache cache = table(client(), options());
  const std::uint64_t before = client().stats().commands;
  CachedBytes into;
  EXPECT_FALSE(cache.peek(kOrder, into));
  EXPECT_TRUE(cache.get(kOrder).get().error().is(Errc::wrong_kind));
  EXPECT_TRUE(cache.put(kOrder, "x", kV1).get().error().is(Errc::wrong_kind));
  EXPECT_TRUE(cache.invalidate(kOrder).get().error().is(Errc::wrong_kind));
  EXPECT_TRUE(cache.apply(kOrder, kV1).error().is(Errc::wrong_kind));
  cache.close();
  EXPECT_TRUE(cache.get(kUserA).get().error().is(Errc::client_closed));
  EXPECT_TRUE(cache.put(kUserA, "x", kV1).get().error().is(Errc::client_closed));
  EXPECT_TRUE(cache.invalidate(kUserA).get().error().is(Errc::client_closed));
  EXPECT_EQ(client().stats().commands, before);
}

TEST_F(CacheRead, ClosingAnswersWhoWaitsForALoadThatHasNotBegun) {
  Source source;
  source.set(kUserA, "alice", kV1);
  source.hold();
  CacheOptions with = options();
  with.load_threads = 1;
  ByteCache cache = table(client(), with, source.loader());
  auto running = cache.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  auto waiting = cache.get(kUserB);
  EXPECT_FALSE(waiting.get_for(50ms));
  std::thread closing([&] { cache.close(); });
  EXPECT_TRUE(waiting.get().error().is(Errc::client_closed));
  source.release();
  closing.join();
  EXPECT_EQ(said(running.get()), "alice/fill");
}

struct Point {
  int x = 0;
  friend bool operator==(const Point&, const Point&) = default;
};
struct PointCodec {
  static Result<std::string> encode(const Point& point) { return std::to_string(point.x); }
  static Result<Point> decode(const std::string& bytes) {
    if (bytes.empty() || bytes.find_first_not_of("0123456789") != std::string::npos)
      return fail(Errc::codec_failed, "not a point");
    return Point{std::stoi(bytes)};
  }
};

TEST_F(CacheRead, ATypedTableDecodesAndSaysWhatItCannot) {
  auto opened = Cache<Point, PointCodec>::open(client(), options(), [](const BrandedId&) {
    return Result<std::optional<Loaded<Point>>>(std::optional<Loaded<Point>>({Point{7}, kV1}));
  });
  ASSERT_TRUE(opened);
  const auto filled = opened->get(kUserA).get();
  ASSERT_TRUE(filled && *filled);
  EXPECT_EQ(**filled, Point{7});
  EXPECT_EQ(filled->from, CacheFrom::fill);
  EXPECT_EQ(opened->get(kUserA).get()->from, CacheFrom::hit);
  EXPECT_EQ(stored(kUserA), frame(kV1, "7"));
  EXPECT_EQ(opened->put(kUserA, Point{8}, kV2).get(), CachePut::stored);
  raw("SET", key(kUserB), frame(kV1, "no number"), "PX", "60000");
  const std::array<BrandedId, 2> both = {kUserA, kUserB};
  const auto many = opened->get_many(both).get();
  ASSERT_TRUE(many);
  EXPECT_EQ(*(*many)[0]->value, Point{8});
  EXPECT_TRUE((*many)[1].error().is(Errc::codec_failed));
}

}  // namespace
}  // namespace echomq::test
