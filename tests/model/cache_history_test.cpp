// The checker of histories finds what it is for: each rule broken once, and a history that breaks none.
#include "model/cache_history.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace echomq::model {
namespace {

using Kind = CacheEvent::Kind;
using ::testing::HasSubstr;

constexpr CacheBounds kBounds{.fresh_ms = 100, .stale_ms = 300};

CacheEvent written(std::uint64_t version, std::int64_t at) {
  return {.kind = Kind::written, .version = version, .begin = at, .end = at};
}
CacheEvent removed(std::uint64_t version, std::int64_t at) {
  return {.kind = Kind::written, .version = version, .absent = true, .begin = at, .end = at};
}
CacheEvent placed(std::uint64_t version, std::int64_t begin, std::int64_t end, int table = 0) {
  return {.kind = Kind::placed, .table = table, .version = version, .begin = begin, .end = end, .end_ms = end};
}
CacheEvent heard(std::uint64_t version, std::int64_t at, int table = 0) {
  return {.kind = Kind::heard, .table = table, .version = version, .begin = at, .end = at};
}
CacheEvent read(std::uint64_t version, std::int64_t begin, std::int64_t end, int table = 0) {
  return {.kind = Kind::read, .table = table, .version = version, .begin = begin, .end = end, .begin_ms = begin};
}
CacheEvent read_nothing(std::int64_t begin, std::int64_t end) {
  return {.kind = Kind::read, .absent = true, .begin = begin, .end = end, .begin_ms = begin};
}
CacheEvent read_stale(std::uint64_t version, std::int64_t begin, std::int64_t end) {
  CacheEvent event = read(version, begin, end);
  event.stale = true;
  return event;
}
CacheEvent ended(Kind kind, std::uint64_t version, std::int64_t at, int table = 0) {
  return {.kind = kind, .table = table, .version = version, .begin = at, .end = at};
}
CacheEvent read_with(std::uint64_t version, std::int64_t begin, bool loaded, bool tagged) {
  CacheEvent event = read(version, begin, begin + 1);
  event.loaded = loaded;
  event.tagged = tagged;
  return event;
}
std::string wrong(const std::vector<CacheEvent>& history) { return find_violation(history, kBounds).value_or(""); }

// What is heard without a version: of the row that stood there then.
TEST(CacheHistoryChecker, WhatSaysNoVersionHoldsUntilTheRowHasEnded) {
  CacheEvent changed = heard(2, 9);
  changed.said = false;
  const CacheEvent end = ended(Kind::ended, 0, 12);
  EXPECT_THAT(wrong({written(1, 0), written(2, 5), changed, read(1, 10, 11)}), HasSubstr("told of a change to 2"));
  EXPECT_EQ(wrong({written(1, 0), written(2, 5), changed, end, read(1, 10, 13)}), "");
  EXPECT_THAT(wrong({written(1, 0), written(2, 5), heard(2, 9), end, read(1, 13, 14)}), HasSubstr("told of 2"));
  CacheEvent again = heard(2, 14);
  again.said = false;
  EXPECT_THAT(wrong({written(1, 0), written(2, 5), changed, end, again, read(1, 15, 16)}),
              HasSubstr("told of a change to 2"));
}

TEST(CacheHistoryChecker, WhatNobodyKnewOfMayBeReadUntilItsBound) {
  EXPECT_EQ(
      wrong({written(1, 0), written(2, 5), placed(2, 6, 7, 1), read(1, 8, 9), read(1, 100, 107), read(2, 108, 110)}),
      "");
}
TEST(CacheHistoryChecker, ReadsThatOverlapWhatIsToldMayGiveEither) {
  EXPECT_EQ(wrong({written(1, 0), written(2, 5), heard(2, 9), read(1, 8, 20), read(1, 9, 20), read(2, 10, 20)}), "");
}
TEST(CacheHistoryChecker, NothingIsReadThatNobodyWrote) {
  EXPECT_THAT(wrong({written(1, 0), read(3, 1, 2)}), HasSubstr("nobody has written"));
}
TEST(CacheHistoryChecker, NothingIsReadBeforeItIsWritten) {
  EXPECT_THAT(wrong({written(1, 0), written(2, 9), read(2, 1, 3)}), HasSubstr("written only at"));
}
TEST(CacheHistoryChecker, NothingOlderThanWhatTheTableWasTold) {
  EXPECT_THAT(wrong({written(1, 0), written(2, 5), heard(2, 9), read(1, 10, 11)}), HasSubstr("had been told of 2"));
  EXPECT_EQ(wrong({written(1, 0), written(2, 5), heard(2, 9, 1), read(1, 10, 11)}), "") << "another table was told";
}
TEST(CacheHistoryChecker, WhoHasHeardOfTwoIsHeldToTheNewer) {
  EXPECT_THAT(wrong({written(1, 0), written(2, 1), written(3, 2), heard(3, 5), heard(2, 6), read(2, 10, 11)}),
              HasSubstr("had been told of 3"));
}
TEST(CacheHistoryChecker, NothingOlderThanWhatTheTablePut) {
  EXPECT_THAT(wrong({written(1, 0), written(2, 5), placed(2, 6, 7), read(1, 8, 9)}), HasSubstr("itself had put 2"));
}
TEST(CacheHistoryChecker, NothingOlderThanWhatWasReadBefore) {
  EXPECT_THAT(wrong({written(1, 0), written(2, 5), read(2, 6, 7), read(1, 8, 9)}),
              HasSubstr("earlier read had given 2"));
  EXPECT_EQ(wrong({written(1, 0), written(2, 5), read(2, 6, 9), read(1, 8, 20)}), "") << "they overlap";
  EXPECT_EQ(wrong({written(1, 0), written(2, 5), read(2, 6, 7, 1), read(1, 8, 9)}), "") << "another table's read";
}
TEST(CacheHistoryChecker, NothingOlderThanItsBound) {
  EXPECT_THAT(wrong({written(1, 0), written(2, 5), placed(2, 6, 7, 1), read(1, 108, 109)}), HasSubstr("its bound"));
  EXPECT_EQ(wrong({written(1, 0), written(2, 5), placed(2, 6, 7, 1), read_stale(1, 108, 109)}), "");
  EXPECT_THAT(wrong({written(1, 0), written(2, 5), placed(2, 6, 7, 1), read_stale(1, 308, 309)}),
              HasSubstr("its bound"));
}
TEST(CacheHistoryChecker, NothingIsAnAnswerOnlyWhereThereWasNothing) {
  EXPECT_EQ(wrong({read_nothing(0, 1), written(1, 2), removed(2, 5), heard(2, 6), read_nothing(7, 8)}), "");
  EXPECT_THAT(wrong({written(1, 2), heard(1, 3), read_nothing(7, 8)}), HasSubstr("gave nothing"));
  EXPECT_THAT(wrong({written(1, 2), removed(2, 5), written(3, 6), heard(3, 7), read_nothing(8, 9)}),
              HasSubstr("had been told of 3"));
}
TEST(CacheHistoryChecker, NothingLoadedIsOlderThanAnInvalidation) {
  const auto of = [](CacheEvent event) {
    return wrong({written(1, 0), written(2, 5), ended(Kind::invalidated, 2, 9), event});
  };
  EXPECT_THAT(of(read_with(1, 10, true, false)), HasSubstr("an invalidation"));
  EXPECT_EQ(of(read_with(2, 10, true, false)), "");
  EXPECT_EQ(of(read_with(1, 8, true, false)), "") << "it began before";
  EXPECT_EQ(of(read_with(1, 10, false, true)), "") << "somebody put it";
}
TEST(CacheHistoryChecker, NothingItselfHasLoadedIsOlderThanAnInvalidation) {
  const auto of = [](bool own, int table = 0) {
    CacheEvent invalidated = ended(Kind::invalidated, 2, 9, table);
    invalidated.of_own = true;
    CacheEvent event = read_with(1, 10, true, false);
    event.own = own;
    return wrong({written(1, 0), written(2, 5), invalidated, event});
  };
  EXPECT_THAT(of(true), HasSubstr("its own invalidation"));
  EXPECT_EQ(of(false), "") << "another table has loaded it";
  EXPECT_EQ(of(true, 1), "") << "another table's";
}
TEST(CacheHistoryChecker, NothingWithTheTagIsOlderThanItsDrop) {
  const auto of = [](CacheEvent event) {
    return wrong({written(1, 0), written(2, 5), ended(Kind::dropped, 2, 9), event});
  };
  EXPECT_THAT(of(read_with(1, 10, false, true)), HasSubstr("a drop of its tag"));
  EXPECT_EQ(of(read_with(2, 10, false, true)), "");
  EXPECT_EQ(of(read_with(1, 10, true, false)), "") << "it was without the tag";
  EXPECT_EQ(wrong({written(1, 0), written(2, 5), ended(Kind::dropped, 2, 9, 1), read_with(1, 10, false, true)}), "")
      << "another table's drop";
}
TEST(CacheHistoryChecker, AnEntryWithATimeOfItsOwnIsHeldToThat) {
  const auto of = [](std::int64_t lives, std::int64_t begin) {
    CacheEvent event = read(1, begin, begin + 1);
    event.lives_ms = lives;
    return wrong({written(1, 0), written(2, 5), placed(2, 6, 7, 1), event});
  };
  EXPECT_EQ(of(40, 47), "");
  EXPECT_THAT(of(40, 49), HasSubstr("its bound"));
  EXPECT_EQ(of(500, 507), "");
}

}  // namespace
}  // namespace echomq::model
