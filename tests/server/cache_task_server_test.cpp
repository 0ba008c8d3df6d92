// Loaders that are coroutines: they await, are asked to stop when nobody waits any more, and what they bring is kept.
#include <gmock/gmock.h>

#include <memory>
#include <vector>

#include "server/cache_fixture.hpp"

namespace echomq::test {
namespace {

using Loading = Task<Result<std::optional<Loaded<std::string>>>>;

[[nodiscard]] Result<std::optional<Loaded<std::string>>> brought(std::string value) {
  return std::optional<Loaded<std::string>>({std::move(value), kV1});
}
[[nodiscard]] Result<std::optional<Loaded<std::string>>> nothing() { return std::optional<Loaded<std::string>>(); }

class CacheTask : public CacheServerTest {
 protected:
  [[nodiscard]] static ByteCache task_table(const Client& on, CacheOptions with, LoadBytesTask load) {
    auto opened = ByteCache::open_task(on, std::move(with), std::move(load));
    if (!opened)
      throw std::runtime_error(opened.error().message());
    return *std::move(opened);
  }
};

TEST_F(CacheTask, ALoaderMayAwaitTheServer) {
  raw("SET", "source", "alice");
  ByteCache cache = task_table(client(), options(), [this](BrandedId id, CancelToken) -> Loading {
    auto asked = client().command("GET", "source");
    const auto found = co_await asked;
    if (!found)
      co_return std::unexpected<Error>(found.error());
    if (id == kUserB)
      co_return nothing();
    co_return brought(std::string(found->as_text().value_or("")));
  });
  EXPECT_EQ(got(cache, kUserA), "alice/fill");
  EXPECT_EQ(got(cache, kUserA), "alice/hit");
  EXPECT_EQ(got(cache, kUserB), "(absent)/fill");
  EXPECT_EQ(stored(kUserA), frame(kV1, "alice"));
}

TEST_F(CacheTask, ManyCallersShareOneRun) {
  std::atomic<int> runs{0};
  ByteCache cache = task_table(client(), options(), [&](BrandedId, CancelToken) -> Loading {
    ++runs;
    auto asked = client().command("PING");
    (void)co_await asked;
    co_return brought("alice");
  });
  std::vector<Reply<CachedBytes>> replies;
  for (int i = 0; i < 100; ++i)
    replies.push_back(cache.get(kUserA));
  for (Reply<CachedBytes>& one : replies)
    EXPECT_EQ(said(one.get()).substr(0, 6), "alice/");
  EXPECT_EQ(runs, 1);
}

TEST_F(CacheTask, AnExceptionIsAnError) {
  ByteCache cache = task_table(client(), options(), [](BrandedId, CancelToken) -> Loading {
    throw std::runtime_error("no database");
    co_return nothing();
  });
  const auto answer = cache.get(kUserA).get();
  ASSERT_FALSE(answer);
  EXPECT_TRUE(answer.error().is(Errc::handler_failed));
  EXPECT_THAT(answer.error().text, ::testing::HasSubstr("no database"));
}

TEST_F(CacheTask, AfterItsDeadlineItIsAskedToStop) {
  CacheOptions with = options();
  with.load_deadline = 30ms;
  std::atomic<bool> asked_to_stop{false};
  ByteCache cache = task_table(client(), with, [&](BrandedId, CancelToken stop) -> Loading {
    std::optional<std::string> reason;
    while (!(reason = stop.take())) {
      auto pause = client().command("PING");
      (void)co_await pause;
    }
    asked_to_stop = true;
    if (*reason != "load_deadline is over")
      co_return fail(Errc::handler_failed, *reason);
    co_return brought("late");
  });
  const auto answer = cache.get(kUserA).get();
  ASSERT_FALSE(answer);
  EXPECT_TRUE(answer.error().is(Errc::handler_failed)) << answer.error().message();
  EXPECT_TRUE(eventually([&] { return asked_to_stop.load(); }));
  EXPECT_TRUE(eventually([&] { return got(cache, kUserA) == "late/hit"; })) << "what it brings is kept";
  EXPECT_EQ(cache.stats().load_late, 1U);
}

TEST_F(CacheTask, WhenTheTableClosesItIsAskedToStop) {
  auto stopped = std::make_shared<std::atomic<bool>>(false);
  auto began = std::make_shared<std::atomic<bool>>(false);
  std::optional<Reply<CachedBytes>> reply;
  {
    ByteCache cache = task_table(client(), options(), [this, stopped, began](BrandedId, CancelToken stop) -> Loading {
      *began = true;
      while (!stop.take()) {
        auto pause = client().command("PING");
        (void)co_await pause;
      }
      *stopped = true;
      co_return fail(Errc::cancelled, "asked to stop");
    });
    reply.emplace(cache.get(kUserA));
    ASSERT_TRUE(eventually([&] { return began->load(); }));
  }
  const auto answer = reply->get();
  ASSERT_FALSE(answer);
  EXPECT_TRUE(answer.error().is(Errc::client_closed)) << "nobody waits for the loader: " << answer.error().message();
  EXPECT_TRUE(eventually([&] { return stopped->load(); }));
}

TEST_F(CacheTask, ATypedTableHasThemToo) {
  struct Upper {
    static Result<std::string> encode(const std::string& value) { return "<" + value + ">"; }
    static Result<std::string> decode(std::string bytes) { return bytes.substr(1, bytes.size() - 2); }
  };
  auto opened = Cache<std::string, Upper>::open_task(
      client(), options(), [](BrandedId, CancelToken) -> Loading { co_return brought("alice"); });
  ASSERT_TRUE(opened);
  const auto answer = opened->get(kUserA).get();
  ASSERT_TRUE(answer && *answer);
  EXPECT_EQ(**answer, "alice");
  EXPECT_EQ(stored(kUserA), frame(kV1, "<alice>"));
}

}  // namespace
}  // namespace echomq::test
