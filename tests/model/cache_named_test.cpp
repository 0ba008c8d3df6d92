// Orders of events that the model test of the cache has found, each played once.
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
  for (int i = 0; i < 3; ++i)
    hearing.execute();  // version, PTTL and GET of the first
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
    Reader reader;
    ask(reader);
    all_of(hearing);
    ASSERT_EQ(loads.size(), 1U);
    auto placing = put(2, "put");
    main.execute();
    server.run({"EVALSHA", "", "1", key_of(kBoth[0]), version_of(3)});
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
    server.run({"DEL", key_of(kBoth[0])});
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
        server.run({"DEL", key_of(kBoth[0])});
        server.run({"DEL", key_of(kBoth[1])});
        server.run({"SET", key_of(kBoth[0]), version_of(1) + "row", "NX", "GET", "PX", "60000"});
        server.run({"SET", key_of(kBoth[1]), version_of(1) + "row", "NX", "GET", "PX", "60000"});
        server.end_turn();
        int refused = 0;
        int written = 0;
        server.refuses = [&](const CacheConnection::Command& command) -> std::optional<std::string> {
          written += command[0] == "SET" ? 1 : 0;
          if (command.size() < 2 || command[1] != key_of(kBoth[0]))
            return std::nullopt;
          refused += command[0] == "GET" ? 1 : 0;
          return kMoved;
        };
        std::array<Reader, 2> readers;
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
        Reader later;
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
    Reader before;
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
    EXPECT_FALSE(server.frame(key_of(kBoth[0]))) << "nothing else would end it";
    Reader after;
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
    Reader before;
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
  Reader before;
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
  EXPECT_FALSE(server.frame(key_of(kBoth[0])));
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
  ASSERT_TRUE(server.frame(key_of(kBoth[0]))) << "written after it was deleted";
  Reader after;
  ask(after);
  all_of(main);
  ASSERT_TRUE(after.answered.has_value());
  EXPECT_FALSE(after.answered.value()) << "not what an invalidation has ended: " << *after.answered.value()->value;
  hearing.listen();
  come_to_rest();
  EXPECT_FALSE(server.frame(key_of(kBoth[0]))) << "it is taken back";
  Reader later;
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
  Reader after;
  ask(after);
  all_of(main);
  EXPECT_EQ(after.answered.value().value().value, "changed");
  hearing.reconnect();
  hearing.listen();
  come_to_rest();
  EXPECT_EQ(server.frame(key_of(kBoth[0])), version_of(2) + "changed");
}

/// Processes that load, with the job lane or nothing: tables on one server, each with a connection of its own.
class CacheNamedLoads : public ::testing::Test {
 protected:
  struct Process {
    Process(CacheServer& server, std::uint64_t& ids, const CacheOptions& options)
        : main(server, CacheConnection::Listens::no),
          table(std::make_shared<cache::Table>(
              std::make_shared<CacheCore>(main, ids), options, nullptr,
              [this](const BrandedId&, LoadDone done) { loads.push_back(std::move(done)); }, &server.time)) {
      table->armed();
    }
    ~Process() { table->close(); }

    void come_to_rest() {
      while (main.can_execute())
        main.execute();
      while (main.can_deliver())
        main.deliver();
      if (main.can_execute())
        come_to_rest();  // what came was answered by another request
    }
    void ask(Reader& reader) {
      detail::CacheWaiter* const waiter = &reader;
      table->fetch({kBoth.data(), 1}, {&waiter, 1});
    }
    [[nodiscard]] Reply<CachePut> put(std::uint64_t number, const char* value, std::vector<std::string> tags = {}) {
      return table->put(kBoth[0], value,
                        {.version = BrandedId::encode("EVT", number).value(), .tags = std::move(tags)});
    }
    /// The oldest load ends.
    void loaded(std::uint64_t number, const char* value, std::vector<std::string> tags = {}) {
      const LoadDone done = std::move(loads.front());
      loads.pop_front();
      done(std::optional(Loaded<std::string>{value, BrandedId::encode("EVT", number).value(), std::move(tags)}));
    }

