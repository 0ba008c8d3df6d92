#include "echomq/error.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "result/try.hpp"

namespace {

using echomq::Errc;
using echomq::Error;
using echomq::fail;
using echomq::Repeat;
using echomq::Result;

Result<int> half(int value) {
  if (value % 2 != 0) {
    return fail(Errc::invalid_argument, "odd: " + std::to_string(value));
  }
  return value / 2;
}

Result<std::string> quarter(int value) {
  ECHOMQ_TRY(const auto once, half(value));
  ECHOMQ_TRY(const auto twice, half(once));
  return std::to_string(twice);
}

Result<void> even(int value) {
  ECHOMQ_CHECK(half(value));
  return {};
}

TEST(Error, MessageNamesTheCodeAndTheOffendingValue) {
  const Error error(Errc::invalid_queue_name, "\"a b\"");
  EXPECT_EQ(error.message(), "not a queue name: \"a b\"");
  EXPECT_EQ(Error(Errc::job_gone, "").message(), "no such job");
}

TEST(Error, ComparesWithItsCodeAndNotWithAnother) {
  const Error error(Errc::job_gone, "JOB0NgWEfAEJfs", Repeat::safe);
  EXPECT_TRUE(error.is(Errc::job_gone));
  EXPECT_FALSE(error.is(Errc::stale_token));
  EXPECT_TRUE(error.code == Errc::job_gone);
  EXPECT_STREQ(error.code.category().name(), "echomq");
  EXPECT_EQ(error.repeat, Repeat::safe);
}

TEST(Error, EveryCodeHasATextOfItsOwn) {
  std::set<std::string> texts;
  int codes = 0;
  for (int value = 1; value < 200; ++value) {
    if (auto text = echomq::error_category().message(value); text != "unknown error") {
      ++codes;
      texts.insert(std::move(text));
    }
  }
  EXPECT_GT(codes, 40);
  EXPECT_EQ(texts.size(), static_cast<std::size_t>(codes));
}

TEST(Try, GivesTheValueOrReturnsTheFirstError) {
  EXPECT_EQ(quarter(12).value(), "3");
  const auto refused = quarter(6);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().text, "odd: 3");
  EXPECT_TRUE(even(4));
  EXPECT_FALSE(even(5));
}

}  // namespace
