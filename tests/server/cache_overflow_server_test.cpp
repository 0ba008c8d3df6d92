// A table that does not read what it is told: the server's bound on what waits for it ends the connection, and that is one
// full flush. The library has no queue of its own between the connection and L1: what is read is applied.
#include <deque>
#include <memory>
#include <vector>

#include "cache_fixture.hpp"
#include "chaos/child_program.hpp"

namespace echomq::test {
namespace {

/// The child: holds a row, sleeps (it is stopped), and says what it reads once it hears again.
TEST(OverflowChild, DISABLED_Sleep) {
  const std::string url = variable("ECHOMQ_CHILD_URL");
  if (url.empty())
    GTEST_SKIP() << "started by the tests below, with their server's address";
  auto client = Client::open(url);
  ASSERT_TRUE(client) << client.error().message();
  const bool tracks = variable("ECHOMQ_CHILD_MODE") == "tracking";
  auto cache = ByteCache::open(
      *client,
      {.table = "t", .kind = "USR", .ttl = 600s, .coherence = tracks ? Coherence::tracking : Coherence::broadcast});
  ASSERT_TRUE(cache) << cache.error().message();
  ASSERT_TRUE(cache->get(kUserA).get());
  CachedBytes row;
  ASSERT_TRUE(cache->peek(kUserA, row));
  ASSERT_TRUE(client->command("SET", "holds", *row.value).get());
  while (cache->stats().flushes == 0 || !cache->serving())
    std::this_thread::sleep_for(1ms);
  const bool served = cache->peek(kUserA, row);
  const auto answer = cache->get(kUserA).get();
  ASSERT_TRUE(answer && answer->value);
  std::this_thread::sleep_for(200ms);
  ASSERT_TRUE(client
                  ->command("SET", "said",
                            (served ? std::string("held, ") : std::string("flushed, ")) + *answer->value +
                                ", flushes " + std::to_string(cache->stats().flushes))
                  .get());
}

class CacheOverflow : public CacheServerTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, CacheOverflow, ::testing::Values("broadcast", "tracking"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(CacheOverflow, IsOneFullFlush) {
  const bool tracks = std::string(GetParam()) == "tracking";
  raw("SET", key(kUserA), frame(kV1, "old"), "PX", "600000");
  raw("CONFIG", "SET", "client-output-buffer-limit", "normal 1000000 0 0 pubsub 1000000 0 0");
  const ChildProgram child("OverflowChild.DISABLED_Sleep",
                           {{"ECHOMQ_CHILD_URL", server().url()}, {"ECHOMQ_CHILD_MODE", GetParam()}});
  ASSERT_TRUE(eventually([&] { return raw("GET", "holds").as_text() == "old"; }, 30s));
  const std::string role = tracks ? "name=echomq:tracking" : "name=echomq:cache";
  const auto hears = [&] { return raw("CLIENT", "LIST").as_text().value().find(role) != std::string_view::npos; };
  ASSERT_TRUE(hears()) << raw("CLIENT", "LIST").to_string();

  child.signal(SIGSTOP);
  const std::string junk(20'000, 'x');
  for (int i = 0; i < 1000 && hears(); ++i) {
    if (tracks) {
      raw("SET", "ecc:{t}:" + junk + std::to_string(i), "v", "PX", "60000");
    } else {
      raw("PUBLISH", "ecc:{t}:coh", junk);
    }
  }
  EXPECT_FALSE(hears()) << "the server has ended the connection";
  // This it cannot have been told.
  raw("SET", key(kUserA), frame(kV2, "new"), "PX", "600000");
  raw("PUBLISH", "ecc:{t}:coh", std::string(kUserA.text()) + ":" + std::string(kV2.text()));
  child.signal(SIGCONT);
  EXPECT_TRUE(eventually([&] { return !raw("GET", "said").is_null(); }, 30s));
  EXPECT_EQ(raw("GET", "said").as_text(), "flushed, new, flushes 1");
}

TEST_F(CacheServerTest, EveryMessageOfAFloodIsApplied) {
  constexpr std::uint64_t kMessages = 50'000;
  const Client other = open(server().url());
  const ByteCache cache = table(client(), options(Coherence::broadcast));
  const CacheWriter writer(other, cache.options().table);
  std::deque<Reply<std::int64_t>> told;
  for (std::uint64_t i = 1; i <= kMessages; ++i) {
    told.push_back(writer.broadcast(kUserA, BrandedId::encode("USR", i).value()));
    if (told.size() > 1000) {
      ASSERT_EQ(told.front().get().value(), 1);
      told.pop_front();
    }
  }
  for (auto& one : told)
    ASSERT_EQ(one.get().value(), 1);
  EXPECT_TRUE(eventually(
      [&] {
        const CacheStats stats = cache.stats();
        return stats.coherence_applied + stats.coherence_stale == kMessages;
      },
      60s));
  EXPECT_EQ(cache.stats().flushes, 0U);
}

}  // namespace
}  // namespace echomq::test
