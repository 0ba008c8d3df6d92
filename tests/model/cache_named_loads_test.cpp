// Orders of events that the model test of the cache has found, each played once: processes that load.
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
    void ask(NamedReader& reader) {
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
    server.run({"EVALSHA", "", "1", named_key(kBoth[0]), named_version(number), value, ttl});
  }

  enum class Fails : std::uint8_t { read, fill };
  /// A load is under way, a tag is dropped, somebody asks, and the load brings a row under the tag.
  void after_a_drop(Fails fails) {
    CacheOptions with = options();
    with.tags = true;
    Process one(server, ids, with);
    NamedReader before;
    one.ask(before);
    if (fails == Fails::read)
      one.main.fail_oldest(Error(Errc::timeout, "L2 is away"), true);
    one.come_to_rest();
    ASSERT_EQ(one.loads.size(), 1U) << "it has read the source";
    auto drop = one.table->invalidate_tag("a");
    one.come_to_rest();
    ASSERT_TRUE(drop.ready());
    NamedReader after;
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
  NamedReader first;
  one.ask(first);
  one.come_to_rest();
  EXPECT_EQ(first.answered.value().value().value, "short");
  server.time += 50;
  others_put(1, "old and late", "60000");
  NamedReader second;
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
  NamedReader first;
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
  NamedReader second;
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
  NamedReader first;
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
  NamedReader second;
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
      server.run({"DEL", named_key(kBoth[0])});
      if (now.before != nullptr)
        others_put(1, "before", now.before);
      NamedReader reader;
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
  NamedReader first;
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
  NamedReader second;
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
  NamedReader reader;
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
  NamedReader before;
  one.ask(before);
  one.come_to_rest();
  ASSERT_EQ(one.loads.size(), 1U) << "it has read the source";
  auto drop = one.table->invalidate_tag("a");
  one.come_to_rest();
  ASSERT_TRUE(drop.ready());
  NamedReader after;
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
    NamedReader reader;
    one.ask(reader);
    one.come_to_rest();
    ASSERT_EQ(one.loads.size(), 1U) << "the source is asked";
    one.loaded(3, "restored");
    one.come_to_rest();
    EXPECT_EQ(reader.answered.value().value().value, "restored");
    CachedBytes row;
    EXPECT_FALSE(one.table->peek(kBoth[0], row));
    EXPECT_FALSE(server.frame(named_key(kBoth[0])));
  }
  server.time += 25'000;  // twice the time to live since the put
  NamedReader reader;
  one.ask(reader);
  one.come_to_rest();
  ASSERT_EQ(one.loads.size(), 1U);
  one.loaded(3, "restored");
  one.come_to_rest();
  CachedBytes row;
  EXPECT_TRUE(one.table->peek(kBoth[0], row));
  EXPECT_TRUE(server.frame(named_key(kBoth[0])));
  // It is a floor in its turn.
  server.time += 61'000;
  others_put(2, "old and late", "60000");
  NamedReader last;
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

  NamedReader loading;
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
  NamedReader reading;
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
  NamedReader before;
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
  NamedReader after;
  one.ask(after);
  one.main.execute();
  ASSERT_TRUE(server.frame(named_key(kBoth[0]))) << "written after it was deleted";
  one.come_to_rest();
  ASSERT_TRUE(after.answered.has_value());
  EXPECT_FALSE(after.answered.value()) << "not what an invalidation has ended: " << *after.answered.value()->value;
  EXPECT_FALSE(server.frame(named_key(kBoth[0]))) << "it is taken back";
  NamedReader later;
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
  NamedReader first;
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
  EXPECT_FALSE(server.frame(named_key(kBoth[0]))) << "nobody else may be given it";
  NamedReader second;
  invalidates.ask(second);
  invalidates.come_to_rest();
  ASSERT_EQ(invalidates.loads.size(), 1U) << "the source is asked";
  invalidates.loaded(2, "changed");
  invalidates.come_to_rest();
  EXPECT_EQ(second.answered.value().value().value, "changed");
}

}  // namespace
}  // namespace echomq::model
