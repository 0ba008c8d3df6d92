// Stream entry ids, bounds and names against `protocol/vectors/streams.json`.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "bus/checks.hpp"
#include "echomq/stream.hpp"

namespace {

namespace json = boost::json;
using namespace echomq;

json::object load() {
  std::ifstream file(ECHOMQ_PROTOCOL_DIR "/vectors/streams.json");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(file.good());
  return json::parse(text.str()).as_object();
}

TEST(StreamVectors, RecordIdsAndEntryIdsAreEachOthersInverse) {
  std::optional<EventId> before;
  bus::EntryNumber number_before;
  const auto records = load();
  for (const json::value& vector : records.at("records").as_array()) {
    const std::string entry(vector.at("entry").as_string());
    const EventId id = EventId::parse(vector.at("id").as_string()).value();
    EXPECT_EQ(id.entry_id().text(), entry);
    EXPECT_EQ(EventId::from_entry_id(entry).value(), id);
    EXPECT_EQ(id.minted_at().time_since_epoch().count(), vector.at("unix_ms").to_number<std::int64_t>());
    const auto number = bus::parse_entry(entry);
    ASSERT_TRUE(number) << entry;
    EXPECT_EQ(number->tail, vector.at("tail").to_number<std::uint64_t>());
    if (before) {
      EXPECT_LT(*before, id);
      EXPECT_LT(number_before, *number);
    }
    before = id;
    number_before = *number;
  }
  EXPECT_TRUE(before);
}

TEST(StreamVectors, BoundsOfAMillisecond) {
  const auto bounds = load();
  for (const json::value& vector : bounds.at("bounds").as_array()) {
    const Instant at(Milliseconds(vector.at("unix_ms").to_number<std::int64_t>()));
    EXPECT_EQ(minid_floor(at).value(), vector.at("floor").as_string());
    EXPECT_EQ(maxid_ceil(at).value(), vector.at("ceiling").as_string());
  }
  const auto refused = minid_floor(Instant(Milliseconds(-1)));
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(Errc::invalid_argument));
  EXPECT_NE(refused.error().text.find("-1ms"), std::string::npos) << refused.error().text;
  EXPECT_FALSE(maxid_ceil(Instant(Milliseconds(-1))));
}

TEST(StreamVectors, EntryIdsThatNoRecordHas) {
  const auto no_record = load();
  for (const json::value& vector : no_record.at("no_record").as_array()) {
    const std::string entry(vector.at("entry").as_string());
    const auto id = EventId::from_entry_id(entry);
    ASSERT_FALSE(id) << entry;
    EXPECT_TRUE(id.error().is(vector.at("error").as_string() == "range" ? Errc::id_range : Errc::invalid_id)) << entry;
  }
}

TEST(StreamVectors, Names) {
  const json::object document = load();
  for (const json::value& name : document.at("names_accepted").as_array())
    EXPECT_TRUE(StreamName::parse(name.as_string()).has_value()) << name;
  for (const json::value& name : document.at("names_refused").as_array())
    EXPECT_TRUE(StreamName::parse(name.as_string()).error().is(Errc::invalid_argument)) << name;
  EXPECT_TRUE(StreamName::parse(std::string(255, 'x')).has_value());
  EXPECT_FALSE(StreamName::parse(std::string(256, 'x')).has_value());
}

TEST(StreamChecks, BoundsAreWhatTheServerReads) {
  for (const std::string_view bound :
       {"-", "+", "0", "5", "5-0", "(5-0", "(5", "18446744073709551615-18446744073709551615"})
    EXPECT_TRUE(bus::check_bound("from", bound)) << bound;
  for (const std::string_view bound :
       {"", "(", "(-", "(+", "$", ">", "*", "5-", "-5", "5-x", "5-1 ", "5-*", "18446744073709551616", "((5"}) {
    const auto refused = bus::check_bound("from", bound);
    ASSERT_FALSE(refused) << bound;
    EXPECT_TRUE(refused.error().is(Errc::invalid_argument));
    EXPECT_NE(refused.error().text.find("from"), std::string::npos);
  }
}

TEST(StreamChecks, EntriesAreComparedAsNumbers) {
  EXPECT_LT(*bus::parse_entry("5-9"), *bus::parse_entry("5-10"));
  EXPECT_LT(*bus::parse_entry("9-10"), *bus::parse_entry("10-9"));
  EXPECT_EQ(*bus::parse_entry("7"), *bus::parse_entry("7-0"));
}

}  // namespace
