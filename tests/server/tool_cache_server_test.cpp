// `emq cache`.
#include "echomq/cache.hpp"

#include "tool_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kRow = "USR0NgWEfAE00A";

class ToolCache : public ToolTest {};

TEST_F(ToolCache, PutsGetsCountsAndInvalidates) {
  ToolResult result = emq({"cache", "get", "users", kRow});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("no row"));
  result = emq({"cache", "put", "users", kRow, "alice", "--version", "USR0NgWEfAEJf2", "--ttl", "60000"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "stored as USR0NgWEfAEJf2, 0 told\n");
  result = emq({"cache", "put", "users", kRow, "older", "--version", "USR0NgWEfAEJf1"});
  EXPECT_EQ(result.exit_code, 5);
  result = emq({"cache", "get", "users", kRow, "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto row = json_of(result.out);
  EXPECT_EQ(row.at("value"), "alice");
  EXPECT_EQ(row.at("version"), "USR0NgWEfAEJf2");
  EXPECT_GT(row.at("ttl_ms").to_number<int>(), 50'000);
  EXPECT_EQ(emq({"cache", "stats", "users"}).out, "users: 1 rows, 19 bytes, 0 listening to its channel\n");
  result = emq({"cache", "invalidate", "users", kRow, "USR0NgWEfAE00B"});
  EXPECT_EQ(result.out, std::string(kRow) + " deleted, 0 told\nUSR0NgWEfAE00B not there, 0 told\n") << result.err;
  EXPECT_EQ(emq({"cache", "get", "users", kRow}).exit_code, 3);
  EXPECT_EQ(emq({"cache", "get", "no table", kRow}).exit_code, 2);
  EXPECT_EQ(emq({"cache", "get", "users", "no id"}).exit_code, 2);
}

TEST_F(ToolCache, StatsShowWhatProcessesReport) {
  auto client = Client::open(url());
  ASSERT_TRUE(client);
  auto cache = ByteCache::open(
      *client,
      {.table = "users", .kind = "USR", .ttl = std::chrono::minutes(1), .report_every = std::chrono::milliseconds(100)},
      [](const BrandedId&) -> Result<std::optional<Loaded<std::string>>> {
        return std::optional<Loaded<std::string>>({"alice", std::nullopt});
      });
  ASSERT_TRUE(cache) << cache.error().message();
  for (int i = 0; i < 4; ++i)
    ASSERT_TRUE(cache->get(BrandedId("USR0NgWEfAE00A")).get());
  EXPECT_TRUE(comes_true([&] {
    const auto shown = json_of(emq({"cache", "stats", "users", "--json"}).out);
    const auto& processes = shown.at("processes").as_array();
    return processes.size() == 1 && processes[0].at("hits").to_number<int>() == 3 &&
           processes[0].at("load").at("count").to_number<int>() == 1 && shown.at("rows").to_number<int>() == 1;
  }));
  EXPECT_THAT(emq({"cache", "stats", "users"}).out, HasSubstr("4 reads, 75.0 % hits, 0 stale, 1 rows"));
  // Of another version, or no report at all.
  for (const char* strange : {R"({"host":"h"})", R"({"host":1,"pid":"x"})", "no json", "[]"}) {
    ASSERT_TRUE(client->command("SET", "eccx:{users}:stats:PRC0NgWEfAE00A", strange).get());
    const auto shown = emq({"cache", "stats", "users"});
    EXPECT_EQ(shown.exit_code, 0) << shown.err;
    EXPECT_THAT(shown.out, HasSubstr("4 reads"));
  }
  ASSERT_TRUE(client->command("DEL", "eccx:{users}:stats:PRC0NgWEfAE00A").get());
  cache->close();
  EXPECT_TRUE(comes_true([&] {
    return json_of(emq({"cache", "stats", "users", "--json"}).out).at("processes").as_array().empty();
  })) << "a report goes with its process";
}

TEST_F(ToolCache, WhatItInvalidatesAWatcherAndATableHear) {
  auto client = Client::open(url());
  ASSERT_TRUE(client);
  auto cache = ByteCache::open(*client, {.table = "users", .kind = "USR", .coherence = Coherence::broadcast});
  ASSERT_TRUE(cache) << cache.error().message();
  ASSERT_TRUE(cache->put(BrandedId("USR0NgWEfAE00A"), "alice").get());
  ASSERT_TRUE(cache->get(BrandedId("USR0NgWEfAE00A")).get()->value);
  Tool tool({"cache", "watch", "users", "-n", "1"}, {}, {{"EMQ_URL", url()}});
  EXPECT_TRUE(comes_true([&] {
    EXPECT_EQ(emq({"cache", "invalidate", "users", kRow}).exit_code, 0);
    return !tool.out().empty();
  }));
  const ToolResult heard = tool.wait();
  EXPECT_EQ(heard.exit_code, 0) << heard.err;
  EXPECT_THAT(heard.out, HasSubstr(std::string(" ") + kRow + " version USR"));
  EXPECT_TRUE(comes_true([&] {
    const auto answer = cache->get(BrandedId("USR0NgWEfAE00A")).get();
    return answer && !answer->value;
  })) << "no loader, no row: nothing";
}

TEST_F(ToolCache, DropsATag) {
  auto client = Client::open(url());
  ASSERT_TRUE(client);
  auto cache = ByteCache::open(
      *client, {.table = "users", .kind = "USR", .ttl = 60s, .coherence = Coherence::broadcast, .tags = true});
  ASSERT_TRUE(cache) << cache.error().message();
  ASSERT_TRUE(cache->put(BrandedId("USR0NgWEfAE00A"), "alice", {.tags = {"team.7"}}).get());
  CachedBytes row;
  ASSERT_TRUE(cache->peek(BrandedId("USR0NgWEfAE00A"), row));
  EXPECT_EQ(emq({"cache", "drop", "users", "team.7"}).out, "1 rows dropped\n");
  EXPECT_TRUE(comes_true([&] { return !cache->peek(BrandedId("USR0NgWEfAE00A"), row); }));
  EXPECT_EQ(emq({"cache", "drop", "users", "team.7", "--json"}).out, "{\"tag\":\"team.7\",\"dropped\":0}\n");
  EXPECT_EQ(emq({"cache", "drop", "users", "no tag"}).exit_code, 2);
  // What was known before a drop is refused for the table's ttl, an hour at least.
  const auto remembered = [&] {
    const auto left = client->command("PTTL", "eccx:{users}:tagfloor:team.7").get();
    return std::chrono::milliseconds(left ? left->as_integer().value_or(0) : 0);
  };
  EXPECT_GT(remembered(), 59min);
  EXPECT_LE(remembered(), 60min);
  EXPECT_EQ(emq({"cache", "drop", "users", "team.7", "--ttl", "86400000"}).exit_code, 0);
  EXPECT_GT(remembered(), 23h);
  EXPECT_LE(remembered(), 24h);
  EXPECT_EQ(emq({"cache", "drop", "users", "team.7", "--ttl", "0"}).exit_code, 2);
}

}  // namespace
}  // namespace echomq::test
