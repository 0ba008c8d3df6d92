// Counting the records that a reader has missed, beside a stream that is made up.
#include "bus/gap_watch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace echomq::bus {
namespace {

using ::testing::Optional;

/// What a server keeps of a stream.
class Model {
 public:
  void add(std::uint64_t count = 1) {
    for (std::uint64_t i = 0; i < count; ++i) {
      entries_.push_back({++added_, 0});
      top_ = entries_.back();
    }
  }
  void trim(std::uint64_t count) {
    entries_.erase(entries_.begin(),
                   entries_.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(count, entries_.size())));
  }
  void remove(std::size_t index) { entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(index)); }
  [[nodiscard]] std::vector<EntryNumber> behind(EntryNumber cursor, std::size_t most) const {
    const auto from = std::upper_bound(entries_.begin(), entries_.end(), cursor);
    const auto count = std::min(most, static_cast<std::size_t>(entries_.end() - from));
    return {from, from + static_cast<std::ptrdiff_t>(count)};
  }
  [[nodiscard]] StreamLook look() const {
    return {.added = added_,
            .length = entries_.size(),
            .first = entries_.empty() ? std::nullopt : std::optional(entries_.front()),
            .top = top_};
  }
  [[nodiscard]] std::size_t length() const { return entries_.size(); }
  [[nodiscard]] std::uint64_t added() const { return added_; }

 private:
  std::vector<EntryNumber> entries_;
  std::uint64_t added_ = 0;
  EntryNumber top_;
};

/// A reader of it, and what it was told.
struct Reader {
  Reader(EntryNumber behind, std::optional<std::uint64_t> passed) : watch(behind, passed), cursor(behind) {}

  void take(const std::optional<MissedRecords>& found) {
    if (!found)
      return;
    ++gaps;
    EXPECT_LE(found->from, found->until);
    EXPECT_FALSE(found->begun_anew);
    if (found->missed) {
      EXPECT_GT(*found->missed, 0U);
      missed += *found->missed;
    } else {
      ++unknown;
    }
  }
  void read(const Model& stream, std::size_t most) {
    const auto records = stream.behind(cursor, most);
    if (!records.empty())
      cursor = records.back();
    had += records.size();
    take(watch.read(records));
  }
  void look(const Model& stream) { take(watch.looked(stream.look())); }

  GapWatch watch;
  EntryNumber cursor;
  std::uint64_t had = 0;
  std::uint64_t missed = 0;
  int gaps = 0;
  int unknown = 0;
};

TEST(BusGapWatch, WhatWasTrimmedBeforeItWasReadIsCounted) {
  Model stream;
  stream.add(10);
  Reader reader({10, 0}, 10);
  stream.add(10);
  stream.trim(15);
  reader.read(stream, 100);
  EXPECT_EQ(reader.gaps, 0) << "nobody has looked yet";
  reader.look(stream);
  EXPECT_EQ(reader.missed, 5U);
  reader.look(stream);
  EXPECT_EQ(reader.gaps, 1) << "told once";
}

TEST(BusGapWatch, TrimsBehindTheReaderAreNoGap) {
  Model stream;
  stream.add(10);
  Reader reader({10, 0}, 10);
  for (int i = 0; i < 50; ++i) {
    stream.add(3);
    reader.read(stream, 100);
    stream.trim(stream.length());
    reader.look(stream);
  }
  EXPECT_EQ(reader.gaps, 0);
}

TEST(BusGapWatch, WhatCameAndWentWithoutBeingReadIsCountedThoughNothingIsThere) {
  Model stream;
  Reader reader({}, 0);
  stream.add(7);
  stream.trim(7);
  reader.look(stream);
  EXPECT_EQ(reader.missed, 7U);
  stream.add(2);
  reader.read(stream, 100);
  reader.look(stream);
  EXPECT_EQ(reader.gaps, 1);
}

TEST(BusGapWatch, AReaderOfThePastIsToldThatItCannotBeKnown) {
  Model stream;
  stream.add(100);
  stream.trim(50);
  Reader reader({20, 0}, {});
  reader.read(stream, 10);
  reader.look(stream);
  EXPECT_EQ(reader.unknown, 1);
  EXPECT_TRUE(reader.watch.counts()) << "from there on the entries are numbered";
  stream.add(100);
  stream.trim(70);
  while (reader.cursor < EntryNumber{200, 0}) {
    reader.read(stream, 10);
    reader.look(stream);
  }
  EXPECT_EQ(reader.unknown, 1);
  EXPECT_EQ(reader.missed, 60U) << "61 to 120";
}

