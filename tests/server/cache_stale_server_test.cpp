// Reads that do not wait and loaders that fail: refresh ahead, serving stale, deadlines, backing off; many puts at once;
// and the kinds of CASES 56, 57 and 59.
#include <atomic>
#include <vector>

#include "cache_fixture.hpp"

namespace echomq::test {
namespace {

/// A loader whose answers are numbered, may be held and may fail.
class Numbered {
 public:
  [[nodiscard]] LoadBytes loader() {
    return [this](const BrandedId&) -> Result<std::optional<Loaded<std::string>>> {
      const int number = ++loads_;
      while (held_)
        std::this_thread::sleep_for(1ms);
      if (fails_)
        return fail(Errc::handler_failed, "no database");
      return std::optional<Loaded<std::string>>({std::to_string(number), std::nullopt});
    };
  }
  std::atomic<int> loads_{0};
  std::atomic<bool> held_{false};
  std::atomic<bool> fails_{false};
};

class CacheStale : public CacheServerTest {};

TEST_F(CacheStale, ARowNearItsEndIsRefreshedOnceAndNobodyWaits) {
  Numbered source;
  CacheOptions with = options();
  with.ttl = 10s;
  with.jitter = 0;
  with.refresh_ahead = 0.9;
  const ByteCache cache = table(client(), with, source.loader());
  EXPECT_EQ(got(cache, kUserA), "1/fill");
  EXPECT_EQ(got(cache, kUserA), "1/hit");
  EXPECT_EQ(source.loads_, 1) << "too early";
  std::this_thread::sleep_for(1100ms);
  source.held_ = true;
  for (int i = 0; i < 50; ++i)
    ASSERT_EQ(got(cache, kUserA), "1/hit");
  EXPECT_TRUE(eventually([&] { return source.loads_ == 2; }));
  source.held_ = false;
  EXPECT_TRUE(eventually([&] { return got(cache, kUserA) == "2/hit"; }));
  EXPECT_EQ(stored(kUserA).substr(14), "2");
  EXPECT_GT(raw("PTTL", key(kUserA)).as_integer().value_or(0), 5000);
  EXPECT_EQ(source.loads_, 2);
  EXPECT_EQ(cache.stats().refreshed, 1U);
}

TEST_F(CacheStale, WhatAnotherProcessHasRefreshedIsTakenFromL2) {
  Numbered source;
  CacheOptions with = options();
  with.ttl = 2000ms;
  with.jitter = 0;
  with.refresh_ahead = 0.9;
  const ByteCache cache = table(client(), with, source.loader());
  EXPECT_EQ(got(cache, kUserA), "1/fill");
  std::this_thread::sleep_for(300ms);
  const BrandedId newer = BrandedId::encode("USR", kMaxIdValue - 5).value();
  raw("SET", key(kUserA), frame(newer, "theirs"), "PX", "10000");
  EXPECT_TRUE(eventually([&] { return got(cache, kUserA) == "theirs/hit"; }));
  EXPECT_EQ(source.loads_, 1);
}

TEST_F(CacheStale, AHerdAtTheEndOfAHotRowIsOneLoadAndServedStale) {
  Numbered source;
  CacheOptions with = options();
  with.ttl = 100ms;
  with.serve_stale = ServeStale::at_once;
  with.stale = 60s;
  const ByteCache cache = table(client(), with, source.loader());
  EXPECT_EQ(got(cache, kUserA), "1/fill");
  std::this_thread::sleep_for(250ms);
  source.held_ = true;
  std::atomic<int> stale{0};
  std::vector<std::thread> herd;
  for (int i = 0; i < 20; ++i) {
    herd.emplace_back([&] {
      for (int j = 0; j < 50; ++j)
        stale += got(cache, kUserA) == "1/stale";
    });
  }
  for (std::thread& one : herd)
    one.join();
  EXPECT_EQ(stale, 1000) << "nobody waits for the load that is held";
  EXPECT_TRUE(eventually([&] { return source.loads_ == 2; }));
  const auto old = cache.get(kUserA).get();
  EXPECT_GE(old->age, 100ms);
  EXPECT_EQ(source.loads_, 2) << "one for all of them";
  source.held_ = false;
  EXPECT_TRUE(eventually([&] { return got(cache, kUserA).starts_with("2/"); }));
}

TEST_F(CacheStale, AfterTheWindowACallerWaits) {
  Numbered source;
  CacheOptions with = options();
  with.ttl = 50ms;
  with.serve_stale = ServeStale::at_once;
  with.stale = 50ms;
  const ByteCache cache = table(client(), with, source.loader());
  EXPECT_EQ(got(cache, kUserA), "1/fill");
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(got(cache, kUserA), "2/fill");
}

TEST_F(CacheStale, WhatWasInvalidatedIsNeverServedStale) {
  Numbered source;
  CacheOptions with = options();
  with.ttl = 50ms;
  with.serve_stale = ServeStale::at_once;
  with.stale = 60s;
  const ByteCache cache = table(client(), with, source.loader());
  EXPECT_EQ(got(cache, kUserA), "1/fill");
  std::this_thread::sleep_for(150ms);
  ASSERT_TRUE(cache.invalidate(kUserA).get());
  EXPECT_EQ(got(cache, kUserA), "2/fill");
  std::this_thread::sleep_for(150ms);
  ASSERT_TRUE(cache.apply(kUserA, BrandedId::encode("USR", kMaxIdValue - 1).value()));
  EXPECT_FALSE(got(cache, kUserA).starts_with("2/")) << "something newer was heard of";
}

TEST_F(CacheStale, AFailedLoadIsAnsweredByTheOldRowAndBacksOff) {
  Numbered source;
  CacheOptions with = options();
  with.ttl = 50ms;
  with.serve_stale = ServeStale::on_failure;
  with.stale = 60s;
  with.load_backoff = 3s;
  const ByteCache cache = table(client(), with, source.loader());
  EXPECT_EQ(got(cache, kUserA), "1/fill");
  source.fails_ = true;
  std::this_thread::sleep_for(150ms);
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(got(cache, kUserA), "1/stale");
  EXPECT_EQ(source.loads_, 2) << "asked once";
  EXPECT_EQ(cache.stats().backed_off, 9U);
  EXPECT_EQ(got(cache, kUserB), "handler failed: no database");
  EXPECT_EQ(got(cache, kUserB), "handler failed: no database");
  EXPECT_EQ(source.loads_, 3);
  source.fails_ = false;
  EXPECT_TRUE(eventually([&] { return got(cache, kUserB) == "4/fill" || got(cache, kUserB) == "4/hit"; }));
}

TEST_F(CacheStale, ALateLoaderHoldsNobodyAndWhatItBringsIsKept) {
  Numbered source;
  CacheOptions with = options();
  with.load_deadline = 1s;
  const ByteCache cache = table(client(), with, source.loader());
  source.held_ = true;
  EXPECT_EQ(got(cache, kUserA), "handler failed: the loader has not answered within 1000 ms");
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(got(cache, kUserA), "handler failed: the loader has not answered within 1000 ms") << "at once";
  EXPECT_LT(std::chrono::steady_clock::now() - before, 900ms);
  EXPECT_EQ(source.loads_, 1) << "no second load while the first runs";
  EXPECT_EQ(cache.stats().load_late, 1U);
  source.held_ = false;
  EXPECT_TRUE(eventually([&] { return got(cache, kUserA) == "1/hit"; }));
}

TEST_F(CacheStale, ManyPutsGiveEachItsVerdict) {
  const ByteCache cache = table(client(), options());
  ASSERT_TRUE(cache.put(kUserB, "newer", kV3).get());
  std::vector<CachePutItem> items = {{kUserA, "a", kV1}, {kUserB, "older", kV1}, {kOrder, "wrong kind", kV1}};
  std::vector<BrandedId> more;
  for (std::uint64_t i = 0; i < 2000; ++i)
    more.push_back(BrandedId::encode("USR", 1'000'000 + i).value());
  for (const BrandedId& id : more)
    items.push_back({id, id.text(), std::nullopt});
  const auto outcomes = cache.put_many(items).get();
  ASSERT_TRUE(outcomes) << outcomes.error().message();
  ASSERT_EQ(outcomes->size(), items.size());
  EXPECT_EQ(*(*outcomes)[0], CachePut::stored);
  EXPECT_EQ(*(*outcomes)[1], CachePut::superseded);
  EXPECT_TRUE((*outcomes)[2].error().is(Errc::wrong_kind));
  for (std::size_t i = 3; i < items.size(); ++i)
    ASSERT_EQ((*outcomes)[i].value(), CachePut::stored);
  EXPECT_EQ(got(cache, kUserA), "a/hit");
  EXPECT_EQ(stored(kUserB), frame(kV3, "newer"));
  EXPECT_EQ(got(cache, more.back()), std::string(more.back().text()) + "/hit");
  EXPECT_EQ(stored(more.front()).substr(14), more.front().text());
  EXPECT_TRUE(cache.put_many({}).get());
}

TEST_F(CacheStale, BadOptionsAreNamed) {
  const auto refused = [&](auto change) {
    CacheOptions with = options();
    change(with);
    const auto opened = ByteCache::open(client(), with, Numbered().loader());
    return opened ? std::string() : opened.error().message();
  };
  EXPECT_EQ(refused([](auto& o) { o.serve_stale = ServeStale::at_once; }),
            "invalid argument: stale must be positive where serve_stale is not never, got 0ms");
  EXPECT_EQ(refused([](auto& o) { o.stale = -1ms; }), "invalid argument: stale must be 0 to 20 days, got -1ms");
  EXPECT_EQ(refused([](auto& o) { o.refresh_ahead = 1; }), "invalid argument: refresh_ahead must be 0 to 0.9, got 1");
  EXPECT_EQ(refused([](auto& o) { o.load_deadline = -1ms; }),
            "invalid argument: load_deadline must be 0 to 20 days, got -1ms");
  CacheOptions with = options();
  with.refresh_ahead = 0.5;
  EXPECT_EQ(ByteCache::open(client(), with).error().message(), "invalid argument: refresh_ahead needs a loader");
}

class CacheCase : public CacheServerTest, public ::testing::WithParamInterface<Coherence> {
 protected:
  /// CASES 56: a write of one's own has returned, then a cached read: never what was there before, though the invalidation
  /// of it is still on its way.
  void write_and_read(int writes) {
    const ByteCache cache = table(client(), options(GetParam()));
    const ByteCache other = table(client(), options(GetParam()));
    const CacheWriter writer(client(), "t");
    // All the while others read: of another table of the process, and of this one, so that what they bring from L2, asked for
    // before a write, races into the same L1 as the write. That L1 is emptied now and then, or they would hardly ask L2.
    std::vector<std::jthread> readers;
    for (const ByteCache* of : {&cache, &cache, &other}) {
      readers.emplace_back([of](const std::stop_token& stop) {
        while (!stop.stop_requested())
          (void)of->get(kUserA).get();
      });
    }
    // The writes go on until enough of them have: on a busy machine readers get their turn rarely.
    const auto raced = [&] { return cache.stats().l2_hits > static_cast<std::uint64_t>(writes / 100); };
    auto until = std::chrono::steady_clock::time_point::max();
    for (int i = 0; i < writes || (!raced() && std::chrono::steady_clock::now() < until); ++i) {
      if (i == writes)
        until = std::chrono::steady_clock::now() + 20s;
      const std::string value = std::to_string(i);
      const BrandedId version = BrandedId::encode("USR", 1'000'000 + static_cast<std::uint64_t>(i)).value();
      if (i % 4 == 0)
        cache.flush();
      const auto put = cache.put(kUserA, value, version).get();
      ASSERT_TRUE(put) << put.error().message();
      ASSERT_NO_FATAL_FAILURE(expect_read(cache, value));
      if (GetParam() == Coherence::broadcast)
        (void)writer.broadcast(kUserA, version).get();
      // Nor when what was on its way has come.
      ASSERT_NO_FATAL_FAILURE(expect_read(cache, value));
    }
    EXPECT_TRUE(raced()) << cache.stats().l2_hits << " reads of L2 beside the writes";
  }

