// One load of an id at a time in all processes (`load_lease`): who loads, who waits, who takes over, what comes too late.
#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "cache_fixture.hpp"
#include "chaos/child_program.hpp"
#include "support/proxy.hpp"
#include "support/tool.hpp"

namespace echomq::test {
namespace {

constexpr int kProcesses = 20;
constexpr int kCallers = 50;  // of a process

/// Loads that all processes count, on the server. The client outlives them.
[[nodiscard]] LoadBytes counted(const Client& client, std::chrono::milliseconds takes) {
  return [&client, takes](const BrandedId&) -> Result<std::optional<Loaded<std::string>>> {
    auto count = client.command("INCR", "loads").get();
    if (!count)
      return std::unexpected(count.error());
    std::this_thread::sleep_for(takes);
    return std::optional<Loaded<std::string>>({"load " + std::to_string(*count->as_integer()), std::nullopt});
  };
}

[[nodiscard]] Coherence mode_of(const std::string& name) {
  return name == "tracking" ? Coherence::tracking : name == "broadcast" ? Coherence::broadcast : Coherence::none;
}

/// The child: many callers at once, and how many of them were given the one load there is.
TEST(LoadChild, DISABLED_Get) {
  const std::string url = variable("ECHOMQ_CHILD_URL");
  if (url.empty())
    GTEST_SKIP() << "started by the tests below, with their server's address";
  auto client = Client::open(url);
  ASSERT_TRUE(client) << client.error().message();
  const std::chrono::milliseconds takes(std::atoi(variable("ECHOMQ_CHILD_TAKES").c_str()));
  const std::chrono::milliseconds lease(std::atoi(variable("ECHOMQ_CHILD_LEASE").c_str()));
  auto cache = ByteCache::open(*client,
                               {.table = "t",
                                .kind = "USR",
                                .ttl = 60s,
                                .coherence = mode_of(variable("ECHOMQ_CHILD_MODE")),
                                .load_lease = lease},
                               counted(*client, takes));
  ASSERT_TRUE(cache) << cache.error().message();
  ASSERT_TRUE(client->command("INCR", "ready").get());
  while (!client->command("GET", "begin").get().value().as_text())
    std::this_thread::sleep_for(1ms);
  std::deque<Reply<CachedBytes>> replies;
  for (int i = 0; i < kCallers; ++i)
    replies.push_back(cache->get(kUserA));
  int good = 0;
  for (auto& reply : replies) {
    const auto answer = reply.get();
    good += answer && answer->value == "load 1";
  }
  ASSERT_TRUE(client->command("INCRBY", "good", std::to_string(good)).get());
  ASSERT_TRUE(client->command("INCR", "done").get());
}

class CacheLease : public CacheServerTest {
 protected:
  [[nodiscard]] static CacheOptions shared(std::chrono::milliseconds lease = 600ms,
                                           Coherence coherence = Coherence::none) {
    CacheOptions with = options(coherence);
    with.load_lease = lease;
    return with;
  }
  [[nodiscard]] std::unique_ptr<ChildProgram> child(std::chrono::milliseconds takes, std::chrono::milliseconds lease,
                                                    const std::string& mode = "none") {
    return std::make_unique<ChildProgram>(
        "LoadChild.DISABLED_Get",
        std::vector<std::pair<std::string, std::string>>{{"ECHOMQ_CHILD_URL", server().url()},
                                                         {"ECHOMQ_CHILD_TAKES", std::to_string(takes.count())},
                                                         {"ECHOMQ_CHILD_LEASE", std::to_string(lease.count())},
                                                         {"ECHOMQ_CHILD_MODE", mode}});
  }
  [[nodiscard]] std::string number(const std::string& name) {
    return std::string(raw("GET", name).as_text().value_or("0"));
  }
  /// What a wait ends with, long before a third of a minute, when its table would look by itself.
  [[nodiscard]] static std::string soon(Reply<CachedBytes>& reply) {
    const auto answer = reply.get_for(10s);
    return answer ? said(*answer) : "(nothing within 10 s)";
  }
  [[nodiscard]] static std::string lease_key(const BrandedId& id) { return "eccx:{t}:load:" + std::string(id.text()); }
  [[nodiscard]] bool leased(const BrandedId& id) { return raw("EXISTS", lease_key(id)).as_integer() == 1; }
};

class CacheLeaseModes : public CacheLease, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, CacheLeaseModes, ::testing::Values("none", "broadcast", "tracking"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(CacheLeaseModes, AThousandCallersInTwentyProcessesAreOneLoad) {
  std::vector<std::unique_ptr<ChildProgram>> children;
  for (int i = 0; i < kProcesses; ++i)
    children.push_back(child(400ms, 3000ms, GetParam()));
  ASSERT_TRUE(eventually([&] { return number("ready") == std::to_string(kProcesses); }, 100s)) << number("ready");
  const auto begin = std::chrono::steady_clock::now();
  raw("SET", "begin", "1");
  EXPECT_TRUE(eventually([&] { return number("done") == std::to_string(kProcesses); }, 100s)) << number("done");
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(number("loads"), "1");
  EXPECT_EQ(number("good"), std::to_string(kProcesses * kCallers));
  EXPECT_TRUE(eventually([&] { return !leased(kUserA); }));
  std::printf("%d callers in %d processes: %s load, %s answers, %lld ms with a load of 400 ms\n", kProcesses * kCallers,
              kProcesses, number("loads").c_str(), number("good").c_str(),
              static_cast<long long>(std::chrono::duration_cast<std::chrono::milliseconds>(took).count()));
}

TEST_P(CacheLeaseModes, OneLoadsTheOthersWaitAndAreWoken) {
  Source source;
  source.set(kUserA, "one");
  source.hold();
  const Client other = open(server().url());
  // So long a lease that nobody looks by himself meanwhile.
  const ByteCache first = table(client(), shared(60s, mode_of(GetParam())), source.loader());
  const ByteCache second = table(other, shared(60s, mode_of(GetParam())), source.loader());
  auto one = first.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  auto two = second.get(kUserA);
  EXPECT_TRUE(eventually([&] { return second.stats().load_waits == 1; }));
  source.release();
  EXPECT_EQ(said(one.get()), "one/fill");
  EXPECT_EQ(soon(two), "one/l2");
  EXPECT_EQ(source.loads(), 1);
  EXPECT_EQ(stored(kUserA).substr(14), "one");
  EXPECT_TRUE(eventually([&] { return !leased(kUserA); }));
  EXPECT_TRUE(eventually([&] { return got(second, kUserA) == "one/hit"; }));
}

TEST_F(CacheLease, AHolderThatLivesIsWaitedForHoweverLongItTakes) {
  Source source;
  source.set(kUserA, "one");
  source.hold();
  const Client other = open(server().url());
  const ByteCache first = table(client(), shared(600ms), source.loader());
  const ByteCache second = table(other, shared(600ms), source.loader());
  auto one = first.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  auto two = second.get(kUserA);
  std::this_thread::sleep_for(2500ms);
  EXPECT_EQ(source.loads(), 1);
  EXPECT_TRUE(leased(kUserA));
  EXPECT_GT(second.stats().load_waits, 3U) << "it looks again now and then";
  source.release();
  EXPECT_EQ(said(one.get()), "one/fill");
  EXPECT_EQ(said(two.get()), "one/l2");
  EXPECT_EQ(source.loads(), 1);
}

TEST_F(CacheLease, WhenTheHolderDiesOneTakesOver) {
  const auto holder = child(600s, 1000ms);
  ASSERT_TRUE(eventually([&] { return number("ready") == "1"; }, 30s));
  raw("SET", "begin", "1");
  ASSERT_TRUE(eventually([&] { return number("loads") == "1"; }, 30s));
  std::deque<Client> clients;
  std::deque<ByteCache> caches;
  std::deque<Reply<CachedBytes>> replies;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(open(server().url()));
    caches.push_back(table(clients.back(), shared(1000ms), counted(clients.back(), 300ms)));
    replies.push_back(caches.back().get(kUserA));
  }
  std::this_thread::sleep_for(2500ms);
  EXPECT_EQ(number("loads"), "1") << "it lives";
  holder->kill();
  const auto killed = std::chrono::steady_clock::now();
  int fills = 0;
  for (auto& reply : replies) {
    const auto answer = reply.get();
    ASSERT_TRUE(answer) << answer.error().message();
    EXPECT_EQ(*answer->value, "load 2");
    fills += answer->from == CacheFrom::fill;
  }
  // The lease, a third for the next look, the load; and a loaded machine's delays.
  EXPECT_LT(std::chrono::steady_clock::now() - killed, 1000ms * 4 / 3 + 300ms + bound(2000ms));
  EXPECT_EQ(fills, 1);
  EXPECT_EQ(number("loads"), "2");
}

TEST_F(CacheLease, AFailedLoadFailsForAllWhoWait) {
  std::atomic<int> loads{0};
  std::atomic<bool> held{true};
  const LoadBytes load = [&](const BrandedId&) -> Result<std::optional<Loaded<std::string>>> {
    ++loads;
    while (held)
      std::this_thread::sleep_for(1ms);
    return fail(Errc::handler_failed, "no database");
  };
  const Client other = open(server().url());
  CacheOptions with = shared(60s);
  with.load_backoff = 60s;
  const ByteCache first = table(client(), with, load);
  const ByteCache second = table(other, with, load);
  auto one = first.get(kUserA);
  ASSERT_TRUE(eventually([&] { return loads == 1; }));
  auto two = second.get(kUserA);
  EXPECT_TRUE(eventually([&] { return second.stats().load_waits == 1; }));
  held = false;
  EXPECT_NE(said(one.get()).find("no database"), std::string::npos);
  EXPECT_NE(soon(two).find("no database"), std::string::npos);
  // Backing off holds for both.
  EXPECT_NE(got(second, kUserA).find("no database"), std::string::npos);
  EXPECT_EQ(loads, 1);
  EXPECT_TRUE(eventually([&] { return !leased(kUserA); })) << "the next who asks may load at once";
}

// In the other process somebody still waits for it.
TEST_F(CacheLease, ALoadThatGivesUpWhenAskedToIsLeftToThoseWhoWait) {
  const Client other = open(server().url());
  std::atomic<int> loads{0};
  CacheOptions with = shared(60s);
  with.load_deadline = 3s;
  const auto first = ByteCache::open_task(
      client(), with, [&](BrandedId, CancelToken stop) -> Task<Result<std::optional<Loaded<std::string>>>> {
        ++loads;
        while (!stop.take()) {
          auto pause = client().command("PING");
          (void)co_await pause;
        }
        co_return fail(Errc::cancelled, "asked to stop");
      });
  ASSERT_TRUE(first) << first.error().message();
  Source source;
  source.set(kUserA, "alice", kV1);
  const ByteCache second = table(other, shared(60s), source.loader());
  auto one = first->get(kUserA);
  ASSERT_TRUE(eventually([&] { return loads == 1; }));
  auto two = second.get(kUserA);
  EXPECT_TRUE(eventually([&] { return second.stats().load_waits == 1; }));
  EXPECT_FALSE(one.get());
  EXPECT_EQ(soon(two), "alice/fill");
  EXPECT_EQ(source.loads(), 1);
}

TEST_F(CacheLease, ThatThereIsNothingIsToldToo) {
  Source source;
  source.hold();
  const Client other = open(server().url());
  CacheOptions with = shared(60s);
  with.negative_ttl = 10s;
  const ByteCache first = table(client(), with, source.loader());
  const ByteCache second = table(other, with, source.loader());
  auto one = first.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  auto two = second.get(kUserA);
  EXPECT_TRUE(eventually([&] { return second.stats().load_waits == 1; }));
  source.release();
  EXPECT_EQ(said(one.get()), "(absent)/fill");
  EXPECT_EQ(soon(two), "(absent)/l2");
  EXPECT_EQ(got(second, kUserA), "(absent)/hit");
  EXPECT_EQ(source.loads(), 1);
}

TEST_P(CacheLeaseModes, WhatIsLoadedWhileAnotherInvalidatesIsNotKept) {
  Source source;
  source.set(kUserA, "old");
  source.hold();
  const Client other = open(server().url());
  const ByteCache first = table(client(), shared(3s, mode_of(GetParam())), source.loader());
  const ByteCache second = table(other, shared(3s, mode_of(GetParam())), source.loader());
  auto one = first.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));  // it has read `old`
  source.set(kUserA, "new");
  ASSERT_TRUE(second.invalidate(kUserA).get());
  EXPECT_FALSE(leased(kUserA));
  auto two = second.get(kUserA);
  ASSERT_TRUE(source.wait_loads(2)) << "what the first loads is not waited for any more";
  source.release();
  // Who asked before may be given either: under tracking the newer row may be seen first.
  EXPECT_TRUE(one.get());
  EXPECT_EQ(said(two.get()).substr(0, 4), "new/");
  // Under tracking the late row of the first, written and taken back, may have taken the newer one with it: then the next
  // read brings it.
  EXPECT_TRUE(eventually([&] { return got(first, kUserA).starts_with("new/"); }));
  // Under tracking the one who hears of the other's late row, written and taken back, may think its own overtaken.
  EXPECT_LE(source.loads(), std::string(GetParam()) == "tracking" ? 3 : 2);
  EXPECT_TRUE(eventually([&] { return got(second, kUserA).starts_with("new/"); }));
  // There, whoever has the newer row in L1 keeps it, and nobody needs L2 to have it.
  if (std::string(GetParam()) == "tracking") {
    EXPECT_TRUE(eventually([&] { return !stored(kUserA).ends_with("old"); }));
  } else {
    EXPECT_TRUE(eventually([&] { return stored(kUserA).ends_with("new"); }));
  }
}