    CacheConnection main;
    std::deque<LoadDone> loads;
    std::shared_ptr<cache::Table> table;
  };
  [[nodiscard]] static CacheOptions options() {
    return {.table = "t", .kind = "USR", .ttl = std::chrono::seconds(60), .jitter = 0};
  }
  /// Another process, at once.
  void others_put(std::uint64_t number, const char* value, const char* ttl) {
    server.run({"EVALSHA", "", "1", key_of(kBoth[0]), version_of(number), value, ttl});
  }

  enum class Fails : std::uint8_t { read, fill };
  /// A load is under way, a tag is dropped, somebody asks, and the load brings a row under the tag.
  void after_a_drop(Fails fails) {
    CacheOptions with = options();
    with.tags = true;
    Process one(server, ids, with);
    Reader before;
    one.ask(before);
    if (fails == Fails::read)
      one.main.fail_oldest(Error(Errc::timeout, "L2 is away"), true);
    one.come_to_rest();
    ASSERT_EQ(one.loads.size(), 1U) << "it has read the source";
    auto drop = one.table->invalidate_tag("a");
    one.come_to_rest();
    ASSERT_TRUE(drop.ready());
    Reader after;
    one.ask(after);
    one.loaded(1, "of before", {"a"});
    if (fails == Fails::fill)
      one.main.fail_oldest(Error(Errc::timeout, "L2 does not take it"), true);
    one.come_to_rest();
    EXPECT_EQ(before.answered.value().value().value, "of before");
    ASSERT_FALSE(after.answered.has_value());
    ASSERT_EQ(one.loads.size(), 1U) << "the source is asked once more";
    one.loaded(std::uint64_t{1} << 41, "of after", {"a"});
    one.come_to_rest();
    EXPECT_EQ(after.answered.value().value().value, "of after");
  }

  CacheServer server;
  std::uint64_t ids = std::uint64_t{1} << 40;
};

// A row whose own time was short was given; when it was over, an older put of another process came, late, and stood in L2: the next
// read gave less than the one before.
TEST_F(CacheNamedLoads, AnOlderPutThatComesAfterAShortRowIsOverIsNotGiven) {
  Process one(server, ids, options());
  others_put(2, "short", "40");
  Reader first;
  one.ask(first);
  one.come_to_rest();
  EXPECT_EQ(first.answered.value().value().value, "short");
  server.time += 50;
  others_put(1, "old and late", "60000");
  Reader second;
  one.ask(second);
  one.come_to_rest();
  ASSERT_EQ(one.loads.size(), 1U) << "the source is asked";
  one.loaded(2, "short");
  one.come_to_rest();
  EXPECT_EQ(second.answered.value().value().value, "short");
}

// As before; what was given had been loaded, with a time of its own, and written to L2.
TEST_F(CacheNamedLoads, NorAfterAShortRowThatWasLoaded) {
  Process one(server, ids, options());
  Reader first;
  one.ask(first);
  one.come_to_rest();
  ASSERT_EQ(one.loads.size(), 1U);
  const LoadDone done = std::move(one.loads.front());
  one.loads.pop_front();
  done(std::optional(
      Loaded<std::string>{"short", BrandedId::encode("EVT", 2).value(), {}, std::chrono::milliseconds(40)}));
  one.come_to_rest();
  EXPECT_EQ(first.answered.value().value().value, "short");
  server.time += 50;
  others_put(1, "old and late", "60000");
  Reader second;
  one.ask(second);
  one.come_to_rest();
  ASSERT_EQ(one.loads.size(), 1U) << "the source is asked";
  one.loaded(2, "short");
  one.come_to_rest();
  EXPECT_EQ(second.answered.value().value().value, "short");
}

// A row with a short time of its own came between the two commands that ask for the time left and for the row: L1 kept it for what was
// left of the one before, beyond its end in L2, and when it was over there an older put stood in its place. (Seeds 7506, 21306.)
TEST_F(CacheNamedLoads, ARowIsNotKeptForTheTimeOfTheOneBeforeIt) {
  Process one(server, ids, options());
  others_put(1, "long", "60000");
  Reader first;
  one.ask(first);
  for (int i = 0; i < 2; ++i)
    one.main.execute();  // version, PTTL
  others_put(3, "short", "300");
  one.come_to_rest();
  EXPECT_EQ(first.answered.value().value().value, "short");
  CachedBytes row;
  EXPECT_FALSE(one.table->peek(kBoth[0], row));
  server.time += 310;
  others_put(2, "old and late", "60000");
  Reader second;
  one.ask(second);
  one.come_to_rest();
  ASSERT_EQ(one.loads.size(), 1U) << "the source is asked";
  one.loaded(3, "short");
  one.come_to_rest();
  EXPECT_EQ(second.answered.value().value().value, "short");
}