 private:
  static void expect_read(const ByteCache& cache, const std::string& value) {
    const auto read = cache.get(kUserA).get();
    ASSERT_TRUE(read) << read.error().message();
    ASSERT_EQ(read->value, value) << "from " << to_string(read->from);
  }
};
class LongRunCacheCase : public CacheCase {};

TEST_P(CacheCase, AReadAfterOnesOwnWriteIsNeverOlder) { write_and_read(5'000); }
TEST_P(LongRunCacheCase, AReadAfterOnesOwnWriteIsNeverOlder) { write_and_read(100'000); }

/// CASES 57: a load that began before an invalidation, and ends after it.
TEST_P(CacheCase, ALoadThatAnInvalidationOvertakesIsReturnedAndNotKept) {
  Source source;
  source.set(kUserA, "old", kV1);
  const ByteCache cache = table(client(), options(GetParam()), source.loader());
  const ByteCache other = table(client(), options(GetParam()));
  source.hold();
  auto early = cache.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  // The source changes, and whoever changed it says so.
  source.set(kUserA, "new", kV2);
  ASSERT_TRUE(other.put(kUserA, "new", kV2).get());
  if (GetParam() == Coherence::tracking) {
    ASSERT_TRUE(eventually([&] { return cache.stats().coherence_applied > 0; }));
  } else if (GetParam() == Coherence::broadcast) {
    ASSERT_TRUE(CacheWriter(client(), "t").broadcast(kUserA, kV2).get());
    ASSERT_TRUE(eventually([&] { return cache.stats().coherence_stale > 0; }));
  } else {
    ASSERT_TRUE(cache.apply(kUserA, kV2));
  }
  source.release();
  EXPECT_EQ(early.get()->value, "old") << "it was asked for before";
  EXPECT_EQ(cache.get(kUserA).get()->value, "new") << "and not kept";
  EXPECT_EQ(stored(kUserA), frame(kV2, "new"));
}

/// CASES 59: the server is away. By choice: the old value, marked, or an error.
TEST_P(CacheCase, WhileTheServerIsAwayAnOldValueIsMarkedOrAnError) {
  Numbered source;
  CacheOptions with = options(GetParam());
  with.ttl = 200ms;
  with.l2_deadline = 1s;
  with.outage = CacheOutage::fail;
  const ByteCache strict = table(client(), with, source.loader());
  with.serve_stale = ServeStale::on_failure;
  with.stale = 60s;
  const ByteCache lenient = table(client(), with, source.loader());
  EXPECT_TRUE(eventually([&] { return got(lenient, kUserA).ends_with("/hit"); }));
  EXPECT_TRUE(eventually([&] { return got(strict, kUserA).ends_with("/hit"); }));
  const std::string value = *lenient.get(kUserA).get()->value;
  server().kill();
  std::this_thread::sleep_for(400ms);
  EXPECT_EQ(got(lenient, kUserA), value + "/stale");
  EXPECT_FALSE(strict.get(kUserA).get());
  EXPECT_FALSE(lenient.get(kUserB).get()) << "what L1 never had";
  EXPECT_EQ(lenient.stats().stale_served, 1U);
  // What is known to be newer ends it, server or not.
  ASSERT_TRUE(lenient.apply(kUserA, BrandedId::encode("USR", kMaxIdValue - 1).value()));
  EXPECT_FALSE(lenient.get(kUserA).get());
}

INSTANTIATE_TEST_SUITE_P(Modes, CacheCase,
                         ::testing::Values(Coherence::none, Coherence::broadcast, Coherence::tracking));

INSTANTIATE_TEST_SUITE_P(Modes, LongRunCacheCase,
                         ::testing::Values(Coherence::none, Coherence::broadcast, Coherence::tracking));

}  // namespace
}  // namespace echomq::test
