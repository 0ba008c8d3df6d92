// The quick reader of ids beside the checked one.
#include "cache/id_bytes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace echomq::cache {
namespace {

void same(const std::string& brand, std::uint64_t value) {
  const BrandedId id = BrandedId::encode(brand, value).value();
  ASSERT_EQ(value_of(id), value) << id.text();
}

TEST(CacheIdBytes, EveryPairOfDigitsInEveryPlace) {
  for (std::uint64_t pair = 0; pair < 3844; ++pair) {
    std::uint64_t place = 1;
    for (int i = 0; i < 9; ++i, place *= 62)
      same("USR", pair * place);
  }
}

TEST(CacheIdBytes, EdgesAndRandomValues) {
  for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{61}, std::uint64_t{62},
                                    id_bytes::kEight - 1, id_bytes::kEight, kMaxIdValue - 1, kMaxIdValue})
    same("ZAZ", value);
  std::mt19937_64 random(3);
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t any = random();
    const char brand[3] = {static_cast<char>('A' + any % 26), static_cast<char>('A' + any / 26 % 26),
                           static_cast<char>('A' + any / 676 % 26)};
    same(std::string(brand, 3), (random() >> 1) >> (any % 63));
  }
}

TEST(CacheIdBytes, BrandsDifferInEveryLetter) {
  EXPECT_EQ(brand_of(BrandedId("USR0NgWEfAE00A")), brand_of(BrandedId("USRAzL8n0Y58m7")));
  EXPECT_NE(brand_of(BrandedId("USR0NgWEfAE00A")), brand_of(BrandedId("TSR0NgWEfAE00A")));
  EXPECT_NE(brand_of(BrandedId("USR0NgWEfAE00A")), brand_of(BrandedId("UTR0NgWEfAE00A")));
  EXPECT_NE(brand_of(BrandedId("USR0NgWEfAE00A")), brand_of(BrandedId("USS0NgWEfAE00A")));
}

TEST(CacheIdBytes, DigitsAreTheSameForTheSameElevenAlone) {
  const BrandedId id("USR0NgWEfAEJf1");
  EXPECT_EQ(digits_of(id), digits_of(BrandedId("EVT0NgWEfAEJf1")));
  std::string text(id.text());
  for (std::size_t i = 3; i < text.size(); ++i) {
    std::string other = text;
    other[i] = other[i] == '1' ? '2' : '1';
    EXPECT_NE(digits_of(id), digits_of(BrandedId::parse(other).value())) << other;
  }
}

TEST(CacheIdBytes, JoinsWhatItWasTakenApartInto) {
  for (const BrandedId& id : {BrandedId("AAA00000000000"), BrandedId("ZZZAzL8n0Y58m7"), BrandedId("USR0NgWEfAEJf1")}) {
    BrandedId into;
    join(id.text().data(), id.text().data() + 3, into);
    EXPECT_EQ(into, id);
  }
}

/// Ids as they are minted differ in few digits: rows that find their bucket full cost a look more.
TEST(CacheIdBytes, HashesSpreadHoweverIdsAreMinted) {
  constexpr std::size_t kIds = 64 * 1024;
  constexpr std::size_t kBuckets = kIds / 5;  // of seven places each
  const std::uint64_t day = std::uint64_t{90'000'000'000} << 22;
  const std::vector<std::function<std::uint64_t(std::uint64_t)>> ways = {
      [](std::uint64_t i) { return i; },
      [&](std::uint64_t i) { return day + i; },
      [&](std::uint64_t i) { return day + (i << 22) + (5 << 12); },
      [&](std::uint64_t i) { return day + ((i * 1000) << 22); },
      [&](std::uint64_t i) { return day + ((i / 7) << 22) + ((i % 7) << 12); },
      [&](std::uint64_t i) { return day + i * 62 * 62 * 62; },
      [](std::uint64_t i) { return (i + 1) * 4'194'304 + i % 4096; },
  };
  for (std::size_t way = 0; way < ways.size(); ++way) {
    std::vector<int> buckets(kBuckets);
    std::vector<std::size_t> shards(64);
    std::set<std::uint64_t> same;
    for (std::uint64_t i = 0; i < kIds; ++i) {
      const std::uint64_t hash = digits_of(BrandedId::encode("USR", ways[way](i)).value()).hash();
      ++buckets[static_cast<std::size_t>(((hash & 0xFFFF'FFFF) * kBuckets) >> 32)];
      ++shards[(hash >> 40) & 63];
      same.insert(hash);
    }
    EXPECT_EQ(same.size(), kIds) << way;
    EXPECT_LT(*std::ranges::max_element(shards), kIds / 64 * 6 / 5) << way;
    int over = 0;
    for (const int rows : buckets)
      over += std::max(0, rows - 7);
    // Of a random hash: 4 in a hundred.
    EXPECT_LT(over, static_cast<int>(kIds * 6 / 100)) << way;
  }
}

}  // namespace
}  // namespace echomq::cache