// Nor when it lives longer than the one before, when that was over in between, or when it is read alone: then its time is known.
TEST_F(CacheNamedLoads, WhateverComesBetweenTheAnswersOfARead) {
  struct Between {
    const char* before;  // its time; none: no row
    std::uint64_t later;
    const char* comes;  // its time
    const char* given;
    std::uint64_t kept_for;
  };
  // Each gap, and in it a row that lives longer or as long, the end of the row, or both.
  for (const int gap : {1, 2}) {
    for (const Between& now :
         {Between{"1000", 0, "60000", "after", 0}, Between{"1000", 0, "1000", "after", 0},
          Between{nullptr, 0, "1000", "after", 0}, Between{"1000", 1001, "1000", "after", 0},
          Between{"1000", 1001, nullptr, nullptr, 0}, Between{"1000", 0, nullptr, "before", 1000}}) {
      SCOPED_TRACE(gap);
      Process one(server, ids, options());
      server.run({"DEL", key_of(kBoth[0])});
      if (now.before != nullptr)
        others_put(1, "before", now.before);
      Reader reader;
      one.ask(reader);
      for (int i = 0; i < gap; ++i)
        one.main.execute();
      server.time += now.later;
      if (now.comes != nullptr)
        others_put(2, "after", now.comes);
      one.come_to_rest();
      if (now.given == nullptr) {
        EXPECT_EQ(one.loads.size(), 1U);
        one.loads.clear();
        continue;
      }
      EXPECT_EQ(reader.answered.value().value().value, now.given);
      CachedBytes row;
      EXPECT_EQ(one.table->peek(kBoth[0], row), now.kept_for != 0);
      server.time += now.kept_for;
      EXPECT_FALSE(one.table->peek(kBoth[0], row));
    }
  }
}

// A row that was to be loaded anew, for its time is nearly over, was replaced by others while it was looked at: the loader is left alone.
TEST_F(CacheNamedLoads, ARowThatOthersReplaceMeanwhileIsNotRefreshed) {
  CacheOptions with = options();
  with.refresh_ahead = 0.5;
  Process one(server, ids, with);
  others_put(1, "old", "60000");
  Reader first;
  one.ask(first);
  one.come_to_rest();
  server.time += 40'000;
  CachedBytes row;
  ASSERT_TRUE(one.table->hit(kBoth[0], row));
  one.main.execute();  // version
  others_put(2, "new", "60000");
  one.come_to_rest();
  EXPECT_TRUE(one.loads.empty());
  EXPECT_FALSE(one.table->peek(kBoth[0], row)) << "older than what L2 has";
  Reader second;
  one.ask(second);
  one.come_to_rest();
  EXPECT_EQ(second.answered.value().value().value, "new");
  EXPECT_TRUE(one.table->peek(kBoth[0], row));
}

// A put under a tag that was dropped meanwhile was refused, as superseded; the row before it, under no tag, stayed in L2, and the
// table gave it after its own newer put.
TEST_F(CacheNamedLoads, WhatAPutUnderADroppedTagWouldHaveReplacedIsNotGiven) {
  CacheOptions with = options();
  with.tags = true;
  Process one(server, ids, with);
  Process other(server, ids, with);
  auto before = one.put(1, "before");
  auto tagged = one.put(2, "tagged", {"a"});
  auto drop = other.table->invalidate_tag("a");
  other.come_to_rest();
  ASSERT_TRUE(drop.ready());
  one.come_to_rest();
  ASSERT_TRUE(before.ready() && tagged.ready());
  EXPECT_EQ(before.get(), CachePut::stored);
  EXPECT_EQ(tagged.get(), CachePut::superseded);
  Reader reader;
  one.ask(reader);
  one.come_to_rest();
  ASSERT_EQ(one.loads.size(), 1U) << "the source is asked";
  one.loaded(2, "tagged");
  one.come_to_rest();
  EXPECT_EQ(reader.answered.value().value().value, "tagged");
}

