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

// Rows of one `get_many` are read by one request. What was heard between the reply of the first row and the end of the
// request was taken as heard before both, and the older first row stayed in L1 until its time was over.
TEST(CacheNamed, APushBetweenTwoRowsOfOneReadIsNotOfBeforeTheFirst) {
  CacheServer server;
  std::uint64_t ids = std::uint64_t{1} << 40;
  CacheConnection main(server, CacheConnection::Listens::no);
  CacheConnection hearing(server, CacheConnection::Listens::to_changes);
  auto table = std::make_shared<cache::Table>(
      std::make_shared<CacheCore>(main, ids),
      CacheOptions{
          .table = "t", .kind = "USR", .ttl = std::chrono::seconds(60), .jitter = 0, .coherence = Coherence::tracking},
      nullptr, nullptr, &server.time);
  table->hear_by(std::make_shared<CacheHearing>(hearing));
  hearing.on_push = [&](const resp::View& push, const CacheConnection::Versions&) {
    cache::read_push(push, "ecc:{t}:", "ecc:{t}:coh", *table);
  };
  hearing.on_confirmed = [&](const CacheConnection::Versions&) { table->armed(); };
  hearing.listen();
  hearing.execute();
  hearing.deliver();
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
  table->close();
}

}  // namespace
}  // namespace echomq::model
