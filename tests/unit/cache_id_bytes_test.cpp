// The quick reader of ids beside the checked one.
#include "cache/id_bytes.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>

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

}  // namespace
}  // namespace echomq::cache
