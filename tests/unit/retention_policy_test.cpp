// A retention policy as text: what stands on the server for a whole fleet.
#include <gtest/gtest.h>

#include "echomq/retention.hpp"

namespace echomq {
namespace {

TEST(RetentionPolicy, EveryPolicyReadsBackFromItsText) {
  RetentionPolicy policy;
  EXPECT_EQ(RetentionPolicy::parse(policy.text()).value(), policy);
  policy.keep = {.count = 1000, .age = Milliseconds(86'400'000), .bytes = 1 << 20};
  policy.how = Trim::exact;
  policy.archived_only = true;
  EXPECT_EQ(RetentionPolicy::parse(policy.text()).value(), policy);
  policy.guard = GroupGuard::all;
  policy.hard.count = 5000;
  EXPECT_EQ(RetentionPolicy::parse(policy.text()).value(), policy);
  policy.guard = GroupGuard::named;
  policy.groups = {"billing", "a \"quoted\" one"};
  EXPECT_EQ(RetentionPolicy::parse(policy.text()).value(), policy);
}

TEST(RetentionPolicy, ItsTextIsTheDocumentedOne) {
  RetentionPolicy policy;
  policy.keep = {.count = 10, .age = Milliseconds(60'000), .bytes = std::nullopt};
  policy.guard = GroupGuard::named;
  policy.groups = {"a"};
  policy.hard.bytes = 7;
  EXPECT_EQ(policy.text(), R"({"keep":{"count":10,"age_ms":60000},"hard":{"bytes":7},"groups":["a"]})");
}

TEST(RetentionPolicy, WhatIsNotUnderstoodIsRefused) {
  for (const char* const text :
       {"", "[]", "{", R"({"keep":1})", R"({"keep":{"count":-1}})", R"({"keep":{"count":1.5}})",
        R"({"keep":{"count":"1"}})", R"({"keep":{"other":1}})", R"({"some_guard":true})", R"({"groups":"some"})",
        R"({"groups":[]})", R"({"groups":[1]})", R"({"groups":[""]})", R"({"exact":1})",
        R"({"keep":{},"hard":{"count":1}})", R"({"keep":{"count":1000000000000000}})"}) {
    const auto policy = RetentionPolicy::parse(text);
    ASSERT_FALSE(policy) << text;
    EXPECT_TRUE(policy.error().is(Errc::invalid_argument)) << text;
  }
}

}  // namespace
}  // namespace echomq
