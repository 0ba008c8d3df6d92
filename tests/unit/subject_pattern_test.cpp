// Patterns of subjects.
#include <gtest/gtest.h>

#include "echomq/subjects.hpp"

namespace echomq {
namespace {

bool matches(std::string_view pattern, std::string_view name) { return SubjectPattern::parse(pattern)->matches(name); }

TEST(SubjectPattern, Words) {
  EXPECT_TRUE(matches("a", "a"));
  EXPECT_FALSE(matches("a", "ab"));
  EXPECT_FALSE(matches("a", "a.b"));
  EXPECT_TRUE(matches("a.*.c", "a.b.c"));
  EXPECT_FALSE(matches("a.*.c", "a.b.b.c"));
  EXPECT_FALSE(matches("a.*", "a"));
  EXPECT_FALSE(matches("a.*", "a."));
  EXPECT_TRUE(matches("*", "a"));
  EXPECT_TRUE(matches("a.>", "a.b"));
  EXPECT_TRUE(matches("a.>", "a.b.c"));
  EXPECT_FALSE(matches("a.>", "a"));
  EXPECT_TRUE(matches(">", "a.b"));
  EXPECT_TRUE(matches("*.>", "a.b.c"));
  EXPECT_FALSE(matches("*.>", "a"));
}

TEST(SubjectPattern, WhatIsNone) {
  for (const char* bad : {"", "a..b", ".a", "a.", "a*", "a.*b", "a.>.b", ">.a", "a>"})
    EXPECT_FALSE(SubjectPattern::parse(bad)) << bad;
}

}  // namespace
}  // namespace echomq
