// Cluster slots and hashtags against the protocol's vectors.
#include "keyspace/slot.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace {

using echomq::keyspace::crc16;
using echomq::keyspace::hashtag;
using echomq::keyspace::slot;

TEST(Slot, EveryVector) {
  const struct {
    std::string_view key;
    std::string_view tag;
    int slot;
  } vectors[] = {
      {"123456789", "123456789", 12739},
      {"emq:{q1}:pending", "q1", 7450},
      {"emq:{orders}:pending", "orders", 105},
      {"emq:{orders}:job:ORD0NgWEfAEJfs", "orders", 105},
      {"emq:{fills}:pending", "fills", 4165},
      {"emq:{q7}:ring", "q7", 15836},
      {"emq:{}:pending", "emq:{}:pending", 7387},
      {"{emq}:version", "emq", 9051},
      {"{emq}:locks", "emq", 9051},
      {"{user}:1", "user", 5474},
      {"user:1", "user:1", 10778},
      {"foo", "foo", 12182},
      {"{}x", "{}x", 10595},
      {"{foo", "{foo", 13308},
      {"", "", 0},
      {"ecc:{users}:USR0KHTOWnGLuC", "users", 14124},
      {"a{b}{c}", "b", 3300},
      {"a}{b}", "b", 3300},
  };
  for (const auto& vector : vectors) {
    EXPECT_EQ(hashtag(vector.key), vector.tag) << vector.key;
    EXPECT_EQ(slot(vector.key), vector.slot) << vector.key;
  }
  static_assert(slot("123456789") == 12739);
  EXPECT_EQ(crc16("123456789"), 0x31C3);
  EXPECT_EQ(slot("{user}:1"), slot("{user}"));
  EXPECT_NE(slot("{}foo"), slot("foo"));
}

TEST(Slot, TheTableIsTheBitwiseAlgorithm) {
  const auto bitwise = [](std::string_view bytes) {
    std::uint16_t crc = 0;
    for (const char byte : bytes) {
      crc = static_cast<std::uint16_t>(crc ^ (static_cast<unsigned char>(byte) << 8));
      for (int bit = 0; bit < 8; ++bit)
        crc = static_cast<std::uint16_t>((crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1);
    }
    return crc;
  };
  std::string bytes;
  for (int i = 0; i < 600; ++i) {
    EXPECT_EQ(crc16(bytes), bitwise(bytes));
    bytes += static_cast<char>(i * 37 + 11);
  }
}

}  // namespace
