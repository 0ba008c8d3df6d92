// Orders of events that the model test of the cache has found, each played once.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "cache/push.hpp"
#include "model/cache_server.hpp"

namespace echomq::model {
namespace {

constexpr std::array<BrandedId, 2> kBoth = {BrandedId{"USR0NgWEfAE00A"}, BrandedId{"USR0NgWEfAE00B"}};

[[nodiscard]] std::string key_of(const BrandedId& id) { return "ecc:{t}:" + std::string(id.text()); }
[[nodiscard]] std::string version_of(std::uint64_t number) {
  return std::string(BrandedId::encode("EVT", number).value().text());
}

struct Reader final : detail::CacheWaiter {
  void answer(Result<CachedBytes> got) noexcept override { answered.emplace(std::move(got)); }
  std::optional<Result<CachedBytes>> answered;
};

/// A table that tracks, without a loader, and its server.
class CacheNamed : public ::testing::Test {
 protected:
  CacheNamed() {
    table->hear_by(std::make_shared<CacheHearing>(hearing));
    hearing.on_push = [&](const resp::View& push, const CacheConnection::Versions&) {
      cache::read_push(push, "ecc:{t}:", "ecc:{t}:coh", *table);
    };
    hearing.on_confirmed = [&](const CacheConnection::Versions&) { table->armed(); };
    hearing.listen();
    all_of(hearing);
  }
  ~CacheNamed() override { table->close(); }

  static void all_of(CacheConnection& connection) {
    while (connection.can_execute())
      connection.execute();
    while (connection.can_deliver())
      connection.deliver();
  }
  [[nodiscard]] Reply<CachePut> put(std::uint64_t number, const char* value) {
    return table->put(kBoth[0], value, {.version = BrandedId::encode("EVT", number).value()});
  }
  void others_put(std::uint64_t number, const char* value, const char* ttl) {
    server.run({"EVALSHA", "", "1", key_of(kBoth[0]), version_of(number), value, ttl});
  }
  void ask(Reader& reader) {
    detail::CacheWaiter* const waiter = &reader;
    table->fetch({kBoth.data(), 1}, {&waiter, 1});
  }
  /// What L1 has of the first id.
  [[nodiscard]] std::string kept() const {
    CachedBytes row;
    return table->peek(kBoth[0], row) ? row.value.value_or("nothing") : "no row";
  }

  CacheServer server;
  std::uint64_t ids = std::uint64_t{1} << 40;
  CacheConnection main{server, CacheConnection::Listens::no};
  CacheConnection hearing{server, CacheConnection::Listens::to_changes};
  std::shared_ptr<cache::Table> table = std::make_shared<cache::Table>(
      std::make_shared<CacheCore>(main, ids),
      CacheOptions{
          .table = "t", .kind = "USR", .ttl = std::chrono::seconds(60), .jitter = 0, .coherence = Coherence::tracking},
      nullptr, nullptr, &server.time);
};

// Rows of one `get_many` are read by one request. What was heard between the reply of the first row and the end of the
// request was taken as heard before both, and the older first row stayed in L1 until its time was over.
TEST_F(CacheNamed, APushBetweenTwoRowsOfOneReadIsNotOfBeforeTheFirst) {
  for (const BrandedId& id : kBoth)
    server.run({"SET", key_of(id), version_of(1) + "old", "NX", "GET", "PX", "60000"});
  server.end_turn();
  while (hearing.can_deliver())
    hearing.deliver();

  std::array<Reader, 2> readers;
  const std::array<detail::CacheWaiter*, 2> waiters = {&readers[0], &readers[1]};
  table->fetch(kBoth, waiters);
  for (int i = 0; i < 2; ++i)
    hearing.execute();  // PTTL and GET of the first
  server.run({"EVALSHA", "", "1", key_of(kBoth[0]), version_of(2), "new", "60000"});
  server.end_turn();
  while (hearing.can_execute())
    hearing.execute();
  while (hearing.can_deliver())
    hearing.deliver();

  for (const Reader& reader : readers)
    EXPECT_EQ(reader.answered.value().value().value, "old") << "it was asked for before";
  CachedBytes row;
  EXPECT_FALSE(table->peek(kBoth[0], row));
  EXPECT_TRUE(table->peek(kBoth[1], row)) << "nothing was heard of it";
}

// A put was executed where there was nothing, for the newer row that a reader had been given meanwhile was over; its answer came
// after that, and the older value stayed in L1. (Tracking: a reader's request passes a put's.)
TEST_F(CacheNamed, APutIsNotKeptAfterSomethingNewerWasGiven) {
  others_put(2, "new", "5");
  server.end_turn();
  all_of(hearing);
  auto placing = put(1, "old");
  Reader reader;
  ask(reader);
  all_of(hearing);
  EXPECT_EQ(reader.answered.value().value().value, "new");
  EXPECT_EQ(kept(), "no row") << "it has hardly any time left";
  server.time += 10;
  all_of(main);
  ASSERT_TRUE(placing.ready());
  EXPECT_EQ(placing.get(), CachePut::stored);
  EXPECT_EQ(kept(), "no row");
}

// As before; what was newer was this table's own when the put began, and its time was over when the answer came.
TEST_F(CacheNamed, APutIsNotKeptAfterSomethingNewerWasHere) {
  others_put(2, "new", "100");
  server.end_turn();
  all_of(hearing);
  Reader reader;
  ask(reader);
  all_of(hearing);
  EXPECT_EQ(kept(), "new");
  auto placing = put(1, "old");
  server.time += 200;
  all_of(main);
  ASSERT_TRUE(placing.ready());
  EXPECT_EQ(placing.get(), CachePut::stored);
  EXPECT_EQ(kept(), "no row");
}

// The time left was asked for before there was a row, then this table put one, and somebody a newer one, which was given and, as of
// no time, not kept: the older one of the own put stayed.
TEST_F(CacheNamed, ARowOfTheOwnPutGoesWhenSomethingNewerIsGiven) {
  Reader reader;
  ask(reader);
  hearing.execute();  // PTTL: there is none
  auto placing = put(1, "old");
  all_of(main);
  ASSERT_TRUE(placing.ready());
  EXPECT_EQ(kept(), "old");
  others_put(2, "new", "60000");
  hearing.execute();  // GET
  for (int i = 0; i < 2; ++i)
    hearing.deliver();
  EXPECT_EQ(reader.answered.value().value().value, "new");
  EXPECT_EQ(kept(), "no row") << "and no push has come yet";
}

}  // namespace
}  // namespace echomq::model
