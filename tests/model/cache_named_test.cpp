// Orders of events that the model test of the cache has found, each played once: tables that track.
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/cache_named.hpp"

namespace echomq::model {
namespace {

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
    server.run({"EVALSHA", "", "1", named_key(kBoth[0]), named_version(number), value, ttl});
  }
  void ask(NamedReader& reader) {
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
    server.run({"SET", named_key(id), named_version(1) + "old", "NX", "GET", "PX", "60000"});
  server.end_turn();
  while (hearing.can_deliver())
    hearing.deliver();

  std::array<NamedReader, 2> readers;
  const std::array<detail::CacheWaiter*, 2> waiters = {&readers[0], &readers[1]};
  table->fetch(kBoth, waiters);
  for (int i = 0; i < 3; ++i)
    hearing.execute();  // version, PTTL and GET of the first
  server.run({"EVALSHA", "", "1", named_key(kBoth[0]), named_version(2), "new", "60000"});
  server.end_turn();
  while (hearing.can_execute())
    hearing.execute();
  while (hearing.can_deliver())
    hearing.deliver();

  for (const NamedReader& reader : readers)
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
  NamedReader reader;
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
  NamedReader reader;
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
  NamedReader reader;
  ask(reader);
  for (int i = 0; i < 2; ++i)
    hearing.execute();  // version and PTTL: there is none
  auto placing = put(1, "old");
  all_of(main);
  ASSERT_TRUE(placing.ready());
  EXPECT_EQ(kept(), "old");
  others_put(2, "new", "60000");
  hearing.execute();  // GET
  for (int i = 0; i < 3; ++i)
    hearing.deliver();
  EXPECT_EQ(reader.answered.value().value().value, "new");
  EXPECT_EQ(kept(), "no row") << "and no push has come yet";
}

// In one turn of the server a row was put, deleted by others, and written where there was nothing by a load that was older. The tracking
// connection had changed it last and was not told: what had been put stayed in L1. (Seed 9014248.)
TEST_F(CacheNamed, APutThatWasDeletedBeforeTheOwnFillIsNotKept) {
  for (const bool put_first : {false, true}) {
    SCOPED_TRACE(put_first);
    table->close();
    std::deque<LoadDone> loads;
    table = std::make_shared<cache::Table>(
        std::make_shared<CacheCore>(main, ids), table->options(), nullptr,
        [&](const BrandedId&, LoadDone done) { loads.push_back(std::move(done)); }, &server.time);
    table->hear_by(std::make_shared<CacheHearing>(hearing));
    table->armed();
    NamedReader reader;
    ask(reader);
    all_of(hearing);
    ASSERT_EQ(loads.size(), 1U);
    auto placing = put(2, "put");
    main.execute();
    server.run({"EVALSHA", "", "1", named_key(kBoth[0]), named_version(3)});
    const LoadDone done = std::move(loads.front());
    loads.pop_front();
    done(std::optional(Loaded<std::string>{"loaded", BrandedId::encode("EVT", 1).value()}));
    while (hearing.can_execute())
      hearing.execute();
    server.end_turn();
    all_of(put_first ? main : hearing);
    all_of(put_first ? hearing : main);
    ASSERT_TRUE(placing.ready());
    EXPECT_EQ(placing.get(), CachePut::stored);
    EXPECT_TRUE(reader.answered.has_value());
    EXPECT_NE(kept(), "put");
    all_of(main);
    server.run({"DEL", named_key(kBoth[0])});
    server.end_turn();
    all_of(hearing);
  }
}

// Whichever node is asked, another serves the slot, time and again: after three reads that is an outage, and the source is asked. Of one
// row, and of one of several; under tracking the first read is at the node that is heard, and L1 goes off.
TEST_F(CacheNamed, MovedAfterThreeReadsIsAnOutage) {
  constexpr const char* kMoved = "-MOVED 1 127.0.0.1:1\r\n";
  for (const Coherence coherence : {Coherence::none, Coherence::tracking}) {
    for (const CacheOutage outage : {CacheOutage::load, CacheOutage::fail}) {
      for (const bool arms_again : {false, true}) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(coherence) << static_cast<int>(outage) << arms_again);
        table->close();
        CacheOptions with = table->options();
        with.coherence = coherence;
        with.outage = outage;
        std::deque<LoadDone> loads;
        table = std::make_shared<cache::Table>(
            std::make_shared<CacheCore>(main, ids), with, nullptr,
            [&](const BrandedId&, LoadDone done) { loads.push_back(std::move(done)); }, &server.time);
        auto hears = std::make_shared<CacheHearing>(hearing);
        int misplaced = 0;
        hears->on_misplaced = [&] {
          ++misplaced;
          table->lost();
          if (arms_again)
            table->armed();
        };
        if (coherence == Coherence::tracking)
          table->hear_by(hears);
        table->armed();
        server.run({"DEL", named_key(kBoth[0])});
        server.run({"DEL", named_key(kBoth[1])});
        server.run({"SET", named_key(kBoth[0]), named_version(1) + "row", "NX", "GET", "PX", "60000"});
        server.run({"SET", named_key(kBoth[1]), named_version(1) + "row", "NX", "GET", "PX", "60000"});
        server.end_turn();
        int refused = 0;
        int written = 0;
        server.refuses = [&](const CacheConnection::Command& command) -> std::optional<std::string> {
          written += command[0] == "SET" ? 1 : 0;
          if (command.size() < 2 || command[1] != named_key(kBoth[0]))
            return std::nullopt;
          refused += command[0] == "GET" ? 1 : 0;
          return kMoved;
        };
        std::array<NamedReader, 2> readers;
        const std::array<detail::CacheWaiter*, 2> waiters = {&readers[0], &readers[1]};
        table->fetch(kBoth, waiters);
        for (int i = 0; i < 8; ++i) {
          all_of(hearing);
          all_of(main);
        }
        EXPECT_EQ(refused, 3);
        EXPECT_EQ(misplaced, coherence == Coherence::tracking ? 2 : 0) << "the third is an outage already";
        EXPECT_EQ(readers[1].answered.value().value().value, "row") << "of the other row it was answered";
        if (outage == CacheOutage::fail) {
          ASSERT_TRUE(readers[0].answered.has_value());
          ASSERT_FALSE(readers[0].answered.value());
          EXPECT_TRUE(readers[0].answered.value().error().is(Errc::moved));
          EXPECT_TRUE(loads.empty());
        } else {
          ASSERT_EQ(loads.size(), 1U);
          const LoadDone done = std::move(loads.front());
          loads.clear();
          done(std::optional(Loaded<std::string>{"loaded", BrandedId::encode("EVT", 2).value()}));
          EXPECT_EQ(readers[0].answered.value().value().value, "loaded");
          EXPECT_EQ(table->stats().outages, 1U);
        }
        EXPECT_EQ(written, 0) << "L2 is not asked any more";
        // The nodes agree again.
        server.refuses = nullptr;
        table->lost();
        table->armed();
        others_put(3, "new", "60000");
        server.end_turn();
        all_of(hearing);
        NamedReader later;
        ask(later);
        all_of(hearing);
        all_of(main);
        EXPECT_EQ(later.answered.value().value().value, "new");
        EXPECT_EQ(kept(), "new");
      }
    }
  }
}

