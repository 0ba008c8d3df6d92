// How values become payloads and come back: the built-in codecs, one of a user's own, JSON, and what cannot be read.
#include "echomq/codec.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "echomq/cache.hpp"
#include "echomq/typed.hpp"
#include "echomq/with/json.hpp"

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Point {
  int x = 0;
  int y = 0;
  friend bool operator==(const Point&, const Point&) = default;
};

struct Thumbnail {
  std::string file;
  std::int64_t width = 0;
  std::optional<std::string> note;
};
void tag_invoke(boost::json::value_from_tag, boost::json::value& out, const Thumbnail& in) {
  out = {{"file", in.file}, {"width", in.width}, {"note", boost::json::value_from(in.note)}};
}
Thumbnail tag_invoke(boost::json::value_to_tag<Thumbnail>, const boost::json::value& in) {
  const boost::json::object& object = in.as_object();
  return {boost::json::value_to<std::string>(object.at("file")),
          boost::json::value_to<std::int64_t>(object.at("width")),
          boost::json::value_to<std::optional<std::string>>(object.at("note"))};
}

/// Text, with a type of its own.
struct Name : std::string {
  explicit Name(std::string text) : std::string(std::move(text)) {}
};
/// Converts to text, and has a codec all the same.
struct Money {
  int cents = 0;
  operator std::string() const { return "money"; }  // NOLINT(google-explicit-constructor)
};
struct Moody {};
struct Uncoded {};

}  // namespace

template <>
struct echomq::Codec<Point> {
  static Result<std::string> encode(const Point& point) {
    if (point.x < 0)
      return fail(Errc::invalid_argument, "x must be 0 or more, got " + std::to_string(point.x));
    return std::to_string(point.x) + "," + std::to_string(point.y);
  }
  static Result<Point> decode(std::string_view bytes) {
    const std::size_t comma = bytes.find(',');
    if (comma == std::string_view::npos)
      return fail(Errc::codec_failed, "no comma");
    return Point{std::stoi(std::string(bytes.substr(0, comma))), std::stoi(std::string(bytes.substr(comma + 1)))};
  }
};

template <>
struct echomq::Codec<Money> {
  static std::string encode(const Money& money) { return std::to_string(money.cents); }
  static Money decode(std::string_view bytes) { return {std::stoi(std::string(bytes))}; }
};

template <>
struct echomq::Codec<Moody> {
  static std::string encode(const Moody&) { throw std::runtime_error("not today"); }
  static Moody decode(std::string_view bytes) {
    if (bytes == "memory")
      throw std::bad_alloc();
    throw 7;
  }
};

