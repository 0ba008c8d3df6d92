// Filling a table from a stream: newer wins, any earlier position will do, and it says how far behind it is.
#include "echomq/hydration.hpp"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "server/cache_fixture.hpp"
#include "support/proxy.hpp"

namespace echomq::test {
namespace {

class CacheHydrationTest : public CacheServerTest {
 protected:
  [[nodiscard]] Stream stream() { return client().stream("q", "s"); }
  EventId append(const BrandedId& id, const std::string& value) {
    const Field fields[] = {{"key", id.text()}, {"value", value}};
    const auto appended = stream().append(fields).get();
    EXPECT_TRUE(appended) << appended.error().message();
    return *appended;
  }
  [[nodiscard]] HydrationStats hydrated(const ByteCache& cache, HydrationOptions with = {}) {
    auto started = CacheHydration::start(cache, stream(), std::move(with));
    EXPECT_TRUE(started) << started.error().message();
    const auto ended = started->wait(10s);
    EXPECT_TRUE(ended) << ended.error().message();
    return ended.value_or(HydrationStats());
  }
  [[nodiscard]] static BrandedId user(std::uint64_t number) {
    return *BrandedId::encode("USR", kUserA.value() + number);
  }
};

TEST_F(CacheHydrationTest, EachRecordIsARowOfItsVersion) {
  ByteCache cache = table(client(), options());
  (void)append(kUserA, "one");
  const EventId second = append(kUserA, "two");
  const EventId third = append(kUserB, "three");
  const HydrationStats stats = hydrated(cache);
  EXPECT_EQ(stats.records, 3U);
  EXPECT_EQ(stats.placed, 2U);
  EXPECT_EQ(stats.folded, 1U);
  EXPECT_EQ(stats.position, third.entry_id().text());
  EXPECT_EQ(stats.lag, 0ms);
  EXPECT_EQ(stored(kUserA), frame(second, "two"));
  EXPECT_EQ(got(cache, kUserA), "two/hit");
  EXPECT_EQ(got(cache, kUserB), "three/hit");
  const HydrationStats again = hydrated(cache, {.behind = stats.position});
  EXPECT_EQ(again.records, 0U);
  EXPECT_EQ(again.position, stats.position);
}

// In the canonical runtime an old window that was read again replaced newer rows in both layers.
TEST_F(CacheHydrationTest, NothingNewerIsReplaced) {
  ByteCache cache = table(client(), options());
  (void)append(kUserA, "from the stream");
  const BrandedId version = client().mint("USR").value();
  ASSERT_EQ(cache.put(kUserA, "newer", version).get(), CachePut::stored);
  const HydrationStats stats = hydrated(cache);
  EXPECT_EQ(stats.superseded, 1U);
  EXPECT_EQ(stats.placed, 0U);
  EXPECT_EQ(got(cache, kUserA), "newer/hit");
  EXPECT_EQ(stored(kUserA), frame(version, "newer"));
}

TEST_F(CacheHydrationTest, PagesAreFoldedAndAllArePlaced) {
  ByteCache cache = table(client(), options());
  for (std::uint64_t i = 0; i < 95; ++i)
    (void)append(user(i % 40), std::to_string(i));
  const HydrationStats stats = hydrated(cache, {.page = 30});
  EXPECT_EQ(stats.records, 95U);
  EXPECT_EQ(stats.placed + stats.folded, 95U);
  for (std::uint64_t i = 55; i < 95; ++i)
    EXPECT_EQ(got(cache, user(i % 40)), std::to_string(i) + "/hit");
}

TEST_F(CacheHydrationTest, ItBeginsAtAnInstant) {
  ByteCache cache = table(client(), options());
  (void)append(kUserA, "early");
  std::this_thread::sleep_for(20ms);
  const EventId late = append(kUserB, "late");
  EXPECT_EQ(hydrated(cache, {.since = late.minted_at()}).records, 1U);
  EXPECT_EQ(stored(kUserA), "(none)");
  EXPECT_EQ(got(cache, kUserB), "late/hit");
}

TEST_F(CacheHydrationTest, BadRecordsAreSkippedOrStopIt) {
  ByteCache cache = table(client(), options());
  const EventId good = append(kUserA, "good");
  (void)append(kOrder, "of another kind");
  const Field no_value[] = {{"key", kUserB.text()}};
  ASSERT_TRUE(stream().append(no_value).get());
  raw("XADD", "emq:{q}:stream:s", "*", "key", kUserB.text(), "value", "without a receipt");
  (void)append(kUserB, "last");
  const HydrationStats stats = hydrated(cache);
  EXPECT_EQ(stats.skipped, 3U);
  EXPECT_NE(stats.last_skipped.find("no record id"), std::string::npos) << stats.last_skipped;
  EXPECT_EQ(got(cache, kUserB), "last/hit");

  ByteCache other = table(client(), options());
  raw("DEL", key(kUserA), key(kUserB));
  auto started = CacheHydration::start(other, stream(), {.bad = BadRecord::stop});
  ASSERT_TRUE(started);
  const auto stopped = started->wait(10s);
  ASSERT_FALSE(stopped);
  EXPECT_TRUE(stopped.error().is(Errc::invalid_argument)) << stopped.error().message();
  EXPECT_NE(stopped.error().text.find("ORD0NgWEfAE00A is none of kind USR"), std::string::npos) << stopped.error().text;
  EXPECT_EQ(started->stats().position, good.entry_id().text()) << "whoever goes on from here meets it again";
  EXPECT_EQ(got(other, kUserA), "good/hit") << "what came before it";
  EXPECT_EQ(stored(kUserB), "(none)");
}

TEST_F(CacheHydrationTest, ItFollowsAndSaysHowFarBehindItIs) {
  Proxy proxy(server().url());
  Client behind = open(proxy.url());
  ByteCache cache = table(behind, options());
  const Stream followed = behind.stream("q", "s");
  auto started = CacheHydration::start(cache, followed, {.ends = HydrationEnds::never, .poll = 5ms});
  ASSERT_TRUE(started);
  const EventId first = append(kUserA, "one");
  ASSERT_TRUE(started->wait(10s));
  EXPECT_EQ(started->stats().position, first.entry_id().text());
  EXPECT_EQ(got(cache, kUserA), "one/hit");
  // While it cannot read it is behind; then it catches up by itself.
  proxy.refuse_new(true);
  (void)proxy.cut();
  std::this_thread::sleep_for(60ms);
  const EventId second = append(kUserA, "two");
  proxy.refuse_new(false);
  ASSERT_TRUE(eventually([&] { return started->stats().position == second.entry_id().text(); }));
  EXPECT_EQ(started->stats().lag, 0ms);
  EXPECT_EQ(got(cache, kUserA), "two/hit");
  started->stop();
  (void)append(kUserA, "three");
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(got(cache, kUserA), "two/hit");
}

TEST_F(CacheHydrationTest, WhatWasTrimmedUnreadIsAGap) {
  ByteCache cache = table(client(), options());
  const EventId first = append(kUserA, "one");
  const EventId second = append(kUserA, "two");
  (void)append(kUserB, "three");
  EXPECT_EQ(hydrated(cache, {.behind = std::string(first.entry_id().text())}).gaps, 0U);
  ASSERT_TRUE(stream().trim_to(2).get());
  EXPECT_EQ(hydrated(cache, {.behind = std::string(second.entry_id().text())}).gaps, 0U);
  ASSERT_TRUE(stream().trim_to(1).get());
  EXPECT_EQ(hydrated(cache, {.behind = std::string(first.entry_id().text())}).gaps, 1U);
  EXPECT_EQ(hydrated(cache).gaps, 0U) << "who begins with the oldest misses nothing that is there";
}

TEST_F(CacheHydrationTest, AStreamMayBeTrimmedUnderIt) {
  ByteCache cache = table(client(), options());
  auto started = CacheHydration::start(cache, stream(), {.ends = HydrationEnds::never, .poll = 1ms});
  ASSERT_TRUE(started);
  const auto caught_up = [&](const EventId& last) {
    ASSERT_TRUE(eventually([&] { return started->stats().position == last.entry_id().text(); }));
    ASSERT_TRUE(started->wait(10s));
  };
  // What has been read may go: nothing is missed.
  for (int round = 0; round < 5; ++round) {
    EventId last;
    for (std::uint64_t i = 0; i < 20; ++i)
      last = append(user(i), std::to_string(round));
    caught_up(last);
    ASSERT_TRUE(stream().trim_to(0).get());
  }
  EXPECT_EQ(started->stats().gaps, 0U);
  EXPECT_EQ(started->stats().records, 100U);
  // Appended and trimmed in one moment: what was never there to be read is a gap, and the rest is placed.
  std::vector<std::string> words = {"EVAL",
                                    "for i = 1, #ARGV, 2 do redis.call('XADD', KEYS[1], ARGV[i], 'id', ARGV[i + 1], "
                                    "'key', 'USR0NgWEfAE00B', 'value', i) end "
                                    "return redis.call('XTRIM', KEYS[1], 'MAXLEN', 2)",
                                    "1", "emq:{q}:stream:s"};
  EventId last;
  for (int i = 0; i < 5; ++i) {
    last = *EventId::from(*client().mint("EVT"));
    words.emplace_back(last.entry_id().text());
    words.emplace_back(last.text());
  }
  const std::vector<std::string_view> parts(words.begin(), words.end());
  ASSERT_TRUE(client().command(parts).get());
  caught_up(last);
  EXPECT_EQ(started->stats().gaps, 1U);
  EXPECT_EQ(started->stats().records, 102U);
  EXPECT_EQ(got(cache, kUserB), "9/hit");
}

// Killed and started again at what it had said last: no record is left out, and none is read twice.
TEST_F(CacheHydrationTest, ItStopsAndGoesOnAtAPosition) {
  ByteCache cache = table(client(), options());
  for (std::uint64_t i = 0; i < 300; ++i)
    (void)append(user(i % 50), std::to_string(i));
  std::string position;
  std::uint64_t records = 0;
  int runs = 0;
  for (; records < 300 && runs < 500; ++runs) {
    auto started = CacheHydration::start(cache, stream(), {.behind = position, .page = 7});
    ASSERT_TRUE(started);
    (void)eventually([&] { return started->stats().records > 0; });
    started->stop();
    const HydrationStats stats = started->stats();
    EXPECT_EQ(stats.gaps, 0U);
    records += stats.records;
    position = stats.position;
  }
  EXPECT_EQ(records, 300U);
  for (std::uint64_t i = 250; i < 300; ++i)
    EXPECT_EQ(got(cache, user(i % 50)), std::to_string(i) + "/hit");
}

// Others put, and the stream says other things, at the same time: what stands in the end is the newest, and on the way no
// row went back.
TEST_F(CacheHydrationTest, NewerWinsAgainstConcurrentPuts) {
  ByteCache cache = table(client(), options());
  Client elsewhere = open(server().url());
  ByteCache other = table(elsewhere, options());
  auto started = CacheHydration::start(cache, stream(), {.ends = HydrationEnds::never, .page = 3, .poll = 1ms});
  ASSERT_TRUE(started);
  std::atomic<bool> over{false};
  std::vector<std::string> newest(4);
  std::thread writer([&] {
    for (std::uint64_t i = 0; i < 400; ++i) {
      // Known first, put later: between the two the stream may have said something newer.
      const BrandedId version = elsewhere.mint("USR").value();
      if (i % 3 == 0)
        std::this_thread::sleep_for(1ms);
      EXPECT_TRUE(other.put(user(i % 4), "put", version).get());
      std::string& most = newest[i % 4];
      most = std::max(most, std::string(version.text().substr(3)));
    }
  });
  std::thread reader([&] {
    std::vector<std::string> l2(4), l1(4);
    while (!over) {
      for (std::uint64_t i = 0; i < 4; ++i) {
        const std::string row = stored(user(i));
        if (row.size() > 14) {
          EXPECT_GE(row.substr(3, 11), l2[i]) << "a row of the server went back";
          l2[i] = row.substr(3, 11);
        }
        CachedBytes held;
        if (cache.peek(user(i), held)) {
          EXPECT_GE(held.version.text().substr(3), l1[i]) << "a row of this process went back";
          l1[i] = held.version.text().substr(3);
        }
      }
    }
  });
  std::vector<std::string> said(4);
  for (std::uint64_t i = 0; i < 400; ++i)
    said[i % 4] = append(user(i % 4), "stream").text().substr(3);
  writer.join();
  EXPECT_TRUE(started->wait(10s));
  over = true;
  reader.join();
  for (std::uint64_t i = 0; i < 4; ++i)
    EXPECT_EQ(stored(user(i)).substr(3, 11), std::max(said[i], newest[i]));
}

// What a table has heard of is newer than the record that comes late.
TEST_F(CacheHydrationTest, WhatWasHeardOfIsNotBroughtBack) {
  ByteCache cache = table(client(), options());
  CacheWriter writer(client(), "t");
  ASSERT_EQ(cache.put(kUserA, "old").get(), CachePut::stored);
  (void)append(kUserA, "late");
  const BrandedId newer = client().mint("USR").value();
  ASSERT_EQ(cache.put(kUserA, "newer", newer).get(), CachePut::stored);
  ASSERT_EQ(cache.apply(kUserA, client().mint("USR").value()), Applied::applied);
  EXPECT_EQ(hydrated(cache).superseded, 1U);
  EXPECT_EQ(stored(kUserA), frame(newer, "newer"));
  CachedBytes held;
  EXPECT_FALSE(cache.peek(kUserA, held) && *held.value != "newer");
}

TEST_F(CacheHydrationTest, WhoWaitsInVainIsToldWhy) {
  Client impatient = open(server().url(), {.deadline = 100ms});
  ByteCache cache = table(impatient, options());
  raw("SET", "emq:{q}:stream:s", "no stream");
  const Stream wrong = impatient.stream("q", "s");
  auto started = CacheHydration::start(cache, wrong, {.poll = 5ms});
  ASSERT_TRUE(started);
  const auto late = started->wait(200ms);
  ASSERT_FALSE(late);
  EXPECT_TRUE(late.error().is(Errc::timeout));
  EXPECT_NE(late.error().text.find("WRONGTYPE"), std::string::npos) << late.error().text;
  raw("DEL", "emq:{q}:stream:s");
  EXPECT_TRUE(started->wait(10s)) << "it had not given up";
}

TEST_F(CacheHydrationTest, OptionsAreChecked) {
  ByteCache cache = table(client(), options());
  for (const HydrationOptions& bad : {HydrationOptions{.key_field = ""}, HydrationOptions{.behind = "12"},
                                      HydrationOptions{.behind = "1-1", .since = UnixMillis(1700000000000ms)},
                                      HydrationOptions{.page = 0}, HydrationOptions{.poll = 0ms}}) {
    const auto refused = CacheHydration::start(cache, stream(), bad);
    ASSERT_FALSE(refused);
    EXPECT_TRUE(refused.error().is(Errc::invalid_argument)) << refused.error().message();
  }
}

}  // namespace
}  // namespace echomq::test