TEST(BusGapWatch, AReaderOfThePastThatNothingIsMissingToIsToldNothing) {
  Model stream;
  stream.add(100);
  // From the beginning, whatever was there before; behind an entry that is there; before the first; behind the last.
  Reader whole({}, {});
  Reader before({0, 1}, {});
  stream.trim(0);
  whole.read(stream, 10);
  whole.look(stream);
  before.read(stream, 10);
  before.look(stream);
  stream.trim(5);
  Reader late({}, {});
  Reader there({6, 0}, {});
  for (Reader* one : {&late, &there}) {
    one->read(stream, 10);
    one->look(stream);
  }
  stream.trim(100);
  Reader last({100, 0}, {});
  last.read(stream, 10);
  last.look(stream);
  EXPECT_TRUE(last.watch.counts());
  for (const Reader* one : {&whole, &before, &late, &there, &last})
    EXPECT_EQ(one->gaps, 0);
}

TEST(BusGapWatch, AStreamThatWasBegunAnew) {
  Model stream;
  stream.add(10);
  GapWatch watch({10, 0}, 10);
  const auto found = watch.looked({.added = 2, .length = 2, .first = EntryNumber{11, 0}, .top = {12, 0}});
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->begun_anew);
  EXPECT_FALSE(found->missed);
  EXPECT_FALSE(watch.read({{11, 0}, {12, 0}}));
  EXPECT_FALSE(watch.looked({.added = 2, .length = 2, .first = EntryNumber{11, 0}, .top = {12, 0}}));
}

TEST(BusGapWatch, AServerThatDoesNotCountTellsNothing) {
  GapWatch watch({10, 0}, 10);
  EXPECT_FALSE(watch.looked({.added = 0, .length = 5, .first = EntryNumber{20, 0}, .top = {25, 0}}));
}

/// Adds, trims, single removals and reads in any order: what is told is what was not read.
class BusGapWatchAtRandom : public ::testing::TestWithParam<unsigned> {};

TEST_P(BusGapWatchAtRandom, WhatIsToldIsWhatWasNotRead) {
  std::mt19937 dice(GetParam());
  const auto roll = [&](unsigned below) { return static_cast<unsigned>(dice() % below); };
  Model stream;
  stream.add(roll(30));
  stream.trim(roll(20));
  const std::uint64_t before = stream.added();
  Reader reader({before, 0}, before);
  const bool removes = GetParam() % 2 == 1;
  for (int step = 0; step < 400; ++step) {
    switch (roll(6)) {
      case 0:
      case 1: stream.add(roll(8)); break;
      case 2: stream.trim(roll(10)); break;
      case 3:
        if (removes && stream.length() > 0)
          stream.remove(roll(static_cast<unsigned>(stream.length())));
        break;
      case 4: reader.read(stream, 1 + roll(6)); break;
      default: reader.look(stream); break;
    }
    ASSERT_LE(reader.missed + reader.had, stream.added() - before) << "step " << step;
  }
  // Where the newest entries were removed alone, the next record tells.
  stream.add();
  reader.read(stream, 100'000);
  reader.look(stream);
  EXPECT_EQ(reader.unknown, 0);
  EXPECT_EQ(reader.missed + reader.had, stream.added() - before);
}

/// A reader that began in the past, of a stream that is only trimmed, and looks after each read: what is missing is told, and what
/// is counted never exceeds it.
TEST_P(BusGapWatchAtRandom, AReaderOfThePast) {
  std::mt19937 dice(GetParam());
  const auto roll = [&](unsigned below) { return static_cast<unsigned>(dice() % below); };
  Model stream;
  stream.add(50);
  stream.trim(roll(30));
  const std::uint64_t place = roll(51);
  Reader reader({place, 0}, {});
  bool overtaken = stream.look().first->milliseconds > place + 1;
  for (int step = 0; step < 100; ++step) {
    stream.add(roll(4));
    stream.trim(roll(5));
    const auto first = stream.look().first;
    overtaken = overtaken || (first ? first->milliseconds : stream.added() + 1) > reader.cursor.milliseconds + 1;
    reader.read(stream, 1 + roll(6));
    stream.add(roll(2));
    stream.trim(roll(2));
    reader.look(stream);
  }
  reader.read(stream, 100'000);
  reader.look(stream);
  const std::uint64_t lost = stream.added() - place - reader.had;
  if (place == 0) {
    EXPECT_EQ(reader.unknown, 0) << "from the beginning is from what is there";
  } else if (lost > 0) {
    EXPECT_GT(reader.gaps, 0);
  }
  EXPECT_LE(reader.missed, lost);
  EXPECT_LE(reader.unknown, 1);
  if (!overtaken && reader.unknown == 0) {
    EXPECT_EQ(lost, reader.missed);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, BusGapWatchAtRandom, ::testing::Range(0U, 60U));

}  // namespace
}  // namespace echomq::bus