TEST_F(CacheLease, WhoWaitsIsToldOfAnInvalidation) {
  Source source;
  source.set(kUserA, "old");
  source.hold();
  const Client two = open(server().url());
  const Client three = open(server().url());
  const ByteCache holder = table(client(), shared(60s), source.loader());
  const ByteCache waits = table(two, shared(60s), source.loader());
  const ByteCache invalidates = table(three, shared(60s), source.loader());
  auto one = holder.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  auto other = waits.get(kUserA);
  EXPECT_TRUE(eventually([&] { return waits.stats().load_waits == 1; }));
  source.set(kUserA, "new");
  ASSERT_TRUE(invalidates.invalidate(kUserA).get());
  EXPECT_TRUE(source.wait_loads(2)) << "not after a third of a minute";
  source.release();
  EXPECT_EQ(said(other.get()), "new/fill");
  EXPECT_EQ(said(one.get()), "old/fill") << "it asked before";
  EXPECT_EQ(stored(kUserA).substr(14), "new");
  EXPECT_EQ(got(holder, kUserA), "new/l2");
  EXPECT_EQ(source.loads(), 2);
}

TEST_F(CacheLease, WhoWaitsIsToldOfAnInvalidationFromAShell) {
  Source source;
  source.set(kUserA, "old");
  source.hold();
  const Client two = open(server().url());
  const ByteCache holder = table(client(), shared(60s), source.loader());
  const ByteCache waits = table(two, shared(60s), source.loader());
  auto one = holder.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  auto other = waits.get(kUserA);
  EXPECT_TRUE(eventually([&] { return waits.stats().load_waits == 1; }));
  source.set(kUserA, "new");
  const ToolResult told =
      run_tool({"cache", "invalidate", "t", std::string(kUserA.text())}, {}, {{"EMQ_URL", server().url()}});
  EXPECT_EQ(told.exit_code, 0) << told.err;
  EXPECT_TRUE(source.wait_loads(2)) << "not after a third of a minute";
  source.release();
  EXPECT_EQ(said(other.get()), "new/fill");
  EXPECT_EQ(said(one.get()), "old/fill") << "it asked before";
  EXPECT_EQ(stored(kUserA).substr(14), "new");
}

