// Any bytes at all become valid JSON.
#include "events/json_text.hpp"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <string_view>

#include "unit/queue_fake_core.hpp"

namespace echomq::test {
namespace {

using namespace std::string_view_literals;

std::string json_of(std::string_view text) {
  std::string out;
  events::append_json_string(out, text);
  return out;
}

TEST(QueueJsonText, EscapesWhatMustBe) {
  EXPECT_EQ(json_of("plain"), "\"plain\"");
  EXPECT_EQ(json_of(""), "\"\"");
  EXPECT_EQ(json_of("a\"b\\c"), "\"a\\\"b\\\\c\"");
  EXPECT_EQ(json_of("\b\f\n\r\t"), "\"\\b\\f\\n\\r\\t\"");
  EXPECT_EQ(json_of("\0\x1f\x7f"sv), "\"\\u0000\\u001f\x7f\"");
  EXPECT_EQ(json_of("grün / 日本 / 🦊"), "\"grün / 日本 / 🦊\"");
}

TEST(QueueJsonText, ReplacesWhatIsNoUtf8) {
  EXPECT_EQ(json_of("a\xff\x62"), "\"a\\ufffdb\"");
  EXPECT_EQ(json_of("\xc0\xaf"), "\"\\ufffd\\ufffd\"");                        // overlong
  EXPECT_EQ(json_of("\xed\xa0\x80"), "\"\\ufffd\\ufffd\\ufffd\"");             // a surrogate
  EXPECT_EQ(json_of("\xf4\x90\x80\x80"), "\"\\ufffd\\ufffd\\ufffd\\ufffd\"");  // beyond U+10FFFF
  EXPECT_EQ(json_of("\xe6\x97"), "\"\\ufffd\\ufffd\"");                        // cut short
}

TEST(QueueJsonText, EveryPairOfBytesParses) {
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const char bytes[] = {static_cast<char>(a), static_cast<char>(b)};
      boost::system::error_code error;
      (void)boost::json::parse(json_of({bytes, 2}), error);
      ASSERT_FALSE(error) << a << " " << b;
    }
  }
}

TEST(QueuePublish, KeysAreEscapedAsWell) {
  FakeQueue f;
  const std::pair<std::string_view, std::string_view> extra[] = {{"a\"b", "1\n2"}};
  auto reply = f.queue.publish("done", kJobA, extra);
  EXPECT_EQ(f.core->last().parts.at(1), "emq:{q}:events");
  EXPECT_EQ(f.core->last().parts.at(2), R"({"event":"done","job":"JOB0NgWEfAE00A","a\"b":"1\n2"})");
}

}  // namespace
}  // namespace echomq::test
