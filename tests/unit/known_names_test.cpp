// Names that were used of late.
#include "bus/known_names.hpp"

#include <gtest/gtest.h>

#include <string>

namespace echomq::bus {
namespace {

TEST(BusKnownNames, NeverMoreThanTwiceItsLeast) {
  KnownNames<int> names(10);
  for (int i = 0; i < 1000; ++i) {
    names.add(std::to_string(i), i);
    ASSERT_LE(names.size(), 20U);
  }
  EXPECT_GE(names.size(), 10U);
}

TEST(BusKnownNames, TheLastOnesAreKnown) {
  KnownNames<int> names(10);
  for (int i = 0; i < 95; ++i)
    names.add(std::to_string(i), i);
  for (int i = 85; i < 95; ++i) {
    const int* found = names.find(std::to_string(i));
    ASSERT_NE(found, nullptr) << i;
    EXPECT_EQ(*found, i);
  }
  EXPECT_EQ(names.find("0"), nullptr);
}

TEST(BusKnownNames, WhatIsAskedForStays) {
  KnownNames<int> names(10);
  names.add("kept", -1);
  for (int i = 0; i < 1000; ++i) {
    names.add(std::to_string(i), i);
    int* kept = names.find("kept");
    ASSERT_NE(kept, nullptr) << i;
    --*kept;
    ASSERT_LE(names.size(), 20U);
  }
  EXPECT_EQ(*names.find("kept"), -1001);
}

}  // namespace
}  // namespace echomq::bus