namespace {

using echomq::decode_payload;
using echomq::encode_payload;
using echomq::Ended;
using echomq::EndedAs;
using echomq::Errc;
using echomq::Outcome;

static_assert(echomq::Encodable<std::string> && echomq::Decodable<std::string>);
static_assert(echomq::Encodable<std::string_view> && !echomq::Decodable<std::string_view>);
static_assert(echomq::Encodable<Point> && echomq::Decodable<Point>);
static_assert(echomq::Encodable<Thumbnail> && echomq::Decodable<std::vector<Thumbnail>>);
static_assert(!echomq::Encodable<Uncoded> && !echomq::Decodable<Uncoded>);
static_assert(echomq::Encodable<char[4]> && !echomq::Decodable<char[4]>);
static_assert(echomq::Encodable<const char*> && !echomq::Decodable<const char*>);
static_assert(echomq::Encodable<Name> && echomq::Decodable<Name>);

TEST(Codec, TextAndBytesAreWhatTheyAre) {
  const std::string all("\0\xFF{\"a\"", 6);
  EXPECT_EQ(encode_payload(all).value(), all);
  EXPECT_EQ(decode_payload<std::string>(all).value(), all) << "also beside JSON, which converts it too";
  EXPECT_EQ(encode_payload(std::string_view(all)).value(), all);
  const std::vector<std::byte> bytes = {std::byte{0}, std::byte{0xFF}};
  EXPECT_EQ(encode_payload(bytes).value(), std::string_view("\0\xFF", 2));
  EXPECT_EQ(decode_payload<std::vector<std::byte>>({"\0\xFF", 2}).value(), bytes);
  EXPECT_TRUE(decode_payload<std::vector<std::byte>>("").value().empty());
}

TEST(Codec, AUsersOwnIsUsedAndItsErrorsComeThrough) {
  EXPECT_EQ(encode_payload(Point{3, -4}).value(), "3,-4");
  EXPECT_EQ(decode_payload<Point>("3,-4").value(), (Point{3, -4}));
  EXPECT_TRUE(encode_payload(Point{-1, 0}).error().is(Errc::invalid_argument));
  EXPECT_EQ(decode_payload<Point>("3").error().text, "no comma");
}

TEST(Codec, WhatItThrowsIsAnErrorButForMemory) {
  const auto thrown = decode_payload<Point>("a,b");  // std::stoi
  ASSERT_FALSE(thrown);
  EXPECT_TRUE(thrown.error().is(Errc::codec_failed));
  EXPECT_EQ(encode_payload(Moody()).error().text, "not today");
  EXPECT_TRUE(decode_payload<Moody>("x").error().is(Errc::codec_failed));
  EXPECT_THROW((void)decode_payload<Moody>("memory"), std::bad_alloc);
}

TEST(JsonCodec, GoesThereAndBack) {
  const Thumbnail sent{"cat \"1\".png", 1 << 20, "a\nb"};
  const std::string text = encode_payload(sent).value();
  EXPECT_EQ(text, R"({"file":"cat \"1\".png","width":1048576,"note":"a\nb"})");
  const auto seen = decode_payload<Thumbnail>(" " + text + "\n").value();
  EXPECT_EQ(seen.file, sent.file);
  EXPECT_EQ(seen.width, sent.width);
  EXPECT_EQ(seen.note, sent.note);
  EXPECT_EQ(encode_payload(std::vector<int>{1, 2}).value(), "[1,2]");
  EXPECT_EQ(decode_payload<std::vector<int>>("[1,2]").value(), (std::vector<int>{1, 2}));
  EXPECT_EQ(decode_payload<double>("2.5").value(), 2.5);
}