TEST_F(CacheLease, WhoHasLostTheLeaseWritesNothing) {
  Source source;
  source.set(kUserA, "old");
  source.hold();
  // The renewals come too late to notice before the load is over.
  const ByteCache cache = table(client(), shared(60s), source.loader());
  auto one = cache.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  raw("DEL", lease_key(kUserA));
  source.release();
  EXPECT_EQ(said(one.get()), "old/fill");
  EXPECT_EQ(stored(kUserA), "(none)");
  source.set(kUserA, "new");
  EXPECT_EQ(got(cache, kUserA), "new/fill");

  // Nor over what another has written, whoever has the newer version.
  raw("DEL", key(kUserA));
  cache.flush();
  source.hold();
  auto again = cache.get(kUserA);
  ASSERT_TRUE(source.wait_loads(3));
  raw("SET", lease_key(kUserA), std::string(32, 'z'));
  raw("SET", key(kUserA), frame(kV1, "theirs"), "PX", "60000");
  source.release();
  EXPECT_EQ(said(again.get()), "new/fill");
  EXPECT_EQ(stored(kUserA).substr(14), "theirs");
  EXPECT_EQ(raw("GET", lease_key(kUserA)).as_text(), std::string(32, 'z')) << "nor gives it back for them";
}

// The renewal finds out, long before the load is over.
TEST_F(CacheLease, WhoComesAfterTheLeaseWasLostIsNotGivenWhatWasLoadedUnderIt) {
  Source source;
  source.set(kUserA, "old");
  source.hold();
  const ByteCache cache = table(client(), shared(300ms), source.loader());
  auto before = cache.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  raw("DEL", lease_key(kUserA));
  source.set(kUserA, "new");
  std::this_thread::sleep_for(3s);  // thirty times between two renewals
  auto after = cache.get(kUserA);
  source.release();
  EXPECT_EQ(said(before.get()), "old/fill");
  EXPECT_EQ(said(after.get()).substr(0, 4), "new/");
  EXPECT_EQ(stored(kUserA).substr(14), "new");
  EXPECT_EQ(source.loads(), 2);
}

