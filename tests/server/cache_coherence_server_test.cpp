// Tables that hear of each other: broadcast, tracking, the job lane; a lost connection empties L1 at once.
#include <mutex>
#include <vector>

#include "echomq/queue.hpp"
#include "server/cache_fixture.hpp"
#include "support/proxy.hpp"

namespace echomq::test {
namespace {

class CacheCoherence : public CacheServerTest, public ::testing::WithParamInterface<Coherence> {
 protected:
  /// What a writer of the mode does: its put, and under broadcast the message.
  void write(const ByteCache& cache, const std::string& value, const BrandedId& version) {
    ASSERT_EQ(cache.put(kUserA, value, version).get(), CachePut::stored);
    if (GetParam() == Coherence::broadcast) {
      ASSERT_TRUE(CacheWriter(client(), "t").broadcast(kUserA, version).get());
    }
  }
  [[nodiscard]] static bool holds(const ByteCache& cache) {
    CachedBytes into;
    return cache.peek(kUserA, into);
  }
};

INSTANTIATE_TEST_SUITE_P(Modes, CacheCoherence, ::testing::Values(Coherence::broadcast, Coherence::tracking),
                         [](const auto& mode) {
                           return mode.param == Coherence::broadcast ? "broadcast" : "tracking";
                         });

TEST_P(CacheCoherence, AWriteOfOneClientDropsTheRowOfAnother) {
  Client other = open(server().url());
  ByteCache one = table(client(), options(GetParam()));
  ByteCache two = table(other, options(GetParam()));
  write(one, "one", kV1);
  EXPECT_EQ(got(two, kUserA), "one/l2");
  EXPECT_EQ(got(two, kUserA), "one/hit");
  write(one, "two", kV2);
  EXPECT_TRUE(eventually([&] { return !holds(two); }));
  EXPECT_EQ(got(two, kUserA), "two/l2");
  EXPECT_EQ(got(two, kUserA), "two/hit");
  EXPECT_GE(two.stats().coherence_applied, 1U);
}

TEST_P(CacheCoherence, TwoTablesOfOneClientHearEachOther) {
  ByteCache one = table(client(), options(GetParam()));
  ByteCache two = table(client(), options(GetParam()));
  write(one, "one", kV1);
  EXPECT_EQ(got(two, kUserA), "one/l2");
  write(one, "two", kV2);
  EXPECT_TRUE(eventually([&] { return !holds(two); }));
}

TEST_P(CacheCoherence, ItsOwnFillIsKept) {
  Source source;
  source.set(kUserA, "alice", kV1);
  ByteCache cache = table(client(), options(GetParam()), source.loader());
  EXPECT_EQ(got(cache, kUserA), "alice/fill");
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(got(cache, kUserA), "alice/hit");
}

TEST_P(CacheCoherence, FromTheLossOnNothingOfBeforeIsServed) {
  Proxy proxy(server().url());
  Client behind = open(proxy.url());
  ByteCache cache = table(behind, options(GetParam()));
  raw("SET", key(kUserA), frame(kV1, "one"), "PX", "60000");
  EXPECT_EQ(got(cache, kUserA), "one/l2");
  EXPECT_TRUE(holds(cache));
  proxy.refuse_new(true);
  ASSERT_GE(proxy.cut(), 2U);
  EXPECT_TRUE(eventually([&] { return !cache.serving(); }));
  EXPECT_FALSE(holds(cache));
  // This is what it would have missed.
  raw("SET", key(kUserA), frame(kV2, "two"), "PX", "60000");
  proxy.refuse_new(false);
  EXPECT_TRUE(eventually([&] { return cache.serving(); }));
  EXPECT_FALSE(holds(cache));
  EXPECT_EQ(got(cache, kUserA), "two/l2");
  EXPECT_EQ(got(cache, kUserA), "two/hit");
  EXPECT_GE(cache.stats().flushes, 1U);
  // And it hears again.
  if (GetParam() == Coherence::broadcast) {
    ASSERT_TRUE(CacheWriter(client(), "t").broadcast(kUserA, kV3).get());
  } else {
    raw("DEL", key(kUserA));
  }
  EXPECT_TRUE(eventually([&] { return !holds(cache); }));
}

TEST_P(CacheCoherence, WhatIsReadWhileNobodyListensIsServedAndNotKept) {
  Proxy proxy(server().url());
  Client behind = open(proxy.url());
  ByteCache cache = table(behind, options(GetParam()));
  raw("SET", key(kUserA), frame(kV1, "one"), "PX", "60000");
  // Only the connection that hears is refused.
  const std::string name = GetParam() == Coherence::broadcast ? "echomq:cache" : "echomq:tracking";
  const std::string list(raw("CLIENT", "LIST").as_text().value_or(""));
  const std::size_t at = list.find("name=" + name);
  ASSERT_NE(at, std::string::npos) << list;
  const std::size_t line = list.rfind("id=", at);
  const std::string id = list.substr(line + 3, list.find(' ', line) - line - 3);
  proxy.refuse_new(true);
  raw("CLIENT", "KILL", "ID", id);
  EXPECT_TRUE(eventually([&] { return !cache.serving(); }));
  EXPECT_EQ(got(cache, kUserA), "one/l2");
  EXPECT_EQ(got(cache, kUserA), "one/l2");
  proxy.refuse_new(false);
  EXPECT_TRUE(eventually([&] { return cache.serving(); }));
  EXPECT_EQ(got(cache, kUserA), "one/l2");
  EXPECT_EQ(got(cache, kUserA), "one/hit");
}

TEST_P(CacheCoherence, ALoadThatIsOvertakenFromOutsideIsNotKept) {
  Source source;
  source.set(kUserA, "old", kV1);
  source.hold();
  ByteCache writer = table(client(), options());
  ByteCache cache = table(client(), options(GetParam()), source.loader());
  auto before = cache.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  write(writer, "new", kV2);
  if (GetParam() == Coherence::tracking)
    raw("DEL", key(kUserA));  // nobody says of which version
  // Heard, before anybody asks again.
  const std::uint64_t messages = GetParam() == Coherence::tracking ? 2 : 1;
  EXPECT_TRUE(eventually([&] {
    const CacheStats stats = cache.stats();
    return stats.coherence_applied + stats.coherence_stale >= messages;
  }));
  source.set(kUserA, "new", kV2);
  auto after = cache.get(kUserA);
  source.release();
  EXPECT_EQ(said(before.get()), "old/fill");
  EXPECT_EQ(said(after.get()).substr(0, 4), "new/");
  EXPECT_EQ(got(cache, kUserA).substr(0, 4), "new/");
  EXPECT_EQ(stored(kUserA), frame(kV2, "new"));
}

// A second message made callers who had asked after the first ones that had asked before: they got what was read before both.
TEST_F(CacheServerTest, WhoAsksBetweenTwoMessagesIsNotGivenWhatIsOlderThanTheFirst) {
  Source source;
  source.set(kUserA, "old", kV1);
  source.hold();
  ByteCache cache = table(client(), options(), source.loader());
  auto before = cache.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  source.set(kUserA, "new", kV3);
  ASSERT_TRUE(cache.apply(kUserA, kV2));
  auto between = cache.get(kUserA);
  ASSERT_TRUE(cache.apply(kUserA, kV3));
  source.release();
  EXPECT_EQ(said(before.get()), "old/fill");
  EXPECT_EQ(said(between.get()), "new/fill");
}

// A flight on behalf of those who had asked after a message answered all with what it brought, also who asked after a
// second one, which came while it ran.
TEST_F(CacheServerTest, WhoAsksAfterASecondMessageIsNotGivenWhatIsOlderByTheSecondFlight) {
  std::mutex mutex;
  std::vector<LoadDone> loads;
  const auto begun = [&] {
    const std::lock_guard lock(mutex);
    return loads.size();
  };
  const auto bring = [&](std::size_t which, const char* value, const BrandedId& version) {
    std::unique_lock lock(mutex);
    const LoadDone done = loads.at(which);
    lock.unlock();
    done(std::optional(Loaded<std::string>{value, version}));
  };
  auto opened = ByteCache::open_async(client(), options(), [&](const BrandedId&, LoadDone done) {
    const std::lock_guard lock(mutex);
    loads.push_back(std::move(done));
  });
  ASSERT_TRUE(opened);
  ByteCache cache = *std::move(opened);
  auto first = cache.get(kUserA);
  ASSERT_TRUE(eventually([&] { return begun() == 1; }));
  ASSERT_TRUE(cache.apply(kUserA, kV2));
  auto second = cache.get(kUserA);
  bring(0, "old", kV1);
  EXPECT_EQ(said(first.get()), "old/fill");
  ASSERT_TRUE(eventually([&] { return begun() == 2; }));
  ASSERT_TRUE(cache.apply(kUserA, kV3));
  auto third = cache.get(kUserA);
  bring(1, "newer", kV2);
  EXPECT_EQ(said(second.get()), "newer/fill");
  ASSERT_TRUE(eventually([&] { return begun() == 3; }));
  bring(2, "newest", kV3);
  EXPECT_EQ(said(third.get()), "newest/fill");
  EXPECT_EQ(got(cache, kUserA), "newest/hit");
}

// A message for an id without a row was forgotten: when L2 had something older, from a load that was slow or because the
// newer row was lost, that was served again.
TEST_F(CacheServerTest, WhatIsOlderThanAMessageIsAMissAlsoWhereThereWasNoRow) {
  Source source;
  source.set(kUserA, "new", kV2);
  ByteCache cache = table(client(), options(), source.loader());
  EXPECT_EQ(cache.apply(kUserA, kV2), Applied::stale);
  raw("SET", key(kUserA), frame(kV1, "old"), "PX", "60000");
  EXPECT_EQ(got(cache, kUserA), "new/fill");
  EXPECT_EQ(stored(kUserA), frame(kV2, "new"));
  EXPECT_EQ(got(cache, kUserA), "new/hit");
  // As new or newer is what was meant.
  EXPECT_EQ(cache.apply(kUserB, kV1), Applied::stale);
  raw("SET", key(kUserB), frame(kV1, "same"), "PX", "60000");
  EXPECT_EQ(got(cache, kUserB), "same/l2");
}

// When the source itself is behind, a caller gets what there is by one load; nothing of it is kept.
TEST_F(CacheServerTest, ASourceThatIsBehindAMessageIsAskedOnceARead) {
  Source source;
  source.set(kUserA, "old", kV1);
  ByteCache cache = table(client(), options(), source.loader());
  EXPECT_EQ(cache.apply(kUserA, kV2), Applied::stale);
  EXPECT_EQ(got(cache, kUserA), "old/fill");
  EXPECT_EQ(source.loads(), 1);
  EXPECT_EQ(stored(kUserA), "(none)");
  EXPECT_EQ(got(cache, kUserA), "old/fill");
  EXPECT_EQ(source.loads(), 2);
  EXPECT_EQ(cache.stats().superseded, 2U);
  source.set(kUserA, "new", kV2);
  EXPECT_EQ(got(cache, kUserA), "new/fill");
  EXPECT_EQ(got(cache, kUserA), "new/hit");
}

// L2 had lost the newer row, so it took the older put; this process knew better and kept it all the same.
TEST_F(CacheServerTest, APutOlderThanAMessageIsNotKept) {
  Source source;
  source.set(kUserA, "new", kV2);
  source.set(kUserB, "new", kV2);
  ByteCache cache = table(client(), options(), source.loader());
  EXPECT_EQ(cache.apply(kUserA, kV2), Applied::stale);
  EXPECT_EQ(cache.apply(kUserB, kV2), Applied::stale);
  CachedBytes row;
  EXPECT_EQ(cache.put(kUserA, "old", kV1).get(), CachePut::stored);
  EXPECT_FALSE(cache.peek(kUserA, row));
  const CachePutItem item{.id = kUserB, .value = "old", .version = kV1};
  const auto outcomes = cache.put_many({&item, 1}).get();
  ASSERT_TRUE(outcomes);
  EXPECT_EQ(outcomes->front(), CachePut::stored);
  EXPECT_FALSE(cache.peek(kUserB, row));
  for (const BrandedId& id : {kUserA, kUserB}) {
    EXPECT_EQ(got(cache, id), "new/fill");
    EXPECT_EQ(stored(id), frame(kV2, "new"));
    EXPECT_EQ(cache.put(id, "newest", kV3).get(), CachePut::stored);
    EXPECT_EQ(got(cache, id), "newest/hit");
  }
}

// What was overtaken is given to those who asked before, and kept nowhere: the next who asked got what L2 had, which was less.
TEST_F(CacheServerTest, WhatWasGivenWithoutBeingKeptIsNotFollowedByLess) {
  Source source;
  source.set(kUserA, "new", kV2);
  source.hold();
  ByteCache cache = table(client(), options(), source.loader());
  auto before = cache.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  ASSERT_TRUE(cache.invalidate(kUserA).get());
  raw("SET", key(kUserA), frame(kV1, "old"), "PX", "60000");
  source.release();
  EXPECT_EQ(said(before.get()), "new/fill");
  EXPECT_EQ(got(cache, kUserA), "new/fill");
  EXPECT_EQ(stored(kUserA), frame(kV2, "new"));
}

TEST_F(CacheServerTest, WithoutALoaderATableTakesWhatL2HasAlsoAfterAMessage) {
  ByteCache cache = table(client(), options());
  EXPECT_EQ(cache.apply(kUserA, kV2), Applied::stale);
  EXPECT_EQ(got(cache, kUserA), "(absent)/l2");
  raw("SET", key(kUserA), frame(kV1, "old"), "PX", "60000");
  EXPECT_EQ(got(cache, kUserA), "old/l2");
  EXPECT_EQ(got(cache, kUserA), "old/hit");
}

TEST_F(CacheServerTest, WhatIsKnownOfARowWithATimeOfItsOwnIsKnownForAsLong) {
  Source source;
  source.set(kUserA, "new", kV2);
  CacheOptions with = options();
  with.ttl = 40ms;
  ByteCache cache = table(client(), with, source.loader());
  EXPECT_EQ(cache.put(kUserA, "new", {.version = kV2, .ttl = 60s}).get(), CachePut::stored);
  raw("SET", key(kUserA), frame(kV1, "old"), "PX", "60000");
  cache.flush();
  std::this_thread::sleep_for(150ms);
  EXPECT_EQ(got(cache, kUserA), "new/fill");
}

TEST_P(CacheCoherence, AFlushedDatabaseOrGarbageOnTheChannelBreaksNothing) {
  ByteCache cache = table(client(), options(GetParam()));
  raw("SET", key(kUserA), frame(kV1, "one"), "PX", "60000");
  EXPECT_EQ(got(cache, kUserA), "one/l2");
  for (const std::string& garbage :
       {std::string(), std::string("mark"), std::string(29, 'x'), std::string("ORD0NgWEfAE00A:USR0NgWEfAEJf9")})
    raw("PUBLISH", "ecc:{t}:coh", garbage);
  raw("SET", "ecc:{t}:no id at all", "x");
  raw("SET", "ecc:{tt}:USR0NgWEfAE00A", "of another table");
  EXPECT_TRUE(eventually([&] { return cache.stats().coherence_ignored >= 1; }));
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(got(cache, kUserA), "one/hit");
  if (GetParam() == Coherence::tracking) {
    raw("FLUSHDB");
    EXPECT_TRUE(eventually([&] { return !holds(cache); }));
  }
}

/// Two processes' worth of tables under writes with rising versions: whoever has heard of a version never reads an older.
TEST_P(CacheCoherence, VersionsNeverGoBackUnderWritesLoadsAndDrops) {
  Client other = open(server().url());
  ByteCache writer = table(client(), options(GetParam()));
  ByteCache reader = table(other, options(GetParam()));
  std::atomic<bool> stop{false};
  std::atomic<int> reads{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
        // Heard means applied: what this table has dropped or read is the floor.
        const auto answer = reader.get(kUserA).get();
        ASSERT_TRUE(answer) << answer.error().message();
        ++reads;
        if (!*answer)
          continue;
        const auto again = reader.get(kUserA).get();
        ASSERT_TRUE(again && *again);
        ASSERT_FALSE(is_newer(answer->version, again->version)) << "a later read gave an older version";
      }
    });
  }
  // The writes go on until the readers have raced with them: on a busy machine those get their turn rarely.
  int written = 0;
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (written < 1500 || (reads <= 100 && std::chrono::steady_clock::now() < until))
    write(writer, std::to_string(written++), client().mint("EVT").value());
  stop = true;
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_GT(reads, 100);
  EXPECT_TRUE(eventually([&] { return reader.get(kUserA).get()->value == std::to_string(written - 1); }));
}