/// A table that tracks, with tags and a loader.
class CacheNamedTracking : public CacheNamed {
 protected:
  CacheNamedTracking() {
    CacheOptions with = table->options();
    with.tags = true;
    open(with);
  }
  void open(const CacheOptions& with) {
    table->close();
    table = std::make_shared<cache::Table>(
        std::make_shared<CacheCore>(main, ids), with, nullptr,
        [this](const BrandedId&, LoadDone done) { loads.push_back(std::move(done)); }, &server.time);
    table->hear_by(std::make_shared<CacheHearing>(hearing));
    table->armed();
  }
  void loaded(std::uint64_t number, const char* value, std::vector<std::string> tags = {}) {
    const LoadDone done = std::move(loads.front());
    loads.pop_front();
    done(std::optional(Loaded<std::string>{value, BrandedId::encode("EVT", number).value(), std::move(tags)}));
  }
  void come_to_rest() {
    for (int i = 0; i < 8; ++i) {
      all_of(hearing);
      all_of(main);
      server.end_turn();
    }
  }
  /// A load has brought its value and writes it when the row is invalidated; one connection is ahead of the other.
  void invalidated_while_written(CacheConnection& ahead, CacheConnection& behind, std::vector<std::string> tags) {
    NamedReader before;
    ask(before);
    all_of(hearing);
    ASSERT_EQ(loads.size(), 1U) << "it has read the source";
    loaded(1, "of before", std::move(tags));
    auto gone = table->invalidate(kBoth[0]);  // the source has changed
    while (ahead.can_execute())
      ahead.execute();
    while (ahead.can_deliver())
      ahead.deliver();
    while (behind.can_execute())
      behind.execute();
    server.end_turn();
    come_to_rest();
    ASSERT_TRUE(gone.ready());
    EXPECT_TRUE(gone.get());
    EXPECT_EQ(before.answered.value().value().value, "of before");
    EXPECT_EQ(kept(), "no row");
    EXPECT_FALSE(server.frame(named_key(kBoth[0]))) << "nothing else would end it";
    NamedReader after;
    ask(after);
    come_to_rest();
    ASSERT_EQ(loads.size(), 1U) << "the source is asked";
    loaded(2, "changed");
    come_to_rest();
    EXPECT_EQ(after.answered.value().value().value, "changed");
  }
  /// A loader that is late has read the source; its row is on its way on the connection that hears when that is lost.
  void load_late() {
    CacheOptions with = table->options();
    with.tags = false;
    with.load_deadline = std::chrono::milliseconds(40);
    open(with);
    NamedReader before;
    ask(before);
    all_of(hearing);
    ASSERT_EQ(loads.size(), 1U) << "it has read the source";
    server.time += 50;
    table->run_due();
    ASSERT_TRUE(before.answered.has_value());
    EXPECT_FALSE(before.answered.value()) << "it is late";
    loaded(1, "of before");
    hearing.cut();
    table->lost();
  }