TEST_F(CacheLease, ARowIsTakenBackThatIsOlderThanWhatWasHeardWhileItWasWritten) {
  Source source;
  source.set(kUserA, "old", kV1);
  source.set(kUserB, "another", kV1);
  Proxy proxy(server().url());
  const Client through = open(proxy.url());
  const ByteCache cache = table(through, shared(60s), source.loader());
  EXPECT_EQ(got(cache, kUserB), "another/fill");  // the server has the scripts now
  source.hold();
  auto one = cache.get(kUserA);
  ASSERT_TRUE(source.wait_loads(2));
  proxy.hold(Direction::to_client);
  source.release();
  ASSERT_TRUE(eventually([&] { return stored(kUserA) == frame(kV1, "old"); }));
  EXPECT_EQ(cache.apply(kUserA, kV2), Applied::stale);
  proxy.release();
  EXPECT_EQ(said(one.get()), "old/fill") << "it asked before";
  EXPECT_TRUE(eventually([&] { return stored(kUserA) == "(none)"; }));
}

TEST_F(CacheLease, WhoIsNotToldLooksEachThirdOfALease) {
  Source source;
  const ByteCache cache = table(client(), shared(300ms), source.loader());
  raw("SET", lease_key(kUserA), std::string(32, 'z'));  // somebody who tells nothing
  auto one = cache.get(kUserA);
  EXPECT_TRUE(eventually([&] { return cache.stats().load_waits == 1; }));
  raw("SET", key(kUserA), frame(kV1, "theirs"), "PX", "60000");
  EXPECT_EQ(said(one.get()), "theirs/l2");
  EXPECT_EQ(source.loads(), 0);
}

