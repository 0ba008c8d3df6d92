// How waits on a cache end: when it or its client closes, and when what L1 hears by is refused.
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "server/cache_fixture.hpp"

namespace echomq::test {
namespace {

class CacheEnds : public CacheServerTest {
 protected:
  /// Answers of a loader that does not answer; they must not go before the table.
  struct Held {
    std::mutex mutex;
    std::vector<LoadDone> all;  // guarded by mutex
  };
  [[nodiscard]] static ByteCache held_table(const Client& on, CacheOptions with, const std::shared_ptr<Held>& held) {
    auto opened = ByteCache::open_async(on, std::move(with), [held](const BrandedId&, LoadDone done) {
      const std::lock_guard lock(held->mutex);
      held->all.push_back(std::move(done));
    });
    if (!opened)
      throw std::runtime_error(opened.error().message());
    return *std::move(opened);
  }
  [[nodiscard]] static bool holds(Held& held, std::size_t count) {
    return eventually([&] {
      const std::lock_guard lock(held.mutex);
      return held.all.size() == count;
    });
  }
  static void give_up(Held& held) {
    std::vector<LoadDone> all;
    {
      const std::lock_guard lock(held.mutex);
      all.swap(held.all);
    }
  }
};

TEST_F(CacheEnds, ClosingAnswersWhoWaitsForALoaderThatNeverAnswers) {
  const auto held = std::make_shared<Held>();
  for (const auto deadline : {0ms, 60'000ms}) {
    SCOPED_TRACE(deadline.count());
    CacheOptions with = options();
    with.load_deadline = deadline;
    ByteCache cache = held_table(client(), with, held);
    auto one = cache.get(kUserA);
    auto joined = cache.get(kUserA);
    ASSERT_TRUE(holds(*held, 1));
    cache.close();
    for (auto* reply : {&one, &joined}) {
      const auto answer = reply->get_for(10s);
      ASSERT_TRUE(answer.has_value()) << "it waits still";
      ASSERT_FALSE(*answer);
      EXPECT_TRUE(answer->error().is(Errc::client_closed)) << answer->error().message();
    }
    const auto later = cache.get(kUserA).get();
    ASSERT_FALSE(later);
    EXPECT_TRUE(later.error().is(Errc::client_closed)) << later.error().message();
    give_up(*held);
  }
}

TEST_F(CacheEnds, ADeadlineHoldsWhileClosingWaitsForALoader) {
  Source source;
  source.set(kUserA, "alice");
  source.hold();
  CacheOptions with = options();
  with.load_deadline = 500ms;
  ByteCache cache = table(client(), with, source.loader());
  auto one = cache.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  std::thread closing([&] { cache.close(); });
  const auto answer = one.get_for(10s);
  source.release();
  closing.join();
  ASSERT_TRUE(answer.has_value()) << "it waits still";
  EXPECT_FALSE(*answer);
}

/// A table, and word of its end.
struct EndsOwner {
  EndsOwner(ByteCache its_cache, std::promise<void> its_end) : cache(std::move(its_cache)), end(std::move(its_end)) {}
  EndsOwner(const EndsOwner&) = delete;
  EndsOwner& operator=(const EndsOwner&) = delete;
  ~EndsOwner() {
    cache.reset();
    end.set_value();
  }
  std::optional<ByteCache> cache;
  std::promise<void> end;
};

// The deadline's thread let go of it under the lock that closing takes, and waited for itself for ever.
TEST_F(CacheEnds, ACallsLoaderMayBeTheLastThatHoldsTheTable) {
  CacheOptions with = options();
  with.load_deadline = 300ms;
  std::promise<void> end;
  auto ended = end.get_future();
  auto owner = std::make_shared<EndsOwner>(table(client(), with), std::move(end));
  auto reply = owner->cache->get_or_load(
      kUserA,
      [owner](const BrandedId&) -> Result<std::optional<Loaded<std::string>>> { return Loaded<std::string>{"alice"}; });
  EXPECT_EQ(said(reply.get()), "alice/fill");
  owner.reset();
  EXPECT_EQ(ended.wait_for(10s), std::future_status::ready);
}

// What it holds was kept until the deadline of its load was over, or its lease was to be renewed, though the load had ended.
TEST_F(CacheEnds, ACallsLoaderGoesWithItsLoad) {
  CacheOptions with = options();
  with.load_deadline = 60s;
  with.load_lease = 60s;
  const ByteCache cache = table(client(), with);
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = held;
  auto reply = cache.get_or_load(
      kUserA, [held = std::move(held)](const BrandedId&) -> Result<std::optional<Loaded<std::string>>> {
        return Loaded<std::string>{"alice"};
      });
  EXPECT_EQ(said(reply.get()), "alice/fill");
  EXPECT_TRUE(eventually([&] { return seen.expired(); }));
}

TEST_F(CacheEnds, ALoadThatIsDueOnlyAfterTheEndDoesNotBegin) {
  const auto held = std::make_shared<Held>();
  ByteCache cache = held_table(client(), options(), held);
  server().pause();
  auto one = cache.get(kUserA);  // asks L2, which does not answer yet
  cache.close();
  server().resume();
  const auto answer = one.get_for(10s);
  ASSERT_TRUE(answer.has_value()) << "it waits still";
  ASSERT_FALSE(*answer);
  EXPECT_TRUE(answer->error().is(Errc::client_closed)) << answer->error().message();
  EXPECT_TRUE(holds(*held, 0));
}

TEST_F(CacheEnds, ClosingTheClientEndsTheWaitForAnothersLoad) {
  const auto held = std::make_shared<Held>();
  CacheOptions with = options();
  with.load_lease = 60s;  // so long that nobody looks by himself meanwhile
  const ByteCache first = held_table(client(), with, held);
  Client other = open(server().url());
  const ByteCache second = held_table(other, with, held);
  auto one = first.get(kUserA);
  ASSERT_TRUE(holds(*held, 1));
  auto two = second.get(kUserA);
  ASSERT_TRUE(eventually([&] { return second.stats().load_waits == 1; }));
  other.close();
  const auto answer = two.get_for(10s);
  ASSERT_TRUE(answer.has_value()) << "it waits still";
  ASSERT_FALSE(*answer);
  EXPECT_TRUE(answer->error().is(Errc::client_closed)) << answer->error().message();
  give_up(*held);
  EXPECT_FALSE(one.get());
}

// The channel on which loads end was refused to a new connection once, and nobody asked again: who waited for another process's
// load looked only each third of its lease.
TEST_F(CacheEnds, TheChannelOfLoadsIsAskedForAgain) {
  std::atomic<int> logged{0};
  const Client listens = open(server().url(), {.log = [&](LogLevel level, std::string_view event, auto) {
                                logged += level == LogLevel::warning && event == "subscription_refused" ? 1 : 0;
                              }});
  Source source;
  source.set(kUserA, "alice", kV1);
  CacheOptions with = options();
  with.load_lease = 60s;
  const ByteCache waits = table(listens, with, [](const BrandedId&) -> Result<std::optional<Loaded<std::string>>> {
    return fail(Errc::handler_failed, "the other one loads");
  });
  const ByteCache loads = table(client(), with, source.loader());
  raw("ACL", "SETUSER", "default", "-subscribe");
  const std::string all(raw("CLIENT", "LIST").as_text().value_or(""));
  int killed = 0;
  for (std::size_t at = 0; at < all.size(); at = all.find('\n', at) + 1) {
    const std::string line = all.substr(at, all.find('\n', at) - at);
    if (line.find(":subscriptions ") == std::string::npos)
      continue;
    raw("CLIENT", "KILL", "ID", line.substr(3, line.find(' ') - 3));
    ++killed;
  }
  ASSERT_EQ(killed, 2) << all;
  ASSERT_TRUE(eventually([&] { return logged >= 2; }));
  raw("ACL", "SETUSER", "default", "+subscribe");
  ASSERT_TRUE(eventually([&] {
    const auto count = raw("PUBSUB", "NUMSUB", "eccx:{t}:loads");
    return count.items().size() == 2 && count.items()[1].as_integer() == 2;
  }));
  source.hold();
  auto first = loads.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  auto second = waits.get(kUserA);
  ASSERT_TRUE(eventually([&] { return waits.stats().load_waits == 1; }));
  source.release();
  EXPECT_EQ(said(first.get()), "alice/fill");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(said(second.get()), "alice/l2");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s) << "it is told, and does not wait for a third of the lease";
}

class CacheRefused : public CacheEnds, public ::testing::WithParamInterface<Coherence> {};
INSTANTIATE_TEST_SUITE_P(Both, CacheRefused, ::testing::Values(Coherence::broadcast, Coherence::tracking),
                         [](const auto& one) {
                           return std::string(one.param == Coherence::tracking ? "tracking" : "broadcast");
                         });

// The connection came back, the server said no to the subscription, and nobody asked again: L1 stayed off for as long as it lasted.
TEST_P(CacheRefused, WhatANewConnectionIsRefusedIsAskedForAgain) {
  const bool tracks = GetParam() == Coherence::tracking;
  std::atomic<int> logged{0};
  const Client listens = open(server().url(), {.log = [&](LogLevel level, std::string_view event, auto) {
                                logged += level == LogLevel::warning && event == "cache_hears_nothing" ? 1 : 0;
                              }});
  Source source;
  source.set(kUserA, "alice", kV1);
  const ByteCache cache = table(listens, options(GetParam()), source.loader());
  EXPECT_EQ(got(cache, kUserA), "alice/fill");
  EXPECT_EQ(got(cache, kUserA), "alice/hit");
  raw("ACL", "SETUSER", "default", tracks ? "-client|tracking" : "-subscribe");
  const std::uint64_t flushed = cache.stats().flushes;
  const std::string all(raw("CLIENT", "LIST").as_text().value_or(""));
  const std::string name = tracks ? ":tracking " : ":cache ";
  bool killed = false;
  for (std::size_t at = 0; at < all.size(); at = all.find('\n', at) + 1) {
    const std::string line = all.substr(at, all.find('\n', at) - at);
    if (line.find(name) == std::string::npos)
      continue;
    raw("CLIENT", "KILL", "ID", line.substr(3, line.find(' ') - 3));
    killed = true;
  }
  ASSERT_TRUE(killed) << all;
  ASSERT_TRUE(eventually([&] { return cache.stats().flushes > flushed && cache.stats().coherence_refused >= 2; }));
  EXPECT_TRUE(eventually([&] { return logged >= 2; }));
  EXPECT_EQ(got(cache, kUserA), "alice/l2");
  EXPECT_EQ(got(cache, kUserA), "alice/l2") << "nobody would say that it has changed";
  raw("ACL", "SETUSER", "default", tracks ? "+client|tracking" : "+subscribe");
  EXPECT_TRUE(eventually([&] { return got(cache, kUserA) == "alice/hit"; }));
  raw("SET", key(kUserA), frame(kV2, "bob"), "PX", "60000");
  if (!tracks)
    raw("PUBLISH", "ecc:{t}:coh", std::string(kUserA.text()) + ":" + std::string(kV2.text()));
  EXPECT_TRUE(eventually([&] { return got(cache, kUserA) == "bob/hit"; })) << "it is told again";
}

}  // namespace
}  // namespace echomq::test