  std::deque<LoadDone> loads;
};

// A load under tags is written on the main connection and its row was deleted on the one that hears: where that was ahead the old row
// stood in L2 after `invalidate` had ended, for a whole time to live.
TEST_F(CacheNamedTracking, ATaggedLoadIsNotThereAfterAnInvalidation) {
  invalidated_while_written(hearing, main, {"a"});
}
TEST_F(CacheNamedTracking, NorWhereTheMainConnectionIsAhead) { invalidated_while_written(main, hearing, {"a"}); }
TEST_F(CacheNamedTracking, NorALoadWithoutTags) { invalidated_while_written(main, hearing, {}); }
TEST_F(CacheNamedTracking, NorWhereTheHearingConnectionIsAhead) { invalidated_while_written(hearing, main, {}); }

// As before, and the answer of what was written is lost: nothing of the table knows that it stands there.
TEST_F(CacheNamedTracking, NorWhereTheAnswerOfTheWriteIsLost) {
  NamedReader before;
  ask(before);
  all_of(hearing);
  ASSERT_EQ(loads.size(), 1U);
  loaded(1, "of before", {"a"});
  auto gone = table->invalidate(kBoth[0]);
  all_of(hearing);
  main.fail_oldest(Error(Errc::outcome_unknown, "it was not answered in time"), false);
  come_to_rest();
  ASSERT_TRUE(gone.ready());
  EXPECT_TRUE(gone.get());
  EXPECT_FALSE(server.frame(named_key(kBoth[0])));
}

// A late loader's row was sent to L2 on the connection that hears, which was lost; meanwhile an `invalidate` deleted on the other one,
// and had ended when the row was sent again. Until it was taken back, who asked beside the late loader was given it.
TEST_F(CacheNamedTracking, WhatALateLoaderWritesAfterAnInvalidationIsNotGivenBesideIt) {
  ASSERT_NO_FATAL_FAILURE(load_late());
  auto gone = table->invalidate(kBoth[0]);  // the source has changed
  all_of(main);
  ASSERT_TRUE(gone.ready());
  EXPECT_TRUE(gone.get());
  hearing.reconnect();
  hearing.execute();
  ASSERT_TRUE(server.frame(named_key(kBoth[0]))) << "written after it was deleted";
  NamedReader after;
  ask(after);
  all_of(main);
  ASSERT_TRUE(after.answered.has_value());
  EXPECT_FALSE(after.answered.value()) << "not what an invalidation has ended: " << *after.answered.value()->value;
  hearing.listen();
  come_to_rest();
  EXPECT_FALSE(server.frame(named_key(kBoth[0]))) << "it is taken back";
  NamedReader later;
  ask(later);
  come_to_rest();
  ASSERT_EQ(loads.size(), 1U) << "the source is asked";
  loaded(2, "changed");
  come_to_rest();
  EXPECT_EQ(later.answered.value().value().value, "changed");
}

// What others have put meanwhile is given beside it, also after the invalidation.
TEST_F(CacheNamedTracking, WhatOthersPutIsGivenBesideALateLoader) {
  ASSERT_NO_FATAL_FAILURE(load_late());
  auto gone = table->invalidate(kBoth[0]);
  all_of(main);
  ASSERT_TRUE(gone.ready());
  others_put(2, "changed", "60000");
  NamedReader after;
  ask(after);
  all_of(main);
  EXPECT_EQ(after.answered.value().value().value, "changed");
  hearing.reconnect();
  hearing.listen();
  come_to_rest();
  EXPECT_EQ(server.frame(named_key(kBoth[0])), named_version(2) + "changed");
}

}  // namespace
}  // namespace echomq::model