TEST_F(CacheLease, WhoseConnectionWasLostLooksWhenItIsBack) {
  Source source;
  const ByteCache cache = table(client(), shared(60s), source.loader());
  raw("SET", lease_key(kUserA), std::string(32, 'z'));
  auto one = cache.get(kUserA);
  EXPECT_TRUE(eventually([&] { return cache.stats().load_waits == 1; }));
  raw("SET", key(kUserA), frame(kV1, "theirs"), "PX", "60000");
  raw("CLIENT", "KILL", "TYPE", "pubsub");
  EXPECT_EQ(soon(one), "theirs/l2");
  EXPECT_EQ(source.loads(), 0);
}

TEST_F(CacheLease, UnderTrackingAPeersFillWakes) {
  Source source;
  const ByteCache cache = table(client(), shared(60s, Coherence::tracking), source.loader());
  raw("SET", lease_key(kUserA), std::string(32, 'z'));
  auto one = cache.get(kUserA);
  EXPECT_TRUE(eventually([&] { return cache.stats().load_waits == 1; }));
  raw("SET", key(kUserA), frame(kV1, "theirs"), "PX", "60000");
  EXPECT_EQ(soon(one), "theirs/l2");
  EXPECT_EQ(source.loads(), 0);
}

TEST_F(CacheLease, AHerdAtTheEndOfAHotRowInSeveralProcessesIsOneLoad) {
  for (const ServeStale stale : {ServeStale::at_once, ServeStale::never}) {
    SCOPED_TRACE(static_cast<int>(stale));
    raw("DEL", key(kUserA));
    Source source;
    source.set(kUserA, "one");
    CacheOptions with = shared(3000ms);
    with.ttl = 2s;
    with.serve_stale = stale;
    with.stale = stale == ServeStale::never ? 0ms : 60s;
    std::deque<Client> clients;
    std::deque<ByteCache> caches;
    for (int i = 0; i < 5; ++i) {
      clients.push_back(open(server().url()));
      caches.push_back(table(clients.back(), with, source.loader()));
    }
    for (ByteCache& cache : caches)
      ASSERT_EQ(got(cache, kUserA), &cache == &caches.front() ? "one/fill" : "one/l2");
    std::this_thread::sleep_for(2700ms);
    source.set(kUserA, "two");
    source.hold();
    std::deque<Reply<CachedBytes>> replies;
    for (int i = 0; i < 40; ++i) {
      for (ByteCache& cache : caches)
        replies.push_back(cache.get(kUserA));
    }
    ASSERT_TRUE(source.wait_loads(2));
    if (stale == ServeStale::at_once) {
      for (auto& reply : replies)
        EXPECT_EQ(said(reply.get()), "one/stale") << "nobody waits";
    }
    EXPECT_TRUE(eventually([&] {
      std::uint64_t waits = 0;
      for (ByteCache& cache : caches)
        waits += cache.stats().load_waits;
      return waits >= 4;
    }));
    source.release();
    if (stale == ServeStale::never) {
      for (auto& reply : replies)
        EXPECT_EQ(said(reply.get()).substr(0, 4), "two/");
    } else {
      for (ByteCache& cache : caches)
        EXPECT_TRUE(eventually([&] { return cache.stats().fills + cache.stats().l2_hits >= 2; }));
    }
    EXPECT_EQ(source.loads(), 2);
  }
}

