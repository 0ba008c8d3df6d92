// Stream records and cache values, byte by byte: the half of this library here is ids, raw commands and subscriptions, compared
// with what the second speaker writes and reads by the protocol folder. Tables against tables: tables_interop_test.cpp.
#include <condition_variable>
#include <mutex>

#include "interop/exchange_fixture.hpp"

namespace echomq::interop {
namespace {

TEST_F(ExchangeTest, RecordsOfThePeerStandWhereOurIdsSay) {
  const json::value fields =
      json::array{json::array{"kind", "fill"}, json::array{"bytes", json::object{{"hex", "00ff"}}}};
  const json::value receipt = ask("stream_append", {{"stream", "s"}, {"fields", fields}});
  const EventId id = EventId::parse(conformance::text_of(receipt.at("ok"))).value();
  const Value entries = client().command("XRANGE", "emq:{q}:stream:s", "-", "+").get().value();
  const json::value expected =
      json::array{json::array{json::string(id.entry_id().text()),
                              json::array{"id", text(id), "kind", "fill", "bytes", json::object{{"hex", "00ff"}}}}};
  EXPECT_EQ(conformance::to_json(entries), expected);
}

TEST_F(ExchangeTest, RecordsWithOurIdsAreReadByThePeerInOrder) {
  std::vector<EventId> ids;
  for (const char* value : {"first", "second"}) {
    ids.push_back(EventId::parse(client().mint("EVT").value().text()).value());
    ASSERT_TRUE(
        client()
            .command("XADD", "emq:{q}:stream:s", ids.back().entry_id().text(), "id", ids.back().text(), "k", value)
            .get());
  }
  const json::array first{text(ids[0]), json::object{{"k", "first"}}};
  const json::array second{text(ids[1]), json::object{{"k", "second"}}};
  EXPECT_EQ(ask("stream_read", {{"stream", "s"}}), ok(json::array{first, second}));
  // What is older than the top is refused, whoever wrote the top.
  EXPECT_EQ(ask("stream_append_id", {{"stream", "s"}, {"id", text(ids[0])}, {"fields", json::array{}}}),
            error("nonmonotonic"));
}

TEST_F(ExchangeTest, CacheValuesAndMessagesAreTheSameBytes) {
  const std::string version = "USR0NgWEfAEJf1";
  const json::object place{{"table", "users"}, {"id", "USR0NgWEfAE00A"}};
  json::object put = place;
  put["value"] = json::object{{"hex", "616c00ff"}};
  put["version"] = version;
  put["ttl_ms"] = 60000;
  EXPECT_EQ(ask("cache_put", put), ok(json::string(version)));
  const std::string key = "ecc:{users}:USR0NgWEfAE00A";
  EXPECT_EQ(client().command("GET", key).get().value().as_text(), version + std::string("al\x00\xff", 4));
  EXPECT_GT(client().command("PTTL", key).get().value().as_integer(), 50000);

  ASSERT_TRUE(client().command("SET", key, "USR0NgWEfAEJf2", "PX", "60000").get());
  EXPECT_EQ(ask("cache_get", place), ok(json::array{"", "USR0NgWEfAEJf2"}));
  ASSERT_TRUE(client().command("SET", key, "short", "PX", "60000").get());
  EXPECT_EQ(ask("cache_get", place), error("corrupt"));

  std::mutex mutex;
  std::condition_variable arrived;
  std::string heard;  // guarded by mutex
  SubscriptionHandlers handlers;
  handlers.on_message = [&](std::string_view, std::string_view message) {
    const std::lock_guard lock(mutex);
    heard = message;
    arrived.notify_all();
  };
  const auto subscription = client().subscribe("ecc:{users}:coh", handlers).get();
  ASSERT_TRUE(subscription);
  json::object told = place;
  told["version"] = version;
  EXPECT_EQ(ask("broadcast", told), ok(1));
  std::unique_lock lock(mutex);
  EXPECT_TRUE(arrived.wait_for(lock, std::chrono::seconds(20), [&] { return !heard.empty(); }));
  EXPECT_EQ(heard, "USR0NgWEfAE00A:USR0NgWEfAEJf1");
}

}  // namespace
}  // namespace echomq::interop
