// What callers, loaders and codecs do that they should not, or that is seldom done.
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "server/cache_fixture.hpp"

namespace echomq::test {
namespace {

using Given = Result<std::optional<Loaded<std::string>>>;

class CacheMisuse : public CacheServerTest {
 protected:
  [[nodiscard]] std::string refused(const CacheOptions& with) {
    const auto opened = ByteCache::open(client(), with);
    return opened ? "accepted" : opened.error().message();
  }
};

TEST_F(CacheMisuse, TimesThatCannotBeMeantAreNamed) {
  CacheOptions with = options();
  // It was added to the clock, and was over before it began: each read was an outage.
  with.l2_deadline = std::chrono::milliseconds::max();
  EXPECT_NE(refused(with).find("l2_deadline must be 1 ms to 20 days"), std::string::npos) << refused(with);
  with = options();
  with.jitter = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(refused(with).find("jitter"), std::string::npos);
  for (const char* name : {"", "a{b}", "a b", "ä"})
    EXPECT_NE(CacheName::parse(name).error().message().find("is no cache name"), std::string::npos);
}

TEST_F(CacheMisuse, APutSaysWhatIsWrongWithIt) {
  CacheOptions with = options();
  const ByteCache plain = table(client(), with);
  with.table = "tags";
  with.tags = true;
  const ByteCache tagged = table(client(), with);
  const auto said = [](Reply<CachePut> reply) {
    const auto outcome = reply.get();
    return outcome ? "accepted" : outcome.error().message();
  };
  EXPECT_NE(said(plain.put(kUserA, "v", {.ttl = 0ms})).find("ttl must be 1 ms to 20 days, got 0ms"), std::string::npos);
  EXPECT_NE(said(plain.put(kUserA, "v", {.tags = {"a"}})).find("opened without tags"), std::string::npos);
  EXPECT_NE(said(tagged.put(kUserA, "v", {.tags = {"{a}"}})).find("not a tag: \"{a}\""), std::string::npos);
  EXPECT_NE(said(plain.put(kOrder, "v")).find("is not of this cache's kind USR"), std::string::npos);
  EXPECT_EQ(stored(kUserA), "(none)");
}

// One that threw something else than a std::exception ended the process; so did an asynchronous one that threw anything.
TEST_F(CacheMisuse, WhateverALoaderThrowsIsAnError) {
  enum class Throws : std::uint8_t { exception, number };
  for (const Throws what : {Throws::exception, Throws::number}) {
    const auto fails = [what] {
      if (what == Throws::exception)
        throw std::runtime_error("no database");
      throw 7;
    };
    const std::string why =
        what == Throws::exception ? "the loader threw: no database" : "the loader threw what is no std::exception";
    const ByteCache waits = table(client(), options(), [&](const BrandedId&) -> Given {
      fails();
      return Given(std::nullopt);
    });
    auto later = ByteCache::open_async(client(), options(), [&](const BrandedId&, const LoadDone&) { fails(); });
    ASSERT_TRUE(later);
    for (const ByteCache* cache : std::array<const ByteCache*, 2>{&waits, &*later}) {
      const auto answer = cache->get(kUserA).get();
      ASSERT_FALSE(answer);
      EXPECT_TRUE(answer.error().is(Errc::handler_failed));
      EXPECT_NE(answer.error().message().find(why), std::string::npos) << answer.error().message();
      EXPECT_EQ(cache->stats().load_errors, 1U);
    }
  }
}

TEST_F(CacheMisuse, WhatALoaderGivesIsLookedAt) {
  Loaded<std::string> gives{"alice", kV1};
  CacheOptions with = options();
  with.l1_bytes = 4096;
  ByteCache cache = table(client(), with, [&](const BrandedId&) -> Given { return gives; });
  gives.ttl = 0ms;
  EXPECT_NE(got(cache, kUserA).find("what the loader gave: ttl must be 1 ms to 20 days, got 0ms"), std::string::npos)
      << got(cache, kUserA);
  gives.ttl.reset();
  gives.tags = {"a"};
  EXPECT_NE(got(cache, kUserA).find("what the loader gave: the table was opened without tags"), std::string::npos);
  gives.tags.clear();
  EXPECT_EQ(stored(kUserA), "(none)");
  // Larger than all that L1 may hold: given, written to L2, not kept.
  gives.value.assign(8192, 'x');
  EXPECT_EQ(got(cache, kUserA), gives.value + "/fill");
  EXPECT_EQ(stored(kUserA), frame(kV1, gives.value));
  EXPECT_EQ(got(cache, kUserA), gives.value + "/l2");
  EXPECT_EQ(cache.stats().rows, 0U);
  EXPECT_EQ(cache.stats().too_large, 2U);
}

// It waited for itself for ever.
TEST_F(CacheMisuse, ALoaderThatAsksForItsOwnIdIsToldSo) {
  const ByteCache* asks = nullptr;
  CacheOptions with = options();
  with.load_threads = 2;
  std::string inside;
  ByteCache cache = table(client(), with, [&](const BrandedId& id) -> Given {
    if (id == kUserB)
      return Loaded<std::string>{"bob", kV1};
    inside = got(*asks, kUserA);
    return Loaded<std::string>{"alice, friend of " + got(*asks, kUserB), kV1};
  });
  asks = &cache;
  auto answer = cache.get(kUserA).get_for(10s);
  ASSERT_TRUE(answer) << "it waits for itself";
  EXPECT_EQ(said(*answer), "alice, friend of bob/fill/fill");
  EXPECT_NE(inside.find("the loader of USR0NgWEfAE00A asks for it"), std::string::npos) << inside;
  // Nor is another table meant, or another call.
  EXPECT_EQ(got(cache, kUserA), "alice, friend of bob/fill/hit");
  cache.flush();
  EXPECT_EQ(got(cache, kUserA), "alice, friend of bob/fill/l2");
}

TEST_F(CacheMisuse, AClosedTableSaysSoWhateverItIsAsked) {
  CacheOptions with = options();
  with.tags = true;
  ByteCache cache = table(client(), with, [](const BrandedId&) -> Given { return Loaded<std::string>{"v", kV1}; });
  EXPECT_EQ(got(cache, kUserA), "v/fill");
  cache.close();
  cache.close();
  CachedBytes into;
  EXPECT_FALSE(cache.peek(kUserA, into));
  EXPECT_FALSE(cache.serving());
  EXPECT_TRUE(cache.get_or_load(kUserA, [](const BrandedId&) { return Given(std::nullopt); })
                  .get()
                  .error()
                  .is(Errc::client_closed));
  const auto many = cache.get_many(std::array{kUserA, kUserB}).get();
  ASSERT_TRUE(many);
  for (const auto& one : *many)
    EXPECT_TRUE(one.error().is(Errc::client_closed));
  EXPECT_TRUE(cache.put_many(std::array{CachePutItem{kUserA, "v"}}).get().value()[0].error().is(Errc::client_closed));
  EXPECT_TRUE(cache.invalidate_tag("a").get().error().is(Errc::client_closed));
  EXPECT_TRUE(cache.apply(kUserA, kV2));
  cache.flush();
  EXPECT_EQ(cache.stats().hits, 0U);
}

TEST_F(CacheMisuse, ALoaderClosesItsTable) {
  ByteCache* closes = nullptr;
  ByteCache cache = table(client(), options(), [&](const BrandedId&) -> Given {
    closes->close();
    return Loaded<std::string>{"v", kV1};
  });
  closes = &cache;
  auto answer = cache.get(kUserA).get_for(10s);
  ASSERT_TRUE(answer);
  EXPECT_EQ(said(*answer), "v/fill");
  EXPECT_TRUE(cache.get(kUserA).get().error().is(Errc::client_closed));
}

// The library's thread waited for a loader that waited for it.
TEST_F(CacheMisuse, ATableIsClosedOnAThreadOfTheLibraryWhileALoaderWaitsForTheServer) {
  std::atomic<bool> begun{false};
  std::atomic<bool> goes_on{false};
  std::atomic<bool> ended{false};
  ByteCache cache = table(client(), options(), [&](const BrandedId&) -> Given {
    begun = true;
    while (!goes_on)
      std::this_thread::sleep_for(1ms);
    std::atomic<bool> called_back{false};
    // Told on the client's executor, which the one that closes blocks.
    client().command("PING").then([&](const Result<Value>&) { called_back = true; });
    const bool answered = eventually([&] { return called_back.load(); }, 5s);
    ended = true;
    return Loaded<std::string>{answered ? "v" : "the library stands still", kV1};
  });
  auto answer = cache.get(kUserA);
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  std::atomic<bool> closed{false};
  client().command("PING").then([&](const Result<Value>&) {
    goes_on = true;
    cache.close();
    closed = true;
  });
  EXPECT_EQ(said(answer.get()), "v/fill");
  EXPECT_TRUE(eventually([&] { return closed && ended; }));
}

struct Sour {
  std::string text;
};
struct SourCodec {
  static std::string encode(const Sour& sour) {
    if (sour.text == "number")
      throw 7;
    if (sour.text.empty())
      throw std::invalid_argument("nothing in it");
    return sour.text;
  }
  static Sour decode(std::string_view bytes) {
    if (bytes == "number")
      throw 7;
    if (bytes == "bad")
      throw std::out_of_range("bad bytes");
    return {std::string(bytes)};
  }
};

// What it threw ended the process where an answer was decoded, and went to the caller of a put or of a hit.
TEST_F(CacheMisuse, WhatACodecThrowsIsCodecFailed) {
  auto opened = Cache<Sour, SourCodec>::open(client(), options(), [](const BrandedId&) {
    return Result<std::optional<Loaded<Sour>>>(std::optional<Loaded<Sour>>({Sour{""}, kV1}));
  });
  ASSERT_TRUE(opened);
  const auto why = [](const auto& answer) {
    return answer ? std::string("accepted")
                  : (answer.error().is(Errc::codec_failed) ? "codec: " : "other: ") + answer.error().message();
  };
  EXPECT_NE(why(opened->get(kUserA).get()).find("nothing in it"), std::string::npos) << "of a load";
  EXPECT_NE(why(opened->put(kUserA, Sour{""}).get()).find("nothing in it"), std::string::npos);
  EXPECT_NE(why(opened->put(kUserA, Sour{"number"}, {.ttl = 1s}).get()).find("no"), std::string::npos);
  using Item = Cache<Sour, SourCodec>::PutItem;
  const auto many = opened->put_many(std::vector<Item>{{kUserA, {"number"}}, {kUserB, {"bad"}}}).get();
  ASSERT_TRUE(many);
  EXPECT_EQ(why((*many)[0]).substr(0, 7), "codec: ");
  EXPECT_EQ((*many)[1], CachePut::stored);
  for (const char* bytes : {"bad", "number"}) {
    raw("SET", key(kUserA), frame(kV3, bytes), "PX", "60000");
    opened->bytes().flush();
    EXPECT_EQ(why(opened->get(kUserA).get()).substr(0, 7), "codec: ") << "of L2";
    EXPECT_EQ(why(opened->get(kUserA).get()).substr(0, 7), "codec: ") << "of L1";
    const auto both = opened->get_many(std::array{kUserA, kUserB}).get();
    ASSERT_TRUE(both);
    for (const auto& one : *both)
      EXPECT_EQ(why(one).substr(0, 7), "codec: ");
  }
}

}  // namespace
}  // namespace echomq::test
