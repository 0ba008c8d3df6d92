// Commands as the protocol's vectors want them, sized exactly.
#include "resp/encode.hpp"

#include <gtest/gtest.h>

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace echomq::resp;
using namespace std::string_view_literals;

std::string encoded(const std::vector<std::string_view>& parts) {
  const std::size_t size = encoded_size(parts);
  // A byte behind, to see that nothing is written there.
  std::string out(size + 1, '\x7f');
  char* const end = encode_to(out.data(), parts);
  EXPECT_EQ(end, out.data() + size);
  EXPECT_EQ(out.back(), '\x7f');
  out.pop_back();
  return out;
}

TEST(RespEncode, TheProtocolsVectors) {
  EXPECT_EQ(encoded({"PING"}), "*1\r\n$4\r\nPING\r\n");
  EXPECT_EQ(encoded({"SET", "k", "1"}), "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\n1\r\n");
  EXPECT_EQ(encoded({"SET", "k", "10"}), "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\n10\r\n");
  EXPECT_EQ(encoded({}), "*0\r\n");
  EXPECT_EQ(encoded({"", "a\0\r\n"sv}), "*2\r\n$0\r\n\r\n$4\r\na\0\r\n\r\n"sv);
}

TEST(RespEncode, SizesAreExactAroundEveryPowerOfTen) {
  std::uint64_t power = 1;
  for (int digits = 1; digits <= 20; ++digits) {
    for (const std::uint64_t value : {power - 1, power, power + 1}) {
      EXPECT_EQ(digits_of(value), std::to_string(value).size()) << value;
      char text[21];
      EXPECT_EQ(std::string_view(text, static_cast<std::size_t>(write_digits(text, value) - text)),
                std::to_string(value));
    }
    power *= digits < 20 ? 10 : 1;
  }
  EXPECT_EQ(digits_of(UINT64_MAX), 20U);
  EXPECT_EQ(digits_of(0), 1U);
  for (int bit = 0; bit < 64; ++bit) {
    const std::uint64_t value = std::uint64_t{1} << bit;
    EXPECT_EQ(digits_of(value), std::to_string(value).size());
    EXPECT_EQ(digits_of(value - 1), std::to_string(value - 1).size());
  }
  for (const std::size_t size : {0U, 9U, 10U, 99U, 100U, 999U, 1000U, 65536U}) {
    const std::string part(size, 'x');
    EXPECT_EQ(encoded({"SET", part}), "*2\r\n$3\r\nSET\r\n$" + std::to_string(size) + "\r\n" + part + "\r\n");
  }
}

TEST(RespEncode, TheWriterAppendsCommandsPartByPart) {
  std::string out = "x";
  CommandWriter writer(out);
  writer.begin(3).part("SET").part("k").part(-12);
  writer.begin(2).part("GET").part(std::string("k"));
  const std::string_view ping[] = {"PING"};
  writer.command(ping);
  EXPECT_EQ(out, "x*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\n-12\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$4\r\nPING\r\n");
  out.clear();
  writer.begin(3).part(UINT64_MAX).part(INT64_MIN).part(std::uint8_t{7});
  EXPECT_EQ(out, "*3\r\n$20\r\n18446744073709551615\r\n$20\r\n-9223372036854775808\r\n$1\r\n7\r\n");
}

}  // namespace
