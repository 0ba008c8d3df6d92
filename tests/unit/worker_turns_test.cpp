#include "worker/turns.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace {

using echomq::worker::Source;
using echomq::worker::TimePoint;
using echomq::worker::Turns;
using std::chrono::milliseconds;

const TimePoint kNow{milliseconds{1000}};

/// One claim at a time against backlogs that never end: L and F in the order of service.
std::string serve(Turns& turns, int claims, bool lanes, bool flat, milliseconds each = milliseconds{0}) {
  std::string order;
  TimePoint now = kNow;
  for (int i = 0; i < claims; ++i, now += each) {
    const std::optional<Source> source = turns.next(now);
    if (!source)
      break;
    const bool job = *source == Source::lanes ? lanes : flat;
    turns.answered(*source, job, now);
    order += *source == Source::lanes ? (job ? 'L' : 'l') : (job ? 'F' : 'f');
  }
  return order;
}

TEST(Turns, AlternateBetweenLanesAndFlatWhileBothHaveJobs) {
  Turns turns;
  EXPECT_EQ(serve(turns, 8, true, true), "LFLFLFLF");
}

TEST(Turns, BothAreAskedOnceBeforeTheRoundIsOver) {
  Turns turns;
  EXPECT_EQ(serve(turns, 8, false, false), "lf");
  EXPECT_TRUE(turns.dry());
  turns.refresh();
  EXPECT_EQ(serve(turns, 8, false, false).size(), 2U);
}

TEST(Turns, AnEmptySourceIsPassedOverButAskedAgainAfterAFewClaims) {
  Turns turns;
  EXPECT_EQ(serve(turns, 17, false, true), "lFFFFFFFlFFFFFFFl");
}

TEST(Turns, AnEmptySourceIsAskedAgainAfterAFewMillisecondsHoweverFewTheClaims) {
  Turns turns;
  EXPECT_EQ(serve(turns, 6, false, true, milliseconds{10}), "lFlFlF");
}

TEST(Turns, ASourceThatFillsUpAgainGetsItsTurnBack) {
  Turns turns;
  (void)serve(turns, 9, false, true);
  const std::string order = serve(turns, 20, true, true);
  EXPECT_NE(order.find("LFLFLF"), std::string::npos) << order;
}

TEST(Turns, AfterAWakeTheSourceThatGaveTheLastJobIsAskedFirst) {
  Turns turns;
  EXPECT_EQ(serve(turns, 2, false, true), "lF");
  EXPECT_EQ(serve(turns, 9, false, false), "f");
  turns.refresh();
  EXPECT_EQ(serve(turns, 1, false, true), "F");
}

TEST(Turns, TheWindowStartsAtTwoAndGrowsWithTheJobsFound) {
  Turns turns;
  const auto fill = [&] {
    int sent = 0;
    while (turns.next(kNow))
      ++sent;
    return sent;
  };
  EXPECT_EQ(fill(), 2);
  EXPECT_EQ(turns.in_flight(), 2U);
  turns.answered(Source::lanes, true, kNow);
  turns.answered(Source::flat, true, kNow);
  EXPECT_EQ(fill(), 4);
  for (int i = 0; i < 2; ++i) {
    turns.answered(Source::lanes, true, kNow);
    turns.answered(Source::flat, true, kNow);
  }
  EXPECT_EQ(fill(), 8);
}

TEST(Turns, ALostAnswerSaysNothingAboutItsSource) {
  Turns turns;
  ASSERT_TRUE(turns.next(kNow));
  turns.failed(Source::lanes);
  EXPECT_EQ(turns.in_flight(), 0U);
  EXPECT_FALSE(turns.dry());
}

}  // namespace
