// An event as it is published and as it is read: what counts as one, and that any bytes survive the way.
#include "events/event_text.hpp"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "echomq/events.hpp"

namespace echomq::test {
namespace {

using namespace std::string_literals;
using namespace std::string_view_literals;
constexpr JobId kJob{"JOB0NgWEfAE00A"};

std::string written(std::string_view name, const std::vector<events::Extra>& extra = {}) {
  std::string out;
  events::append_event(out, name, kJob, extra);
  return out;
}

TEST(EventText, IsWhatTheCanonicalHostPublishes) {
  EXPECT_EQ(written("completed"), R"({"event":"completed","job":"JOB0NgWEfAE00A"})");
  EXPECT_EQ(written("failed", {{"error", "say \"no\""}, {"retry", "1"}}),
            R"({"event":"failed","job":"JOB0NgWEfAE00A","error":"say \"no\"","retry":"1"})");
}

TEST(EventText, AnyBytesComeBack) {
  const std::string_view bytes = "line\nquote\" back\\ nul\0 bell\x07 caf\xc3\xa9"sv;
  const std::string text = written("failed", {{"error", bytes}, {"na\"me", "x"}});
  boost::system::error_code error;
  (void)boost::json::parse(text, error);
  EXPECT_FALSE(error) << text;
  events::EventText read;
  ASSERT_TRUE(events::read_event(text, read));
  EXPECT_EQ(read.name, "failed");
  EXPECT_EQ(read.job, kJob);
  ASSERT_EQ(read.extra.size(), 2U);
  EXPECT_EQ(read.extra[0], std::pair("error"s, std::string(bytes)));
  EXPECT_EQ(read.extra[1].first, "na\"me");
}

TEST(EventText, TakesOthersFieldsInAnyOrderAndOfAnyKind) {
  events::EventText read;
  // The server's own writer: another order, an escaped slash, bytes that are no UTF-8.
  ASSERT_TRUE(
      events::read_event("{\"progress\":\"1\\/2 \xff\",\"event\":\"progress\",\"job\":\"JOB0NgWEfAE00A\"}", read));
  EXPECT_EQ(read.name, "progress");
  ASSERT_EQ(read.extra.size(), 1U);
  EXPECT_EQ(read.extra[0].second, "1/2 \xff");
  ASSERT_TRUE(events::read_event(
      R"( { "event" : "later", "job":"JOB0NgWEfAE00A", "n": 7, "list": [1, "x"], "none": null } )", read));
  EXPECT_EQ(read.name, "later");
  ASSERT_EQ(read.extra.size(), 3U);
  EXPECT_EQ(read.extra[0], std::pair("n"s, "7"s));
  EXPECT_EQ(read.extra[1].second, R"([1,"x"])");
  EXPECT_EQ(read.extra[2].second, "null");
  // A name inside of a value is no name.
  ASSERT_TRUE(
      events::read_event(R"({"error":"\"event\":\"completed\"","event":"failed","job":"JOB0NgWEfAE00A"})", read));
  EXPECT_EQ(read.name, "failed");
}

TEST(EventText, RefusesWhatIsNoEvent) {
  events::EventText read;
  for (const std::string_view payload : {
           ""sv,
           "ping"sv,
           "{"sv,
           "[]"sv,
           "null"sv,
           "\"event\""sv,
           "{}"sv,
           R"({"event":"completed"})"sv,
           R"({"job":"JOB0NgWEfAE00A"})"sv,
           R"({"event":"","job":"JOB0NgWEfAE00A"})"sv,
           R"({"event":7,"job":"JOB0NgWEfAE00A"})"sv,
           R"({"event":"completed","job":7})"sv,
           R"({"event":"completed","job":"no id"})"sv,
           R"({"event":"completed","job":"JOB0NgWEfAE00A"} x)"sv,
           R"({"event":"completed","job":"JOB0NgWEfAE00A",})"sv,
           R"({'event':'completed','job':'JOB0NgWEfAE00A'})"sv,
           // What the canonical host writes for a line break in a value.
           "{\"event\":\"failed\",\"job\":\"JOB0NgWEfAE00A\",\"error\":\"a\nb\"}"sv,
       })
    EXPECT_FALSE(events::read_event(payload, read)) << payload;
  EXPECT_FALSE(events::read_event(std::string(100000, '['), read));
}

TEST(EventText, KindsHaveTheNamesOfTheWire) {
  for (const std::string_view name : {"progress", "completed", "failed", "delayed", "dead", "stalled", "cancelled"}) {
    EXPECT_EQ(to_string(event_kind(name)), name);
    EXPECT_NE(event_kind(name), EventKind::other);
  }
  EXPECT_EQ(event_kind("scheduled"), EventKind::other);
  EXPECT_EQ(event_kind("other"), EventKind::other);
  EXPECT_EQ(event_kind(""), EventKind::other);
}

}  // namespace
}  // namespace echomq::test
