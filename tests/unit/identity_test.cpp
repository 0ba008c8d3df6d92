// Branded ids against the protocol's vectors (document 1, section 1.7).
#include "echomq/id.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace {

using echomq::base62_decode;
using echomq::base62_encode;
using echomq::BrandedId;
using echomq::Errc;
using echomq::EventId;
using echomq::hash32;
using echomq::JobId;
using echomq::kMaxIdValue;
using echomq::LaneId;
using echomq::UnixMillis;

template <typename A, typename B>
constexpr bool equals = requires(const A& a, const B& b) { a == b; };
template <typename A, typename B>
constexpr bool ordered = requires(const A& a, const B& b) { a < b; };

std::string text_of(const echomq::Base62& digits) { return {digits.begin(), digits.end()}; }
UnixMillis at(std::int64_t milliseconds) { return UnixMillis{std::chrono::milliseconds{milliseconds}}; }

struct Vector {
  std::uint64_t value;
  const char* digits;
  std::uint32_t hash;
  std::int64_t milliseconds;
  int node;
  int sequence;
};
constexpr Vector kVectors[] = {
    {0, "00000000000", 0, 1704067200000, 0, 0},
    {1, "00000000001", 2466077478, 1704067200000, 0, 1},
    {61, "0000000000z", 3864657888, 1704067200000, 0, 61},
    {62, "00000000010", 274485891, 1704067200000, 0, 62},
    {3844, "00000000100", 3688629527, 1704067200000, 0, 3844},
    {12345678901234, "0003VLrOWLi", 1403997167, 1704070143439, 226, 4082},
    {9007199254740991, "00fFgnDxSe7", 2099287379, 1706214683647, 1023, 4095},
    {209715201620567, "000xY9Wvvcd", 2510208562, 1704117200000, 395, 2647},
    {274557032793636864, "0KHTOWnGLuC", 234878118, 1769526697641, 0, 0},
    {320636799581945856, "0NgWEfAEJfs", 3694611501, 1780512970164, 0, 0},
    {320636799581870234, "0NgWEfAE00A", 3662139036, 1780512970163, 1005, 2202},
    {9223372036854775807, "AzL8n0Y58m7", 2186628710, 3903090455551, 1023, 4095},
};

TEST(Identity, EveryVectorReadsWritesAndUnpacks) {
  for (const Vector& vector : kVectors) {
    SCOPED_TRACE(vector.digits);
    EXPECT_EQ(text_of(base62_encode(vector.value).value()), vector.digits);
    EXPECT_EQ(base62_decode(vector.digits).value(), vector.value);
    EXPECT_EQ(hash32(vector.value), vector.hash);

    const std::string text = std::string("USR") + vector.digits;
    const BrandedId encoded = BrandedId::encode("USR", vector.value).value();
    const BrandedId parsed = BrandedId::parse(text).value();
    EXPECT_EQ(encoded, parsed);
    EXPECT_EQ(parsed.text(), text);
    EXPECT_EQ(parsed.brand(), "USR");
    EXPECT_EQ(parsed.value(), vector.value);
    EXPECT_EQ(parsed.minted_at(), at(vector.milliseconds));
    EXPECT_EQ(parsed.node(), vector.node);
    EXPECT_EQ(parsed.sequence(), vector.sequence);
  }
}

TEST(Identity, FaultsAreToldInTheProtocolsOrder) {
  const auto code = [](std::string_view text) { return BrandedId::parse(text).error(); };
  for (const std::string_view text : {"", "JOB", "USR0KHTOWnGLu", "USR0KHTOWnGLuCx", "us*", "usr0KHTOWnGLu*x"}) {
    EXPECT_TRUE(code(text).is(Errc::id_length)) << text;
  }
  for (const std::string_view text :
       {"usr0KHTOWnGLuC", "12345678901234", "not-a-valid-id", "US 0KHTOWnGLu*", "US[zzzzzzzzzzz"}) {
    EXPECT_TRUE(code(text).is(Errc::id_namespace)) << text;
  }
  EXPECT_TRUE(code(std::string(14, '\0')).is(Errc::id_namespace));
  for (const std::string_view text : {"USR0KHTOWnGLu*", "USRzzzzzzzzzz-", "USR\x80zzzzzzzzzz", "USR 0000000000"}) {
    EXPECT_TRUE(code(text).is(Errc::id_charset)) << text;
  }
  for (const std::string_view text :
       {"USRAzL8n0Y58m8", "USRzzzzzzzzzzz", "BBBBBBBBBBBBBB", "USRAzL8n0Y58mz", "USRB0000000000"}) {
    EXPECT_TRUE(code(text).is(Errc::id_range)) << text;
  }
  // The first letters of the alphabet, and a payload that only looks too large.
  EXPECT_EQ(BrandedId::parse("AAAAAAAAAAAAAA").value().value(), 8530583718661818670U);
}

