// The owning tree of a reply.
#include "echomq/value.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

namespace {

using echomq::Value;

TEST(Value, AccessorsTakeEitherProtocolsShape) {
  EXPECT_EQ(Value::integer(7).as_integer(), 7);
  EXPECT_EQ(Value::text("-7").as_integer(), -7);
  EXPECT_EQ(Value::big_number("7").as_integer(), 7);
  EXPECT_EQ(Value::big_number("99999999999999999999").as_integer(), std::nullopt);
  EXPECT_EQ(Value::error("7").as_integer(), std::nullopt);
  EXPECT_EQ(Value::null().as_integer(), std::nullopt);
  EXPECT_EQ(Value::real(1.5).as_double(), 1.5);
  EXPECT_EQ(Value::text("1.5").as_double(), 1.5);
  EXPECT_EQ(Value::integer(2).as_double(), 2);
  EXPECT_EQ(Value::text("x").as_double(), std::nullopt);
  EXPECT_EQ(Value::boolean(true).as_bool(), true);
  EXPECT_EQ(Value::integer(0).as_bool(), false);
  EXPECT_EQ(Value::integer(2).as_bool(), std::nullopt);
  EXPECT_EQ(Value::text("a").as_text(), "a");
  EXPECT_EQ(Value::integer(1).as_text(), std::nullopt);
  EXPECT_EQ(Value::error("ERR x").error_text(), "ERR x");
  EXPECT_EQ(Value::text("ERR x").error_text(), "");
  EXPECT_TRUE(Value().is_null());
}

TEST(Value, FindsInMapsAndFlatArrays) {
  const Value::Items items = {Value::text("a"), Value::integer(1), Value::text("b"), Value::integer(2),
                              Value::text("c")};
  for (const Value& value : {Value::map(items), Value::array(items)}) {
    ASSERT_NE(value.find("b"), nullptr);
    EXPECT_EQ(value.find("b")->as_integer(), 2);
    EXPECT_EQ(value.find("c"), nullptr) << "a key without a value";
    EXPECT_EQ(value.find("x"), nullptr);
    EXPECT_EQ(value.size(), 5U);
    EXPECT_EQ(value[1].as_integer(), 1);
  }
  EXPECT_EQ(Value::text("a").find("a"), nullptr);
  EXPECT_TRUE(Value::text("a").items().empty());
}

TEST(Value, EqualityIsByKindAndContent) {
  EXPECT_EQ(Value::array({Value::text("a"), Value::null()}), Value::array({Value::text("a"), Value::null()}));
  EXPECT_FALSE(Value::array({}) == Value::set({}));
  EXPECT_FALSE(Value::text("1") == Value::big_number("1"));
  EXPECT_FALSE(Value::text("a") == Value::error("a"));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(Value::array({Value::real(nan)}), Value::array({Value::real(nan)}));
  EXPECT_EQ(Value::real(0.0), Value::real(-0.0));
  EXPECT_FALSE(Value::real(nan) == Value::real(0));
}

TEST(Value, IsWrittenForPeople) {
  const Value value = Value::array({
      Value::null(),
      Value::boolean(true),
      Value::integer(-5),
      Value::real(1.5),
      Value::big_number("123"),
      Value::text("a\"\\\r\n\t\x01\xff"),
      Value::error("ERR x"),
      Value::map({Value::text("k"), Value::set({Value::integer(1), Value::integer(2)})}),
      Value::push({}),
      Value::array({}),
  });
  EXPECT_EQ(value.to_string(),
            R"([null, true, -5, 1.5, 123, "a\"\\\r\n\t\x01\xff", error "ERR x", {"k": set [1, 2]}, push [], []])");
  EXPECT_EQ(Value().to_string(), "null");
}

TEST(Value, MovesLeaveNullAndCopiesAreWhole) {
  Value value = Value::array({Value::text("a"), Value::array({Value::integer(1)})});
  const Value copy = value;
  Value moved = std::move(value);
  EXPECT_TRUE(value.is_null());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(moved, copy);
  value = moved;
  moved = Value::text("x");
  EXPECT_EQ(value, copy);
  Value& alias = value;
  value = alias;
  EXPECT_EQ(value, copy);
  // An element of itself.
  value = Value(value[1]);
  EXPECT_EQ(value, Value::array({Value::integer(1)}));
  Value::Items items = value.take_items();
  EXPECT_EQ(items.size(), 1U);
  EXPECT_TRUE(value.is_null());
  EXPECT_EQ(moved.take_text(), "x");
  EXPECT_TRUE(moved.is_null());
  EXPECT_TRUE(Value::integer(1).take_items().empty());
  EXPECT_EQ(Value::integer(1).take_text(), "");
}

TEST(Value, ADeepTreeIsFreedWithoutADeepStack) {
  Value deep;
  for (int i = 0; i < 100'000; ++i) {
    Value::Items items;
    items.push_back(Value::text("left"));
    items.push_back(std::move(deep));
    items.push_back(Value::array({Value::integer(i)}));
    deep = Value::array(std::move(items));
  }
  EXPECT_EQ(deep.size(), 3U);
}

}  // namespace