TEST_F(CacheLease, WhileTheServerIsAwayEachLoadsForItself) {
  Source source;
  source.set(kUserA, "one");
  CacheOptions with = shared();
  with.l2_deadline = 300ms;
  const ByteCache cache = table(client(), with, source.loader());
  server().kill();
  EXPECT_EQ(got(cache, kUserA), "one/fill");
  EXPECT_EQ(source.loads(), 1);
}

// The row that was not good enough has to be named with the question for the lease, or the answer is always to read it.
TEST_F(CacheLease, ARowOlderThanAMessageIsLoadedAnew) {
  Source source;
  source.set(kUserA, "new", kV2);
  const ByteCache cache = table(client(), shared(60s), source.loader());
  EXPECT_EQ(cache.apply(kUserA, kV2), Applied::stale);
  raw("SET", key(kUserA), frame(kV1, "old"), "PX", "60000");
  EXPECT_EQ(got(cache, kUserA), "new/fill");
  EXPECT_EQ(stored(kUserA), frame(kV2, "new"));
  EXPECT_EQ(source.loads(), 1);
  EXPECT_TRUE(eventually([&] { return !leased(kUserA); }));
}

TEST_F(CacheLease, ClosingEndsTheWait) {
  Source source;
  source.set(kUserA, "one");
  source.hold();
  const Client other = open(server().url());
  const ByteCache first = table(client(), shared(60s), source.loader());
  ByteCache second = table(other, shared(60s), source.loader());
  auto one = first.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  auto two = second.get(kUserA);
  EXPECT_TRUE(eventually([&] { return second.stats().load_waits == 1; }));
  second.close();
  const auto answer = two.get_for(10s);
  ASSERT_TRUE(answer) << "nothing within 10 s";
  ASSERT_FALSE(*answer);
  EXPECT_TRUE(answer->error().is(Errc::client_closed)) << answer->error().message();
  source.release();
  EXPECT_EQ(said(one.get()), "one/fill");
}

// The renewals ended first: another process loaded while the loader that `close` waits for was still at it.
TEST_F(CacheLease, WhileClosingWaitsForALoaderItsLeaseIsRenewed) {
  Source source;
  source.set(kUserA, "one");
  source.hold();
  const Client other = open(server().url());
  ByteCache first = table(client(), shared(600ms), source.loader());
  const ByteCache second = table(other, shared(600ms), source.loader());
  auto one = first.get(kUserA);
  ASSERT_TRUE(source.wait_loads(1));
  auto two = second.get(kUserA);
  std::thread closing([&] { first.close(); });
  std::this_thread::sleep_for(2000ms);
  EXPECT_EQ(source.loads(), 1);
  EXPECT_TRUE(leased(kUserA));
  source.release();
  closing.join();
  EXPECT_EQ(said(one.get()), "one/fill");
  EXPECT_EQ(said(two.get()), "one/l2");
  EXPECT_EQ(source.loads(), 1);
}

TEST_F(CacheLease, RefusedOptions) {
  for (const auto lease : {1ms, 29ms, -1ms}) {
    const auto opened = ByteCache::open(client(), shared(lease));
    ASSERT_FALSE(opened);
    EXPECT_NE(opened.error().text.find("load_lease"), std::string::npos);
  }
}

}  // namespace
}  // namespace echomq::test
