// The cache's edges: codecs and loaders that throw, the client's own bound, refreshes of short rows, late loaders, sizes.
#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "server/cache_fixture.hpp"

namespace echomq::test {
namespace {

class CacheEdges : public CacheServerTest {};

struct Note {
  std::string text;
};
/// Throws what its value says.
struct ThrowingCodec {
  static void throw_for(const std::string& text) {
    if (text.starts_with("throw"))
      throw std::runtime_error("no " + text);
    if (text == "number")
      throw 7;  // NOLINT(hicpp-exception-baseclass)
  }
  static std::string encode(const Note& note) {
    throw_for(note.text);
    return note.text;
  }
  static Note decode(const std::string& bytes) {
    throw_for(bytes);
    return {bytes};
  }
};
using Notes = Cache<Note, ThrowingCodec>;

[[nodiscard]] std::string note_in(const Result<Cached<Note>>& answer) {
  if (!answer)
    return answer.error().message();
  return answer->value ? answer->value->text : "(absent)";
}
constexpr const char* kCodecThrew = "codec failed: no throw";

TEST_F(CacheEdges, WhatADecodeThrowsIsAnError) {
  raw("SET", key(kUserA), frame(kV1, "throw"), "PX", "60000");
  raw("SET", key(kUserB), frame(kV1, "number"), "PX", "60000");
  auto opened = Notes::open(client(), options());
  ASSERT_TRUE(opened);
  EXPECT_EQ(note_in(opened->get(kUserA).get()), kCodecThrew) << "of L2";
  EXPECT_EQ(note_in(opened->get(kUserA).get()), kCodecThrew) << "of L1";
  EXPECT_EQ(note_in(opened->get(kUserB).get()), "codec failed: an exception that is not a std::exception");
  opened->bytes().flush();
  const std::array<BrandedId, 2> both = {kUserA, kUserB};
  for (int i = 0; i < 2; ++i) {
    const auto many = opened->get_many(both).get();
    ASSERT_TRUE(many);
    EXPECT_EQ(note_in((*many)[0]), kCodecThrew);
    EXPECT_TRUE((*many)[1].error().is(Errc::codec_failed));
  }
  const auto load = [](const BrandedId&) { return Result<std::optional<Loaded<Note>>>(std::optional<Loaded<Note>>()); };
  EXPECT_EQ(note_in(opened->get_or_load(kUserA, load).get()), kCodecThrew);
}

TEST_F(CacheEdges, WhatAnEncodeThrowsIsAnError) {
  auto opened = Notes::open(client(), options(), [](const BrandedId&) {
    return Result<std::optional<Loaded<Note>>>(std::optional<Loaded<Note>>({Note{"throw"}, kV1}));
  });
  ASSERT_TRUE(opened);
  const auto refused = [](const Result<CachePut>& outcome) {
    return outcome ? std::string("stored") : outcome.error().message();
  };
  EXPECT_EQ(refused(opened->put(kUserA, {"throw"}).get()), kCodecThrew);
  EXPECT_EQ(refused(opened->put(kUserA, {"throw"}, CachePutOptions{.ttl = 10s}).get()), kCodecThrew);
  const std::vector<Notes::PutItem> items = {{kUserA, {"throw"}}, {kUserB, {"good"}}};
  const auto many = opened->put_many(items).get();
  ASSERT_TRUE(many);
  EXPECT_EQ(refused((*many)[0]), kCodecThrew);
  EXPECT_EQ(refused((*many)[1]), "stored");
  EXPECT_EQ(note_in(opened->get(kUserA).get()), kCodecThrew) << "of what the loader gave";
  EXPECT_EQ(stored(kUserA), "(none)");

  auto task =
      Notes::open_task(client(), options(), [](BrandedId, CancelToken) -> Task<Result<std::optional<Loaded<Note>>>> {
        co_return std::optional<Loaded<Note>>({Note{"throw"}, kV1});
      });
  ASSERT_TRUE(task);
  EXPECT_EQ(note_in(task->get(kUserA).get()), kCodecThrew);
}

TEST_F(CacheEdges, WhatAnAsynchronousLoaderThrowsIsAnError) {
  std::atomic<int> calls{0};
  auto opened = ByteCache::open_async(client(), options(), [&](const BrandedId&, const LoadDone& done) {
    switch (++calls) {
      case 1: throw std::runtime_error("no database");
      case 2: throw 7;  // NOLINT(hicpp-exception-baseclass)
      default: break;
    }
    done(std::optional<Loaded<std::string>>({"alice", kV1}));
    throw std::runtime_error("too late");
  });
  ASSERT_TRUE(opened);
  EXPECT_EQ(got(*opened, kUserA), "handler failed: the loader threw: no database");
  EXPECT_EQ(got(*opened, kUserA), "handler failed: the loader threw what is no std::exception");
  EXPECT_EQ(opened->stats().load_errors, 2U);
  EXPECT_EQ(got(*opened, kUserA), "alice/fill");
  EXPECT_EQ(got(*opened, kUserA), "alice/hit");
}

TEST_F(CacheEdges, WhatALoaderThrowsThatIsNoExceptionIsAnErrorToo) {
  const LoadBytes load = [](const BrandedId&) -> Result<std::optional<Loaded<std::string>>> {
    throw 7;  // NOLINT(hicpp-exception-baseclass)
  };
  const ByteCache cache = table(client(), options(), load);
  EXPECT_EQ(got(cache, kUserA), "handler failed: the loader threw what is no std::exception");
  EXPECT_EQ(said(cache.get_or_load(kUserA, load).get()), "handler failed: the loader threw what is no std::exception");
  EXPECT_EQ(cache.stats().load_errors, 2U);
}

TEST_F(CacheEdges, TheClientsOwnBoundIsNoOutage) {
  const Client small =
      open(server().url(), {.max_in_flight = 4, .overflow = Overflow::refuse, .node_lease = NodeLease::never});
  Source source;
  source.set(kUserA, "alice", kV1);
  for (const std::chrono::milliseconds lease : {0ms, 60'000ms}) {
    CacheOptions with = options();
    with.load_lease = lease;
    const ByteCache cache = table(small, with, source.loader());
    const std::uint64_t outages = cache.stats().outages;
    server().pause();
    std::vector<Reply<Value>> waiting;
    for (int i = 0; i < 4; ++i)
      waiting.push_back(small.command("PING"));
    const auto answer = cache.get(kUserA).get();
    server().resume();
    ASSERT_FALSE(answer);
    EXPECT_TRUE(answer.error().is(Errc::overloaded)) << answer.error().message();
    EXPECT_EQ(source.loads(), 0);
    EXPECT_EQ(cache.stats().outages, outages);
    for (Reply<Value>& one : waiting)
      EXPECT_TRUE(one.get());
  }
  const ByteCache cache = table(small, options(), source.loader());
  EXPECT_EQ(got(cache, kUserA), "alice/fill");
}

TEST_F(CacheEdges, ATypedTableIsPeekedInto) {
  auto opened = Notes::open(client(), options());
  ASSERT_TRUE(opened);
  const Notes& notes = *opened;
  raw("SET", key(kUserA), frame(kV1, "alice"), "PX", "60000");
  raw("SET", key(kUserB), frame(kV1, "throw"), "PX", "60000");
  const auto nothing = notes.peek(kUserA);
  ASSERT_TRUE(nothing);
  EXPECT_FALSE(*nothing) << "L2 is not looked at";
  EXPECT_EQ(note_in(notes.get(kUserA).get()), "alice");
  const std::uint64_t before = client().stats().commands;
  const auto there = notes.peek(kUserA);
  ASSERT_TRUE(there && *there && (*there)->value);
  EXPECT_EQ((*there)->value->text, "alice");
  EXPECT_EQ((*there)->version, kV1);
  EXPECT_EQ((*there)->from, CacheFrom::hit);
  const auto other_kind = notes.peek(kOrder);
  ASSERT_TRUE(other_kind);
  EXPECT_FALSE(*other_kind);
  EXPECT_EQ(client().stats().commands, before);
  EXPECT_EQ(notes.stats().misses, 1U);
  (void)notes.get(kUserB).get();
  const auto refused = notes.peek(kUserB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(), kCodecThrew);
}

TEST_F(CacheEdges, ARowWithATimeOfItsOwnIsRefreshedNearItsOwnEnd) {
  std::atomic<int> loads{0};
  const LoadBytes load = [&](const BrandedId&) -> Result<std::optional<Loaded<std::string>>> {
    return std::optional<Loaded<std::string>>({.value = std::to_string(++loads), .version = std::nullopt, .ttl = 5s});
  };
  CacheOptions with = options();
  with.jitter = 0;
  with.refresh_ahead = 0.5;
  const ByteCache cache = table(client(), with, load);
  const ByteCache other = table(client(), with, load);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(got(cache, kUserA), "1/fill");
  EXPECT_EQ(got(other, kUserA), "1/l2");
  const std::array<BrandedId, 1> one = {kUserA};
  while (std::chrono::steady_clock::now() - began < 800ms) {
    ASSERT_EQ(got(cache, kUserA), "1/hit");
    ASSERT_EQ(got(other, kUserA), "1/hit");
    ASSERT_EQ(said(cache.get_many(one).get()->front()), "1/hit");
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(cache.stats().refreshed + other.stats().refreshed, 0U);
  EXPECT_EQ(loads, 1);
  std::this_thread::sleep_until(began + 2800ms);
  EXPECT_EQ(got(cache, kUserA), "1/hit") << "and nobody waits";
  EXPECT_TRUE(eventually([&] { return got(cache, kUserA) == "2/hit"; }));
  EXPECT_EQ(loads, 2);
  EXPECT_GT(raw("PTTL", key(kUserA)).as_integer().value_or(0), 3000);
  EXPECT_EQ(got(other, kUserA), "1/hit");
  EXPECT_TRUE(eventually([&] { return got(other, kUserA) == "2/hit"; }));
  EXPECT_EQ(loads, 2) << "L2 has what another table has refreshed, and its time has hardly begun";
}

/// Its loader's answers are held until the test gives them.
class HeldLoads {
 public:
  [[nodiscard]] ByteCache open(const Client& on, CacheOptions with) {
    auto opened = ByteCache::open_async(on, std::move(with), [this](const BrandedId&, LoadDone done) {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(done));
    });
    if (!opened)
      throw std::runtime_error(opened.error().message());
    return *std::move(opened);
  }
  [[nodiscard]] std::size_t count() {
    const std::lock_guard lock(mutex_);
    return waiting_.size();
  }
  void answer(std::size_t which, std::string value, const BrandedId& version) {
    std::optional<LoadDone> done;
    {
      const std::lock_guard lock(mutex_);
      done = waiting_[which];
    }
    (*done)(std::optional<Loaded<std::string>>({std::move(value), version}));
  }

 private:
  std::mutex mutex_;
  std::vector<LoadDone> waiting_;
};

class CacheLateLoader : public CacheServerTest, public ::testing::WithParamInterface<Coherence> {
 protected:
  static constexpr const char* kLate = "handler failed: the loader has not answered within 50 ms";
};
INSTANTIATE_TEST_SUITE_P(Modes, CacheLateLoader,
                         ::testing::Values(Coherence::none, Coherence::broadcast, Coherence::tracking));

TEST_P(CacheLateLoader, MeanwhileL2IsRead) {
  HeldLoads loads;
  CacheOptions with = options(GetParam());
  with.load_deadline = 50ms;
  const ByteCache cache = loads.open(client(), with);
  EXPECT_EQ(got(cache, kUserA), kLate);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(got(cache, kUserA), kLate) << "L2 has nothing";
  EXPECT_EQ(loads.count(), 1U) << "no second load";
  const ByteCache other = table(client(), options());
  ASSERT_EQ(other.put(kUserA, "theirs", kV2).get(), CachePut::stored);
  EXPECT_EQ(got(cache, kUserA), "theirs/l2");
  EXPECT_TRUE(eventually([&] { return got(cache, kUserA) == "theirs/hit"; }));
  EXPECT_EQ(loads.count(), 1U) << "no second load";
  // What the loader brings is older.
  loads.answer(0, "late", kV1);
  EXPECT_TRUE(eventually([&] { return cache.stats().fills == 1; }));
  EXPECT_TRUE(eventually([&] { return got(cache, kUserA) == "theirs/hit"; }));
  EXPECT_EQ(stored(kUserA), frame(kV2, "theirs"));
  EXPECT_EQ(cache.stats().load_late, 1U);
}

TEST_P(CacheLateLoader, WhatItBringsIsNewerThanWhatL2Had) {
  HeldLoads loads;
  CacheOptions with = options(GetParam());
  with.load_deadline = 50ms;
  const ByteCache cache = loads.open(client(), with);
  EXPECT_EQ(got(cache, kUserA), kLate);
  raw("SET", key(kUserA), frame(kV1, "theirs"), "PX", "60000");
  EXPECT_EQ(got(cache, kUserA), "theirs/l2");
  loads.answer(0, "late", kV2);
  EXPECT_TRUE(eventually([&] { return cache.stats().fills == 1; }));
  if (GetParam() == Coherence::tracking) {
    // The row has changed since the load began, and nobody said to what.
    EXPECT_EQ(stored(kUserA), frame(kV1, "theirs"));
  } else {
    EXPECT_TRUE(eventually([&] { return got(cache, kUserA).starts_with("late/"); }));
    EXPECT_EQ(stored(kUserA), frame(kV2, "late"));
  }
  EXPECT_EQ(loads.count(), 1U);
}

/// Those who ask meanwhile share reads of L2, and none is lost whatever is heard, dropped or brought beside them.
TEST_P(CacheLateLoader, ManyMayAskMeanwhile) {
  HeldLoads loads;
  CacheOptions with = options(GetParam());
  with.load_deadline = 50ms;
  const ByteCache cache = loads.open(client(), with);
  const ByteCache other = table(client(), options());
  const CacheWriter writer(client(), "t");
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::atomic<int> answers{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      std::string last;
      while (!stop) {
        const auto answer = cache.get(kUserA).get();
        ++answers;
        if (!answer) {
          wrong += answer.error().message() != kLate;
          continue;
        }
        if (!answer->value)
          continue;
        // Versions that one reader sees never go back but by a deletion, of which there is none here.
        const std::string version(answer->version.text().substr(3));
        wrong += version < last;
        last = version;
      }
    });
  }
  const auto until = std::chrono::steady_clock::now() + 20s;
  for (std::uint64_t i = 0; i < 60 || (answers <= 0 && std::chrono::steady_clock::now() < until); ++i) {
    const BrandedId version = BrandedId::encode("USR", 1'000'000 + i).value();
    ASSERT_TRUE(other.put(kUserA, std::to_string(i), version).get());
    (void)writer.broadcast(kUserA, version).get();
    std::this_thread::sleep_for(5ms);
    if (i % 10 == 0)
      cache.flush();
  }
  stop = true;
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(answers, 0);
}

TEST_F(CacheEdges, AnAgeIsThatInL1) {
  const ByteCache cache = table(client(), options());
  raw("SET", key(kUserA), frame(kV1, "alice"), "PX", "20000");  // as if it stood there for 40 s
  const auto first = cache.get(kUserA).get();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->from, CacheFrom::l2);
  EXPECT_EQ(first->age, 0ms);
  std::this_thread::sleep_for(100ms);
  const auto second = cache.get(kUserA).get();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->from, CacheFrom::hit);
  EXPECT_GE(second->age, 80ms);
  EXPECT_LT(second->age, 15s);
}