// A load was under way when its tag was dropped, and no row stood under the tag: who asked when the drop had ended joined the load, and
// was given what it had read before.
TEST_F(CacheNamedLoads, WhoAsksAfterADropIsNotGivenWhatWasLoadedBefore) {
  CacheOptions with = options();
  with.tags = true;
  Process one(server, ids, with);
  Reader before;
  one.ask(before);
  one.come_to_rest();
  ASSERT_EQ(one.loads.size(), 1U) << "it has read the source";
  auto drop = one.table->invalidate_tag("a");
  one.come_to_rest();
  ASSERT_TRUE(drop.ready());
  Reader after;
  one.ask(after);
  one.loaded(1, "of before", {"a"});
  one.come_to_rest();
  EXPECT_EQ(before.answered.value().value().value, "of before");
  ASSERT_FALSE(after.answered.has_value());
  ASSERT_EQ(one.loads.size(), 1U) << "the source is asked once more";
  one.loaded(std::uint64_t{1} << 41, "of after", {"a"});
  one.come_to_rest();
  EXPECT_EQ(after.answered.value().value().value, "of after");
}

// A source that went back (a database from a backup): each load that was given made the newest that was ever heard of hold longer, so
// that nothing of a row that was asked for often was kept any more.
TEST_F(CacheNamedLoads, ASourceThatWentBackIsKeptWhenWhatWasKnownIsOver) {
  Process one(server, ids, options());
  auto placing = one.put(5, "newest");
  one.come_to_rest();
  ASSERT_TRUE(placing.ready());
  for (int i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    server.time += i == 0 ? 61'000 : 25'000;
    Reader reader;
    one.ask(reader);
    one.come_to_rest();
    ASSERT_EQ(one.loads.size(), 1U) << "the source is asked";
    one.loaded(3, "restored");
    one.come_to_rest();
    EXPECT_EQ(reader.answered.value().value().value, "restored");
    CachedBytes row;
    EXPECT_FALSE(one.table->peek(kBoth[0], row));
    EXPECT_FALSE(server.frame(key_of(kBoth[0])));
  }
  server.time += 25'000;  // twice the time to live since the put
  Reader reader;
  one.ask(reader);
  one.come_to_rest();
  ASSERT_EQ(one.loads.size(), 1U);
  one.loaded(3, "restored");
  one.come_to_rest();
  CachedBytes row;
  EXPECT_TRUE(one.table->peek(kBoth[0], row));
  EXPECT_TRUE(server.frame(key_of(kBoth[0])));
  // It is a floor in its turn.
  server.time += 61'000;
  others_put(2, "old and late", "60000");
  Reader last;
  one.ask(last);
  one.come_to_rest();
  ASSERT_EQ(one.loads.size(), 1U) << "the source is asked";
  one.loaded(3, "restored");
  one.come_to_rest();
  EXPECT_EQ(last.answered.value().value().value, "restored");
}

// As before; L2 did not take what was loaded, or was away: then nothing was known to have overtaken it.
TEST_F(CacheNamedLoads, NorWhatL2DoesNotTake) { after_a_drop(Fails::fill); }
TEST_F(CacheNamedLoads, NorWhatWasLoadedWhileL2WasAway) { after_a_drop(Fails::read); }

// A row of a put had its whole time in L1 from when the answer came, and so outlived its row in L2 and its note under the tag: a
// drop did not find it.
TEST_F(CacheNamedLoads, ARowIsInL1NoLongerThanInL2HoweverLateTheAnswerIs) {
  CacheOptions with = options();
  with.tags = true;
  Process one(server, ids, with);
  auto placing = one.put(1, "put", {"a"});
  one.main.execute();
  server.time += 50'000;
  one.come_to_rest();
  ASSERT_TRUE(placing.ready());
  CachedBytes row;
  EXPECT_TRUE(one.table->peek(kBoth[0], row));
  server.time += 15'000;
  ASSERT_FALSE(one.table->peek(kBoth[0], row)) << "of a put";

  Reader loading;
  one.ask(loading);
  one.come_to_rest();
  ASSERT_EQ(one.loads.size(), 1U);
  one.loaded(2, "load");
  one.main.execute();
  server.time += 50'000;
  one.come_to_rest();
  EXPECT_TRUE(one.table->peek(kBoth[0], row));
  server.time += 15'000;
  ASSERT_FALSE(one.table->peek(kBoth[0], row)) << "of a load";

  others_put(3, "others'", "60000");
  Reader reading;
  one.ask(reading);
  for (int i = 0; i < 4; ++i)
    one.main.execute();  // drops, version, PTTL, GET
  server.time += 50'000;
  one.come_to_rest();
  EXPECT_EQ(reading.answered.value().value().value, "others'");
  EXPECT_TRUE(one.table->peek(kBoth[0], row));
  server.time += 15'000;
  EXPECT_FALSE(one.table->peek(kBoth[0], row)) << "of a read";
}

