// Names that go into keys, and tokens.
#include "echomq/names.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <unordered_set>

namespace {

using echomq::DedupId;
using echomq::Errc;
using echomq::QueueName;
using echomq::Token;

TEST(QueueName, TakesTheGrammarAndNothingElse) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string name(1, static_cast<char>(byte));
    const bool sound = (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') ||
                       byte == '.' || byte == '_' || byte == '-';
    EXPECT_EQ(QueueName::parse(name).has_value(), sound) << byte;
    EXPECT_EQ(QueueName::parse("a" + name + "b").has_value(), sound) << byte;
    EXPECT_EQ(DedupId::parse(name).has_value(), sound) << byte;
  }
  EXPECT_TRUE(QueueName::parse("").error().is(Errc::invalid_queue_name));
  EXPECT_TRUE(QueueName::parse(std::string(128, 'q')).has_value());
  EXPECT_TRUE(QueueName::parse(std::string(129, 'q')).error().is(Errc::invalid_queue_name));
  EXPECT_TRUE(QueueName::parse("emq").error().is(Errc::invalid_queue_name));
  EXPECT_TRUE(QueueName::parse("EMQ").has_value());
  EXPECT_TRUE(QueueName::parse("emq2").has_value());
  EXPECT_TRUE(QueueName::parse("ecc.coh.users").has_value());
}

TEST(QueueName, ARefusalNamesTheValueCutAndWithoutControlBytes) {
  EXPECT_EQ(QueueName::parse("a b").error().text, "\"a b\": 1 to 128 of A-Z a-z 0-9 . _ -");
  EXPECT_EQ(QueueName::parse("emq").error().text, "\"emq\" is reserved for the deployment's own keys");
  const std::string text = QueueName::parse("{q}\n\x1b[31m\x7f").error().text;
  EXPECT_NE(text.find(R"("{q}\x0a\x1b[31m\x7f")"), std::string::npos) << text;
  const std::string cut = QueueName::parse(std::string(5000, '\n')).error().text;
  EXPECT_LT(cut.size(), 400U);
  EXPECT_EQ(cut.find('\n'), std::string::npos);
}

TEST(QueueName, IsAValue) {
  constexpr QueueName literal{"orders"};
  static_assert(literal.text() == "orders");
  const QueueName parsed = QueueName::parse("orders").value();
  const QueueName copy = parsed;
  EXPECT_EQ(copy, literal);
  EXPECT_LT(parsed, QueueName::parse("orders2").value());
  EXPECT_NE(parsed, QueueName("order"));
  const std::unordered_set<QueueName> set{parsed, copy, QueueName("fills")};
  EXPECT_EQ(set.size(), 2U);
}

TEST(DedupId, HasItsOwnLimitAndNoReservedWord) {
  EXPECT_TRUE(DedupId::parse(std::string(255, 'd')).has_value());
  EXPECT_TRUE(DedupId::parse(std::string(256, 'd')).error().is(Errc::invalid_dedup_id));
  EXPECT_TRUE(DedupId::parse("").error().is(Errc::invalid_dedup_id));
  EXPECT_EQ(DedupId::parse("emq").value(), DedupId("emq"));
  EXPECT_TRUE(DedupId::parse("a:b").error().is(Errc::invalid_dedup_id));
}

TEST(Token, IsDecimal) {
  EXPECT_EQ(Token(7).text(), "7");
  EXPECT_EQ(Token::parse("0").value(), Token());
  EXPECT_EQ(Token::parse("18446744073709551615").value().value(), UINT64_MAX);
  for (const std::string_view text : {"", "-1", "+1", "01", "1 ", " 1", "1.0", "18446744073709551616", "x"}) {
    EXPECT_TRUE(Token::parse(text).error().is(Errc::invalid_argument)) << text;
  }
  EXPECT_LT(Token(9), Token(10));
}

}  // namespace