TEST(Identity, EveryByteInEveryPositionIsJudged) {
  const std::string sound = "USR0KHTOWnGLuC";
  for (std::size_t position = 0; position < sound.size(); ++position) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string text = sound;
      text[position] = static_cast<char>(byte);
      const bool upper = byte >= 'A' && byte <= 'Z';
      const bool digit = upper || (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9');
      const bool small = position != 3 || byte <= 'A';
      const auto parsed = BrandedId::parse(text);
      if (position < 3) {
        EXPECT_EQ(parsed.has_value(), upper);
      } else {
        EXPECT_EQ(parsed.has_value(), digit && small) << position << ' ' << byte;
      }
    }
  }
}

TEST(Identity, EncodingChecksTheRangeBeforeTheNamespace) {
  EXPECT_TRUE(BrandedId::encode("usr", kMaxIdValue + 1).error().is(Errc::id_range));
  EXPECT_TRUE(BrandedId::encode("USR", kMaxIdValue + 1).error().is(Errc::id_range));
  EXPECT_TRUE(BrandedId::encode("USR", UINT64_MAX).error().is(Errc::id_range));
  for (const std::string_view brand : {"usr", "US", "USRX", "", "U1R"}) {
    EXPECT_TRUE(BrandedId::encode(brand, 0).error().is(Errc::id_namespace)) << brand;
  }
  EXPECT_TRUE(base62_encode(kMaxIdValue + 1).error().is(Errc::id_range));
  EXPECT_TRUE(base62_decode("0KHTOWnGLu").error().is(Errc::id_length));
  EXPECT_TRUE(base62_decode("0KHTOWnGLuCx").error().is(Errc::id_length));
  EXPECT_TRUE(base62_decode("").error().is(Errc::id_length));
  EXPECT_TRUE(base62_decode("0KHTOWnGLu*").error().is(Errc::id_charset));
  EXPECT_TRUE(base62_decode("AzL8n0Y58m8").error().is(Errc::id_range));
  EXPECT_TRUE(base62_decode("zzzzzzzzzzz").error().is(Errc::id_range));
}

TEST(Identity, AnErrorNamesTheValueWithoutRawBytesAndCut) {
  const auto text = BrandedId::parse("a\r\n\"b\x01\xff").error().text;
  EXPECT_EQ(text, R"("a\x0d\x0a\"b\x01\xff")");
  const auto long_text = BrandedId::parse(std::string(1000, 'x')).error().text;
  EXPECT_EQ(long_text, '"' + std::string(64, 'x') + "\"... (1000 bytes)");
}

TEST(Identity, RandomValuesSurviveTheRoundTripInOrder) {
  // The generator that the protocol names for its native peers.
  std::uint64_t state = 0x6A09E667F3BCC909;
  for (int i = 0; i < 1'000'000; ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const std::uint64_t value = state & kMaxIdValue;
    const BrandedId id = BrandedId::encode("CRS", value).value();
    const auto parsed = BrandedId::parse(id.text());
    ASSERT_TRUE(parsed.has_value()) << id.text();
    ASSERT_EQ(parsed->value(), value);
    if (value > 0) {
      ASSERT_LT(BrandedId::encode("CRS", value - 1).value().text(), id.text());
    }
  }
}

TEST(Identity, OrderIsThatOfTheBytes) {
  const BrandedId low{"USR0KHTOWnGLuC"};
  const BrandedId high{"USR0NgWEfAEJfs"};
  const BrandedId brand{"ORDAzL8n0Y58m7"};
  EXPECT_LT(low, high);
  EXPECT_LT(brand, low);
  EXPECT_EQ(low, BrandedId::parse("USR0KHTOWnGLuC").value());
  EXPECT_LT(BrandedId::parse("USR0000000000Z").value(), BrandedId::parse("USR0000000000a").value());
}

TEST(Identity, LiteralsAreCheckedByTheCompiler) {
  constexpr JobId job{"JOB0KHTOWnGLuC"};
  static_assert(job.is_job());
  static_assert(job.value() == 274557032793636864);
  constexpr LaneId lane{"USR0KHTOWnGLuC"};
  static_assert(lane.brand() == "USR");
  constexpr EventId event{"EVT000xY9Wvvcd"};
  static_assert(event.sequence() == 2647);
  static_assert(BrandedId{}.text() == "AAA00000000000");
  static_assert(EventId{}.text() == "EVT00000000000");
  static_assert(!std::is_convertible_v<LaneId, JobId> && !std::is_convertible_v<BrandedId, JobId>);
  static_assert(std::is_convertible_v<JobId, BrandedId>);
  static_assert(equals<JobId, JobId> && equals<LaneId, LaneId> && equals<JobId, BrandedId> &&
                equals<BrandedId, LaneId>);
  static_assert(!equals<JobId, LaneId> && !equals<LaneId, JobId>, "the two were compared as mere ids");
  static_assert(!ordered<JobId, LaneId> && !ordered<LaneId, JobId>);
  EXPECT_EQ(JobId::parse("JOB0KHTOWnGLuC").value(), job);
}