// A late loader met an older row, and wrote over it by another command; an `invalidate` had been sent before that meanwhile, and had ended.
// Until its row was taken back, who asked beside it was given that. (Seed 9644, broadcast.)
TEST_F(CacheNamedLoads, WhatALateLoaderWritesAfterAnInvalidationIsNotGivenBesideIt) {
  CacheOptions with = options();
  with.load_deadline = std::chrono::milliseconds(40);
  Process one(server, ids, with);
  Reader before;
  one.ask(before);
  one.come_to_rest();
  ASSERT_EQ(one.loads.size(), 1U) << "it has read the source";
  server.time += 50;
  one.table->run_due();
  ASSERT_TRUE(before.answered.has_value());
  EXPECT_FALSE(before.answered.value()) << "it is late";
  others_put(1, "theirs", "60000");
  one.loaded(2, "of before");
  one.main.execute();                           // where there is nothing, but there is
  auto gone = one.table->invalidate(kBoth[0]);  // the source has changed
  one.main.deliver();                           // it writes over what is there
  one.main.execute();                           // the deletion
  one.main.deliver();
  ASSERT_TRUE(gone.ready());
  EXPECT_TRUE(gone.get());
  Reader after;
  one.ask(after);
  one.main.execute();
  ASSERT_TRUE(server.frame(key_of(kBoth[0]))) << "written after it was deleted";
  one.come_to_rest();
  ASSERT_TRUE(after.answered.has_value());
  EXPECT_FALSE(after.answered.value()) << "not what an invalidation has ended: " << *after.answered.value()->value;
  EXPECT_FALSE(server.frame(key_of(kBoth[0]))) << "it is taken back";
  Reader later;
  one.ask(later);
  one.come_to_rest();
  ASSERT_EQ(one.loads.size(), 1U) << "the source is asked";
  one.loaded(3, "changed");
  one.come_to_rest();
  EXPECT_EQ(later.answered.value().value().value, "changed");
}

// `invalidate` ends the right to load too: a process that has read the source before, and writes after, would else bring the old
// row back, and the table that asked for it to go would give it.
TEST_F(CacheNamedLoads, WhatIsBeingLoadedWhileItIsInvalidatedIsNotWritten) {
  CacheOptions with = options();
  with.load_lease = std::chrono::seconds(10);
  Process loads(server, ids, with);
  Process invalidates(server, ids, with);
  Reader first;
  loads.ask(first);
  loads.come_to_rest();
  ASSERT_EQ(loads.loads.size(), 1U) << "it has the right to, and has read the source";
  auto gone = invalidates.table->invalidate(kBoth[0]);  // the source has changed
  invalidates.come_to_rest();
  ASSERT_TRUE(gone.ready());
  ASSERT_TRUE(gone.get());
  loads.loaded(1, "of before");
  loads.come_to_rest();
  EXPECT_EQ(first.answered.value().value().value, "of before") << "it was asked for before";
  EXPECT_FALSE(server.frame(key_of(kBoth[0]))) << "nobody else may be given it";
  Reader second;
  invalidates.ask(second);
  invalidates.come_to_rest();
  ASSERT_EQ(invalidates.loads.size(), 1U) << "the source is asked";
  invalidates.loaded(2, "changed");
  invalidates.come_to_rest();
  EXPECT_EQ(second.answered.value().value().value, "changed");
}

}  // namespace
}  // namespace echomq::model
