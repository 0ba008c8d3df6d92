// Reading frames in place: every type, RESP2 and RESP3 shapes alike, and random trees cut at random places.
#include "resp/view.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "resp/scanner.hpp"

namespace {

using namespace echomq::resp;
using echomq::Value;
using Kind = Value::Kind;

/// The view of a frame, which must be one.
View view(std::string_view frame) {
  Scanner scanner;
  EXPECT_EQ(scanner.scan(frame), Step::frame) << frame << ": " << scanner.error();
  EXPECT_EQ(scanner.frame_size(), frame.size());
  return View(frame);
}
Value value(std::string_view frame) { return to_value(view(frame)); }
Value text(std::string_view bytes) { return Value::text(std::string(bytes)); }
Value number(std::int64_t value) { return Value::integer(value); }

TEST(RespView, TheProtocolsVectors) {
  EXPECT_EQ(value("+OK\r\n"), text("OK"));
  EXPECT_EQ(value(":42\r\n"), number(42));
  EXPECT_EQ(value("$2\r\nhi\r\n"), text("hi"));
  EXPECT_EQ(value("*2\r\n$1\r\na\r\n:1\r\n"), Value::array({text("a"), number(1)}));
  EXPECT_EQ(value(">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"),
            Value::push({text("invalidate"), Value::array({text("k")})}));
  EXPECT_EQ(value("-ERR boom\r\n"), Value::error("ERR boom"));
  EXPECT_EQ(value("%2\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n:2\r\n"),
            Value::map({text("a"), number(1), text("b"), number(2)}));
  EXPECT_EQ(value("~3\r\n:1\r\n:2\r\n$1\r\nx\r\n"), Value::set({number(1), number(2), text("x")}));
  EXPECT_EQ(value(",3.25\r\n"), Value::real(3.25));
  EXPECT_EQ(value(",0\r\n"), Value::real(0));
  EXPECT_EQ(value(",inf\r\n"), Value::real(std::numeric_limits<double>::infinity()));
  EXPECT_EQ(value(",-inf\r\n"), Value::real(-std::numeric_limits<double>::infinity()));
  EXPECT_EQ(value(",nan\r\n"), Value::real(std::numeric_limits<double>::quiet_NaN()));
  EXPECT_EQ(value("#t\r\n"), Value::boolean(true));
  EXPECT_EQ(value("#f\r\n"), Value::boolean(false));
  EXPECT_EQ(value("_\r\n"), Value::null());
  EXPECT_EQ(value("(3492890328409238509324850943850943825024385\r\n"),
            Value::big_number("3492890328409238509324850943850943825024385"));
  EXPECT_EQ(value("=15\r\ntxt:Some string\r\n"), text("Some string"));
  EXPECT_EQ(value("=2\r\nab\r\n"), text("ab"));
  EXPECT_EQ(value("$-1\r\n"), Value::null());
  EXPECT_EQ(value("*-1\r\n"), Value::null());
}

TEST(RespView, OtherShapes) {
  EXPECT_EQ(value("+\r\n"), text(""));
  EXPECT_EQ(value("$0\r\n\r\n"), text(""));
  EXPECT_EQ(value("!8\r\nERR a\r\nb\r\n"), Value::error("ERR a\r\nb"));
  EXPECT_EQ(value("=4\r\ntxt:\r\n"), text(""));
  EXPECT_EQ(value(":-9223372036854775808\r\n"), number(INT64_MIN));
  EXPECT_EQ(value(":+7\r\n"), number(7));
  EXPECT_EQ(value("*0\r\n"), Value::array({}));
  EXPECT_EQ(value("$?\r\n;4\r\nHell\r\n;5\r\no wor\r\n;1\r\nd\r\n;0\r\n"), text("Hello word"));
  EXPECT_EQ(value("%?\r\n+a\r\n*?\r\n:1\r\n.\r\n.\r\n"), Value::map({text("a"), Value::array({number(1)})}));
  EXPECT_EQ(value("|1\r\n+ttl\r\n:3600\r\n*2\r\n|1\r\n+x\r\n*1\r\n:9\r\n:1\r\n:2\r\n"),
            Value::array({number(1), number(2)}));
  EXPECT_EQ(value(",1e999\r\n"), Value::real(std::numeric_limits<double>::infinity()));
  EXPECT_EQ(value(",-1e999\r\n"), Value::real(-std::numeric_limits<double>::infinity()));
  EXPECT_EQ(value(",1e-999\r\n"), Value::real(0));
  EXPECT_EQ(value(",0." + std::string(400, '0') + "1e450\r\n"), Value::real(1e49));
  EXPECT_EQ(value("," + std::string(400, '9') + "\r\n"), Value::real(std::numeric_limits<double>::infinity()));
  EXPECT_EQ(value(",0." + std::string(400, '0') + "1\r\n"), Value::real(0));
  EXPECT_EQ(value(",1e-99999999999999999999\r\n"), Value::real(0));
}

TEST(RespView, AccessorsTakeWhatFitsAndNothingElse) {
  EXPECT_EQ(view(":7\r\n").as_integer(), 7);
  EXPECT_EQ(view("$2\r\n-7\r\n").as_integer(), -7);
  EXPECT_EQ(view("(7\r\n").as_integer(), 7);
  EXPECT_EQ(view("(99999999999999999999\r\n").as_integer(), std::nullopt);
  EXPECT_EQ(view("$1\r\nx\r\n").as_integer(), std::nullopt);
  EXPECT_EQ(view("$0\r\n\r\n").as_integer(), std::nullopt);
  EXPECT_EQ(view("-7\r\n").as_integer(), std::nullopt);
  EXPECT_EQ(view("#t\r\n").as_integer(), std::nullopt);
  EXPECT_EQ(view("_\r\n").as_integer(), std::nullopt);
  EXPECT_EQ(view("*1\r\n:7\r\n").as_integer(), std::nullopt);

  EXPECT_EQ(view(",1.5\r\n").as_double(), 1.5);
  EXPECT_EQ(view("$3\r\n1.5\r\n").as_double(), 1.5);
  EXPECT_EQ(view(":3\r\n").as_double(), 3.0);
  EXPECT_EQ(view("$3\r\ninf\r\n").as_double(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(view("$4\r\nnope\r\n").as_double(), std::nullopt);
  EXPECT_EQ(view("*0\r\n").as_double(), std::nullopt);

  EXPECT_EQ(view("#t\r\n").as_bool(), true);
  EXPECT_EQ(view(":0\r\n").as_bool(), false);
  EXPECT_EQ(view(":1\r\n").as_bool(), true);
  EXPECT_EQ(view(":2\r\n").as_bool(), std::nullopt);
  EXPECT_EQ(view("$1\r\n1\r\n").as_bool(), std::nullopt);

  EXPECT_EQ(view("+OK\r\n").as_text(), "OK");
  EXPECT_EQ(view("=7\r\ntxt:abc\r\n").as_text(), "abc");
  EXPECT_EQ(view("(12\r\n").as_text(), "12");
  EXPECT_EQ(view(":12\r\n").as_text(), std::nullopt);
  EXPECT_EQ(view("-ERR\r\n").as_text(), std::nullopt);
  EXPECT_EQ(view("-ERR x\r\n").error_text(), "ERR x");
  EXPECT_EQ(view("!5\r\nERR x\r\n").error_text(), "ERR x");
  EXPECT_EQ(view("+ERR x\r\n").error_text(), "");
  EXPECT_TRUE(view("-ERR x\r\n").is_error());
  EXPECT_TRUE(view("$-1\r\n").is_null());
  EXPECT_EQ(view("$?\r\n;2\r\nab\r\n;0\r\n").as_text(), "ab");
  EXPECT_EQ(view("$?\r\n;0\r\n").as_text(), "");
  EXPECT_EQ(view("$?\r\n;1\r\na\r\n;1\r\nb\r\n;0\r\n").as_text(), std::nullopt);
  EXPECT_EQ(view("$?\r\n;1\r\na\r\n;1\r\nb\r\n;0\r\n").copy_text(), "ab");
  EXPECT_EQ(view(":1\r\n").copy_text(), std::nullopt);
}

TEST(RespView, ElementsOneByOne) {
  const View reply = view("*4\r\n$1\r\na\r\n*2\r\n:1\r\n*1\r\n:2\r\n|1\r\n+x\r\n+y\r\n:3\r\n_\r\n");
  EXPECT_EQ(reply.size(), 4U);
  auto elements = reply.elements();
  EXPECT_EQ(elements.next().as_text(), "a");
  View inner = elements.next();
  EXPECT_EQ(inner.size(), 2U);
  EXPECT_EQ(elements.next().as_integer(), 3);
  EXPECT_FALSE(elements.done());
  EXPECT_TRUE(elements.next().is_null());
  EXPECT_TRUE(elements.done());
  EXPECT_TRUE(elements.next().is_null()) << "past the end there are nulls";
  // A view outlives its cursor.
  EXPECT_EQ(inner.at(1).at(0).as_integer(), 2);
  EXPECT_TRUE(inner.at(2).is_null());

  std::size_t count = 0;
  for (const View& element : reply.elements())
    count += element.is_aggregate() ? 10 : 1;
  EXPECT_EQ(count, 13U);
  for (const View& element : view(":1\r\n").elements())
    FAIL() << element.size();
  EXPECT_TRUE(View().elements().done());
  EXPECT_EQ(View().size(), 0U);
}

TEST(RespView, PairsComeFromEveryShapeOfTheSameReply) {
  for (const std::string_view frame :
       {"%2\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n:2\r\n", "*4\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n",
        "*2\r\n*2\r\n$1\r\na\r\n,1\r\n*2\r\n$1\r\nb\r\n,2\r\n", "%?\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n:2\r\n.\r\n"}) {
    std::string seen;
    for (const auto& [key, item] : view(frame).pairs()) {
      seen += std::string(key.as_text().value_or("?")) + '=' + std::to_string(item.as_double().value_or(-1)) + ' ';
    }
    EXPECT_EQ(seen, "a=1.000000 b=2.000000 ") << frame;
    EXPECT_EQ(view(frame).find("b").as_double(), 2);
    EXPECT_TRUE(view(frame).find("c").is_null());
  }
  EXPECT_TRUE(view("*0\r\n").pairs().done());
  EXPECT_TRUE(view("$-1\r\n").pairs().done());
  // XREADGROUP: a map of streams on RESP3, a list of pairs on RESP2.
  for (const std::string_view frame :
       {"%1\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n",
        "*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n"}) {
    EXPECT_EQ(view(frame).find("s").at(0).at(1).find("f").as_text(), "v");
  }
}

// ---- random trees ----------------------------------------------------------------------------------------------------

struct Sample {
  std::string bytes;
  Value value;
};

std::string any_bytes() {
  auto bytes = *rc::gen::container<std::string>(rc::gen::element('\r', '\n', '\0', 'a', '$', '*', '.', ';', '7'));
  return bytes;
}
std::string line_bytes() { return *rc::gen::container<std::string>(rc::gen::element('a', 'b', ' ', '$', '*', '7')); }
std::string counted(char lead, std::size_t count) { return lead + std::to_string(count) + "\r\n"; }

Sample any_sample(int depth);

/// Sometimes an attribute, which changes no value.
std::string maybe_attribute(int depth) {
  if (depth <= 0 || *rc::gen::inRange(0, 8) != 0)
    return "";
  std::string bytes = counted('|', 1);
  return bytes + any_sample(depth - 1).bytes + any_sample(depth - 1).bytes;
}

Sample scalar() {
  switch (*rc::gen::inRange(0, 13)) {
    case 0: return {"_\r\n", Value::null()};
    case 1: return {"$-1\r\n", Value::null()};
    case 2: return {"*-1\r\n", Value::null()};
    case 3: return {"#t\r\n", Value::boolean(true)};
    case 4: {
      const auto number = *rc::gen::arbitrary<std::int64_t>();
      return {":" + std::to_string(number) + "\r\n", Value::integer(number)};
    }
    case 5: {
      const auto number = *rc::gen::arbitrary<double>();
      char digits[64];
      return {"," + std::string(digits, std::to_chars(digits, digits + sizeof digits, number).ptr) + "\r\n",
              Value::real(number)};
    }
    case 6: {
      const std::string digits = "1234567890123456789012345" + std::to_string(*rc::gen::inRange(0, 1000));
      return {"(-" + digits + "\r\n", Value::big_number("-" + digits)};
    }
    case 7: {
      const std::string line = line_bytes();
      return {"+" + line + "\r\n", Value::text(line)};
    }
    case 8: {
      const std::string line = line_bytes();
      return {"-" + line + "\r\n", Value::error(line)};
    }
    case 9: {
      const std::string bytes = any_bytes();
      return {counted('!', bytes.size()) + bytes + "\r\n", Value::error(bytes)};
    }
    case 10: {
      const std::string bytes = any_bytes();
      return {counted('=', bytes.size() + 4) + "txt:" + bytes + "\r\n", Value::text(bytes)};
    }
    case 11: {
      std::string whole;
      std::string bytes = "$?\r\n";
      for (int chunks = *rc::gen::inRange(0, 4); chunks > 0; --chunks) {
        const std::string chunk = any_bytes() + "x";
        whole += chunk;
        bytes += counted(';', chunk.size()) + chunk + "\r\n";
      }
      return {bytes + ";0\r\n", Value::text(whole)};
    }
    default: {
      const std::string bytes = any_bytes();
      return {counted('$', bytes.size()) + bytes + "\r\n", Value::text(bytes)};
    }
  }
}

Sample any_sample(int depth) {
  const std::string attribute = maybe_attribute(depth);
  if (depth <= 0 || *rc::gen::inRange(0, 3) == 0) {
    Sample sample = scalar();
    sample.bytes = attribute + sample.bytes;
    return sample;
  }
  const int form = *rc::gen::inRange(0, 3);
  const bool streamed = *rc::gen::inRange(0, 4) == 0;
  const std::size_t count = *rc::gen::inRange<std::size_t>(0, 5);
  const char lead = form == 0 ? '*' : form == 1 ? '~' : '%';
  std::string bytes = attribute + (streamed ? std::string(1, lead) + "?\r\n" : counted(lead, count));
  Value::Items items;
  for (std::size_t i = 0; i < (form == 2 ? count * 2 : count); ++i) {
    Sample item = any_sample(depth - 1);
    bytes += item.bytes;
    items.push_back(std::move(item.value));
  }
  if (streamed)
    bytes += ".\r\n";
  switch (form) {
    case 0: return {bytes, Value::array(std::move(items))};
    case 1: return {bytes, Value::set(std::move(items))};
    default: return {bytes, Value::map(std::move(items))};
  }
}

RC_GTEST_PROP(RespView, RandomRepliesSurviveAnyCut, ()) {
  std::vector<Sample> samples;
  std::string stream;
  for (int i = *rc::gen::inRange(1, 5); i > 0; --i) {
    samples.push_back(any_sample(4));
    stream += samples.back().bytes;
  }
  Scanner scanner;
  std::string buffer;
  std::size_t found = 0;
  for (std::size_t at = 0; at < stream.size();) {
    const std::size_t chunk = *rc::gen::inRange<std::size_t>(1, 40);
    buffer += std::string_view(stream).substr(at, chunk);
    at += chunk;
    Step step = scanner.scan(buffer);
    for (; step == Step::frame; step = scanner.scan(buffer)) {
      RC_ASSERT(found < samples.size());
      RC_ASSERT(buffer.substr(0, scanner.frame_size()) == samples[found].bytes);
      const View whole(buffer.data(), scanner.frame_size());
      RC_ASSERT(to_value(whole) == samples[found].value);
      buffer.erase(0, scanner.frame_size());
      ++found;
    }
    RC_ASSERT(step == Step::need_more);
  }
  RC_ASSERT(found == samples.size());
  RC_ASSERT(buffer.empty());
}

RC_GTEST_PROP(RespView, RandomDamageNeverMakesAViewLeaveItsFrame, ()) {
  Sample sample = any_sample(3);
  for (int i = *rc::gen::inRange(0, 4); i > 0 && !sample.bytes.empty(); --i) {
    const auto at = *rc::gen::inRange<std::size_t>(0, sample.bytes.size());
    sample.bytes[at] = *rc::gen::element('\r', '\n', '0', '9', '$', '*', '%', '?', '.', ';', '|', '-', 'x');
  }
  // In a block of exactly its size, for the sanitizer to watch.
  const std::vector<char> block(sample.bytes.begin(), sample.bytes.end());
  Scanner scanner;
  if (scanner.scan(block.data(), block.size()) == Step::frame) {
    (void)to_value(View(block.data(), scanner.frame_size())).to_string();
  }
}

}  // namespace