TEST_P(CacheCoherence, ATableMayGoWhileItHears) {
  for (int round = 0; round < 20; ++round) {
    ByteCache cache = table(client(), options(GetParam()));
    for (int i = 0; i < 5; ++i) {
      (void)client().command("SET", key(kUserA), frame(kV1, "one"), "PX", "60000");
      (void)client().command("PUBLISH", "ecc:{t}:coh", CoherenceMessage{kUserA, kV2}.text());
      (void)cache.get(kUserA);
    }
  }
  EXPECT_LT(client().stats().connections, 30U);
}

TEST_F(CacheServerTest, TheJobLaneCarriesTheSameBytes) {
  ByteCache cache = table(client(), options());
  ASSERT_EQ(cache.put(kUserA, "one", kV1).get(), CachePut::stored);
  const Queue queue = client().queue(coherence_queue("t"));
  ASSERT_TRUE(queue.enqueue(CoherenceMessage{kUserA, kV2}.text(), {.lane = LaneId("PRT0NgWEfAE00X")}).get());
  const auto job = queue.claim_lane().get();
  ASSERT_TRUE(job && *job);
  const auto message = CoherenceMessage::parse((*job)->payload);
  ASSERT_TRUE(message);
  EXPECT_EQ(cache.apply(message->id, message->version), Applied::applied);
}

TEST_F(CacheServerTest, DropL2DeletesOnlyWhatIsOlder) {
  const CacheWriter writer(client(), "t");
  EXPECT_EQ(writer.drop_l2(kUserA, kV2).get(), false);
  raw("SET", key(kUserA), frame(kV2, "alice"));
  EXPECT_EQ(writer.drop_l2(kUserA, kV1).get(), false);
  EXPECT_EQ(writer.drop_l2(kUserA, kV2).get(), false);
  EXPECT_EQ(writer.drop_l2(kUserA, kV3).get(), true);
  EXPECT_EQ(writer.broadcast(kUserA, kV3).get(), 0);
}

TEST_F(CacheServerTest, ACoherentTableIsNotOpenedWhereNobodyAnswers) {
  raw("ACL", "SETUSER", "default", "-subscribe");
  const auto refused = ByteCache::open(client(), options(Coherence::broadcast));
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(Errc::no_permission)) << refused.error().message();
}

}  // namespace
}  // namespace echomq::test
