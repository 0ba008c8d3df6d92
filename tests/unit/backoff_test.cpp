#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>

#include "echomq/worker.hpp"

namespace {

using echomq::Backoff;
using echomq::Errc;
using echomq::Milliseconds;

TEST(Backoff, FixedWaitsTheSameAfterEachAttempt) {
  const Backoff backoff = Backoff::fixed(Milliseconds{250});
  EXPECT_EQ(backoff(1).count(), 250);
  EXPECT_EQ(backoff(9).count(), 250);
}

TEST(Backoff, ExponentialDoublesUpToItsCap) {
  const Backoff backoff = Backoff::exponential(Milliseconds{100}, Milliseconds{10'000});
  EXPECT_EQ(backoff(1).count(), 100);
  EXPECT_EQ(backoff(3).count(), 400);
  EXPECT_EQ(backoff(20).count(), 10'000);
  EXPECT_EQ(Backoff::exponential(Milliseconds{1}, Milliseconds{1'000'000})(64).count(), 1'000'000);
  EXPECT_EQ(Backoff::exponential(Milliseconds{7}, Milliseconds{5})(1).count(), 5);
}

TEST(Backoff, ExponentialSaturatesInsteadOfOverflowing) {
  const Milliseconds most{std::numeric_limits<std::int64_t>::max()};
  EXPECT_EQ(Backoff::exponential(Milliseconds{3}, most)(1'000'000), most);
  EXPECT_EQ(Backoff::exponential(Milliseconds{1}, Milliseconds{9})(std::numeric_limits<std::uint64_t>::max()).count(),
            9);
  EXPECT_EQ(Backoff::exponential(Milliseconds{100}, Milliseconds{10'000})(0).count(), 100);
}

TEST(Backoff, JitterIsUniformFromZeroToTheInnerWaitBothIncluded) {
  const Backoff backoff = Backoff::fixed(Milliseconds{3}).with_jitter();
  std::set<std::int64_t> seen;
  for (int i = 0; i < 1000; ++i)
    seen.insert(backoff(1).count());
  EXPECT_EQ(seen, (std::set<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(Backoff::fixed(Milliseconds{0}).with_jitter()(1).count(), 0);
}

TEST(Backoff, CustomDecidesFromTheAttemptAndNeverGoesBelowZero) {
  const auto minutes = [](std::uint64_t attempt) { return Milliseconds{60'000} * static_cast<std::int64_t>(attempt); };
  EXPECT_EQ(Backoff::custom(minutes)(2).count(), 120'000);
  EXPECT_EQ(Backoff::custom([](std::uint64_t) { return Milliseconds{-5}; })(1).count(), 0);
}

TEST(Backoff, CheckNamesTheValueOutOfRange) {
  EXPECT_TRUE(Backoff::fixed(Milliseconds{0}).check());
  EXPECT_TRUE(Backoff::exponential(Milliseconds{1}, Milliseconds{1}).with_jitter().check());
  const auto refused = Backoff::fixed(Milliseconds{-1}).check();
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(Errc::invalid_argument));
  EXPECT_NE(refused.error().text.find("-1ms"), std::string::npos);
  EXPECT_FALSE(Backoff::exponential(Milliseconds{0}, Milliseconds{5}).check());
  EXPECT_FALSE(Backoff::exponential(Milliseconds{5}, Milliseconds{0}).check());
  EXPECT_FALSE(Backoff::custom(nullptr).check());
}

boost::json::object vectors() {
  std::ifstream file(ECHOMQ_PROTOCOL_DIR "/vectors/backoff.json");
  return boost::json::parse(std::string(std::istreambuf_iterator<char>(file), {})).as_object();
}

TEST(Vectors, BackoffTexts) {
  const boost::json::object all = vectors();
  for (const boost::json::value& vector : all.at("texts").as_array()) {
    const std::string text(vector.at("text").as_string());
    const auto backoff = Backoff::parse(text);
    ASSERT_TRUE(backoff) << text;
    EXPECT_TRUE(backoff->check());
    EXPECT_EQ(backoff->text(), text);
    for (const boost::json::value& wait : vector.at("waits").as_array()) {
      const auto attempt = wait.at(0).to_number<std::uint64_t>();
      const auto most = wait.at(1).to_number<std::int64_t>();
      if (!text.ends_with(":jitter")) {
        EXPECT_EQ((*backoff)(attempt).count(), most) << text << " after " << attempt;
        continue;
      }
      std::set<bool> halves;
      for (int i = 0; i < 200; ++i) {
        const std::int64_t drawn = (*backoff)(attempt).count();
        EXPECT_LE(drawn, most);
        halves.insert(drawn <= most / 2);
      }
      EXPECT_EQ(halves.size(), 2U);
    }
  }
  for (const boost::json::value& text : all.at("malformed").as_array()) {
    const auto refused = Backoff::parse(std::string_view(text.as_string()));
    ASSERT_FALSE(refused) << text;
    EXPECT_TRUE(refused.error().is(Errc::invalid_argument));
    EXPECT_NE(refused.error().text.find(std::string_view(text.as_string())), std::string::npos);
  }
}

TEST(Backoff, TextIsWhatParseTakes) {
  EXPECT_EQ(Backoff::fixed(Milliseconds{5}).with_jitter().text(), "fixed:5:jitter");
  EXPECT_EQ(Backoff::exponential(Milliseconds{5}, Milliseconds{9}).text(), "exponential:5:9");
  EXPECT_EQ(Backoff::custom([](std::uint64_t) { return Milliseconds{1}; }).text(), "");
}

}  // namespace
