#include "worker/alarms.hpp"

#include <gtest/gtest.h>

namespace {

using echomq::worker::Alarm;
using echomq::worker::Alarms;
using echomq::worker::TimePoint;
using std::chrono::milliseconds;

constexpr TimePoint at(int time) { return TimePoint(milliseconds{time}); }

TEST(Alarms, NextIsTheEarliestAndNeverWhenNoneIsSet) {
  Alarms alarms;
  EXPECT_EQ(alarms.next(), TimePoint::max());
  alarms.set(Alarm::beat, at(30));
  alarms.set(Alarm::renew, at(20));
  EXPECT_EQ(alarms.next(), at(20));
}

TEST(Alarms, ADueAlarmIsTakenOnce) {
  Alarms alarms;
  alarms.set(Alarm::sweep, at(10));
  EXPECT_FALSE(alarms.take(Alarm::sweep, at(9)));
  EXPECT_TRUE(alarms.take(Alarm::sweep, at(10)));
  EXPECT_FALSE(alarms.take(Alarm::sweep, at(11)));
}

TEST(Alarms, SetEarlierNeverPutsOff) {
  Alarms alarms;
  alarms.set_earlier(Alarm::promote, at(10));
  alarms.set_earlier(Alarm::promote, at(20));
  EXPECT_EQ(alarms.next(), at(10));
  alarms.set(Alarm::promote, at(20));
  EXPECT_EQ(alarms.next(), at(20));
  alarms.clear(Alarm::promote);
  EXPECT_FALSE(alarms.pending(Alarm::promote));
}

}  // namespace