TEST_F(CacheEdges, AValueLargerThanAShardIsServedAndNotKept) {
  CacheOptions with = options();
  with.l1_bytes = std::size_t{16} << 20;
  const ByteCache cache = table(client(), with);
  constexpr std::size_t kShard = std::size_t{256} << 10;
  const std::string fits(kShard - 64, 'x');
  const std::string exceeds(kShard - 63, 'y');
  raw("SET", key(kUserA), frame(kV1, fits), "PX", "60000");
  raw("SET", key(kUserB), frame(kV1, exceeds), "PX", "60000");
  const auto from = [&](const BrandedId& id) { return cache.get(id).get().value().from; };
  EXPECT_EQ(from(kUserA), CacheFrom::l2);
  EXPECT_EQ(from(kUserA), CacheFrom::hit);
  EXPECT_EQ(cache.stats().too_large, 0U);
  EXPECT_EQ(from(kUserB), CacheFrom::l2);
  EXPECT_EQ(from(kUserB), CacheFrom::l2);
  ASSERT_EQ(cache.put(kUserB, exceeds, kV2).get(), CachePut::stored);
  EXPECT_EQ(from(kUserB), CacheFrom::l2);
  EXPECT_EQ(cache.stats().too_large, 4U);
  EXPECT_EQ(cache.stats().rows, 1U);
}

}  // namespace
}  // namespace echomq::test