TEST(Identity, AJobIdHoldsAnyNamespaceAndSaysWhetherItIsAJob) {
  EXPECT_FALSE(JobId::parse("ORD0KHTOWnGLuC").value().is_job());
  EXPECT_TRUE(JobId::parse("JOB0KHTOWnGLuC").value().is_job());
  EXPECT_TRUE(JobId::parse("not-a-branded-id").error().is(Errc::id_length));
  EXPECT_EQ(LaneId::parse("JOB0KHTOWnGLuC").value().text(), "JOB0KHTOWnGLuC");
}

TEST(Identity, AnEventIdIsEvtOrOfTheWrongKind) {
  EXPECT_TRUE(EventId::parse("ORD000xY9Wvvcd").error().is(Errc::wrong_kind));
  EXPECT_TRUE(EventId::parse("not-branded").error().is(Errc::id_length));
  EXPECT_TRUE(EventId::parse("ORD000xY9Wvvc*").error().is(Errc::id_charset));
  EXPECT_TRUE(EventId::from(JobId{"JOB0KHTOWnGLuC"}).error().is(Errc::wrong_kind));
}

TEST(Identity, StreamEntryIdsGoBothWays) {
  const std::pair<const char*, const char*> vectors[] = {
      {"EVT000xY9Wvvcd", "1704117200000-1620567"},
      {"EVT00000000000", "1704067200000-0"},
      {"EVTAzL8n0Y58m7", "3903090455551-4194303"},
      {"EVT0NgWEfAE00A", "1780512970163-4118682"},
  };
  for (const auto& [id, entry] : vectors) {
    EXPECT_EQ(EventId::parse(id).value().entry_id().text(), entry);
    EXPECT_EQ(EventId::from_entry_id(entry).value().text(), id);
  }
  for (const std::string_view entry : {"", "-", "1-", "-1", "1704067200000", "1704067200000-", "1704067200000-4194304",
                                       "1704067200000-0x", "x1704067200000-0", "1704067200000-99999999999999999999"}) {
    EXPECT_TRUE(EventId::from_entry_id(entry).error().is(Errc::invalid_id)) << entry;
  }
  EXPECT_TRUE(EventId::from_entry_id("1704067199999-0").error().is(Errc::id_range));
  EXPECT_TRUE(EventId::from_entry_id("3903090455552-0").error().is(Errc::id_range));
}

TEST(Identity, TheSmallestIdForAnInstantBoundsAScan) {
  EXPECT_EQ(EventId::smallest_for(at(1704067200000)).value().text(), "EVT00000000000");
  EXPECT_EQ(EventId::smallest_for(at(0)).value().text(), "EVT00000000000");
  EXPECT_EQ(EventId::smallest_for(at(-5)).value().text(), "EVT00000000000");
  const EventId record{"EVT000xY9Wvvcd"};
  EXPECT_LE(EventId::smallest_for(record.minted_at()).value(), record);
  EXPECT_GT(EventId::smallest_for(record.minted_at() + std::chrono::milliseconds{1}).value(), record);
  const EventId last = EventId::smallest_for(at(3903090455551)).value();
  EXPECT_EQ(last.sequence(), 0);
  EXPECT_EQ(last.minted_at(), at(3903090455551));
  EXPECT_TRUE(EventId::smallest_for(at(3903090455552)).error().is(Errc::id_range));
  EXPECT_TRUE(BrandedId::smallest_for("JOb", at(1704067200000)).error().is(Errc::id_namespace));
}

TEST(Identity, HashesSpread) {
  std::unordered_set<JobId> ids;
  std::set<std::size_t> buckets;
  for (std::uint64_t i = 0; i < 4096; ++i) {
    const JobId id(BrandedId::encode("JOB", (std::uint64_t{65459497641} << 22) + i).value());
    ids.insert(id);
    buckets.insert(std::hash<JobId>{}(id) & 0xFFF);
  }
  EXPECT_EQ(ids.size(), 4096U);
  // Balls into bins: 63 % of the buckets are expected to be hit.
  EXPECT_GT(buckets.size(), 2400U);
  EXPECT_NE(std::hash<BrandedId>{}(BrandedId{"JOB0KHTOWnGLuC"}), std::hash<BrandedId>{}(BrandedId{"USR0KHTOWnGLuC"}));
}

}  // namespace