TEST(JsonCodec, WhatIsNoJsonIsRefusedWithItsPlaceAndWithoutItsText) {
  for (const std::string_view bytes : {"", "{\"secret\":", "{\"secret\":1} x", "secret", "\"\xFF\"", "[1,]"}) {
    const auto read = decode_payload<boost::json::value>(bytes);
    ASSERT_FALSE(read) << bytes;
    EXPECT_TRUE(read.error().is(Errc::codec_failed));
    EXPECT_THAT(read.error().text, HasSubstr("no JSON, at byte "));
    EXPECT_THAT(read.error().text, Not(HasSubstr("secret")));
  }
  EXPECT_FALSE(decode_payload<boost::json::value>(std::string(100'000, '[')));
}

TEST(JsonCodec, JsonOfAnotherShapeIsRefused) {
  for (const std::string_view bytes :
       {"{}", "[]", "3", R"({"file":1,"width":2,"note":null})", R"({"file":"a","width":"secret","note":null})"}) {
    const auto read = decode_payload<Thumbnail>(bytes);
    ASSERT_FALSE(read) << bytes;
    EXPECT_TRUE(read.error().is(Errc::codec_failed));
    EXPECT_THAT(read.error().text, HasSubstr("JSON of another shape"));
    EXPECT_THAT(read.error().text, Not(HasSubstr("secret")));
  }
  EXPECT_FALSE(decode_payload<std::int8_t>("300"));
}

TEST(TypedResult, IsEncodedAndOneThatCannotBeMakesTheRunDead) {
  const Outcome done = echomq::Done(Point{1, 2});
  EXPECT_EQ(done.kind, Outcome::Kind::done);
  EXPECT_TRUE(done.has_result);
  EXPECT_EQ(done.text, "1,2");
  EXPECT_EQ(echomq::Done(std::vector<int>{7}).text, "[7]");
  EXPECT_EQ(echomq::Done("as it is").text, "as it is");
  EXPECT_FALSE(echomq::Done().has_result);
  const Outcome dead = echomq::Done(Point{-1, 2});
  EXPECT_EQ(dead.kind, Outcome::Kind::dead);
  EXPECT_THAT(dead.text, HasSubstr("the result cannot be encoded"));
  EXPECT_THAT(dead.text, HasSubstr("x must be 0 or more"));
}

// A text came out as a JSON string in one way and as its bytes in another, and a codec of one's own was passed by.
TEST(TypedResult, ATextIsItsBytesHoweverItComes) {
  const std::string text = R"(she said "no")";
  EXPECT_EQ(echomq::Done(text).text, text);
  EXPECT_EQ(echomq::Done(std::string(text)).text, text);
  EXPECT_EQ(echomq::Done(std::string_view(text)).text, text);
  EXPECT_EQ(echomq::Done(text.c_str()).text, text);
  EXPECT_EQ(echomq::Done(R"("quoted already")").text, R"("quoted already")");
  EXPECT_EQ(echomq::Done(Name(text)).text, text);
  EXPECT_EQ(echomq::Done(boost::json::serialize(boost::json::value("x"))).text, R"("x")") << "not quoted again";
  EXPECT_EQ(encode_payload("literal").value(), "literal");
  EXPECT_EQ(encode_payload(Name(text)).value(), text);
  EXPECT_EQ(decode_payload<Name>(text).value(), text);
}

TEST(TypedResult, WhatIsJsonIsQuotedOnce) {
  EXPECT_EQ(echomq::Done(boost::json::value("x")).text, R"("x")");
  EXPECT_EQ(echomq::Done(boost::json::string("x")).text, R"("x")");
  EXPECT_EQ(decode_payload<boost::json::string>(R"("x")").value(), "x");
  EXPECT_FALSE(decode_payload<boost::json::string>("3"));
  EXPECT_FALSE(decode_payload<boost::json::string>("x"));
  EXPECT_EQ(echomq::Done(std::vector<std::string>{"x"}).text, R"(["x"])");
  EXPECT_EQ(echomq::Done(std::optional<std::string>("x")).text, R"("x")");
}

TEST(TypedResult, ACodecOfOnesOwnComesBeforeAConversionToText) {
  EXPECT_EQ(echomq::Done(Money{7}).text, "7");
  EXPECT_EQ(encode_payload(Money{7}).value(), "7");
  EXPECT_EQ(decode_payload<Money>("7").value().cents, 7);
}

TEST(TypedResult, IsReadFromWhatAJobCameTo) {
  const auto read = [](EndedAs how, std::string text) {
    return echomq::decode_result<Point>(Ended{.id = {}, .how = how, .text = std::move(text)});
  };
  EXPECT_EQ(read(EndedAs::completed, "5,6").value(), (Point{5, 6}));
  EXPECT_TRUE(read(EndedAs::completed, "").error().is(Errc::codec_failed));
  EXPECT_TRUE(read(EndedAs::dead, "no disk").error().is(Errc::handler_failed));
  EXPECT_EQ(read(EndedAs::dead, "no disk").error().text, "no disk");
  EXPECT_TRUE(read(EndedAs::gone, "").error().is(Errc::job_gone));
  EXPECT_TRUE(read(EndedAs::timeout, "").error().is(Errc::timeout));
}

TEST(CacheCodec, IsThatOfPayloads) {
  EXPECT_EQ(echomq::Result<std::string>(echomq::CacheCodec<Point>::encode({1, 2})).value(), "1,2");
  EXPECT_EQ(echomq::CacheCodec<std::vector<int>>::decode("[3]").value(), std::vector<int>{3});
}

}  // namespace
