// The bytes of the cache against `protocol/vectors/cache.json`, and what is refused.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <sstream>
#include <string>

#include "cache/frame.hpp"
#include "keyspace/slot.hpp"

namespace echomq::cache {
namespace {

namespace json = boost::json;

const json::object& vectors() {
  static const json::value all = [] {
    std::ifstream file(ECHOMQ_PROTOCOL_DIR "/vectors/cache.json");
    std::stringstream text;
    text << file.rdbuf();
    return json::parse(text.str());
  }();
  return all.as_object();
}
std::string text_of(const json::value& value) { return std::string(value.as_string()); }
std::string bytes_of(const json::value& hex) {
  const std::string digits = text_of(hex);
  std::string bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}
BrandedId id_of(const json::value& text) { return BrandedId::parse(text_of(text)).value(); }

TEST(CacheVectors, Frames) {
  const auto frames = vectors();
  for (const json::value& vector : frames.at("frames").as_array()) {
    const std::string value = bytes_of(vector.at("value_hex"));
    const std::string bytes = bytes_of(vector.at("hex"));
    EXPECT_EQ(make_frame(id_of(vector.at("version")), value), bytes);
    const auto frame = read_frame(bytes);
    ASSERT_TRUE(frame) << vector;
    EXPECT_EQ(frame->version, id_of(vector.at("version")));
    EXPECT_EQ(frame->value, value);
  }
  const auto corrupt_frames = vectors();
  for (const json::value& vector : corrupt_frames.at("corrupt_frames").as_array())
    EXPECT_FALSE(read_frame(bytes_of(vector.at("hex")))) << vector;
}

TEST(CacheVectors, Messages) {
  const auto messages = vectors();
  for (const json::value& vector : messages.at("messages").as_array()) {
    const CoherenceMessage message{id_of(vector.at("id")), id_of(vector.at("version"))};
    EXPECT_EQ(message.text(), bytes_of(vector.at("hex")));
    const auto parsed = CoherenceMessage::parse(bytes_of(vector.at("hex")));
    ASSERT_TRUE(parsed);
    EXPECT_EQ(parsed->id, message.id);
    EXPECT_EQ(parsed->version, message.version);
  }
  const auto malformed_messages = vectors();
  for (const json::value& vector : malformed_messages.at("malformed_messages").as_array())
    EXPECT_TRUE(CoherenceMessage::parse(bytes_of(vector.at("hex"))).error().is(Errc::invalid_argument)) << vector;
}

TEST(CacheVectors, Names) {
  const auto names = vectors();
  for (const json::value& vector : names.at("names").as_array()) {
    const CacheName table = CacheName::parse(text_of(vector.at("table"))).value();
    const TableKeys keys(table);
    EXPECT_EQ(keys.row(id_of(vector.at("id"))).view(), text_of(vector.at("row")));
    EXPECT_EQ(keys.channel, text_of(vector.at("channel")));
    EXPECT_EQ(keys.prefix, text_of(vector.at("tracking_prefix")));
    EXPECT_EQ(coherence_queue(table).text(), text_of(vector.at("queue")));
    EXPECT_EQ(keyspace::hashtag(text_of(vector.at("row"))), table.text());
    EXPECT_EQ(keyspace::slot(text_of(vector.at("channel"))), keyspace::slot(text_of(vector.at("row"))));
  }
}

TEST(CacheVectors, Newer) {
  const auto newer = vectors();
  for (const json::value& vector : newer.at("newer").as_array())
    EXPECT_EQ(is_newer(id_of(vector.at("a")), id_of(vector.at("b"))), vector.at("newer").as_bool()) << vector;
}

TEST(CacheVectors, JournalRows) {
  // The journal itself comes later; its table texts are what other runtimes open.
  const json::object& journal = vectors().at("journal").as_object();
  EXPECT_EQ(journal.at("file").as_string(), "journal-<group>.db");
  for (const json::value& row : journal.at("intents").as_array()) {
    EXPECT_TRUE(JobId::parse(text_of(row.at("job_id"))).value().is_job());
    const CoherenceMessage message{id_of(row.at("name_id")), id_of(row.at("version"))};
    EXPECT_EQ(message.text(), text_of(row.at("payload")));
  }
}

TEST(CacheName, ItsQueueIsAQueue) {
  EXPECT_TRUE(CacheName::parse(std::string(120, 'a')));
  EXPECT_EQ(coherence_queue(CacheName::parse(std::string(120, 'a')).value()).text().size(), 128U);
  for (const std::string& bad : {std::string(), std::string(121, 'a'), std::string("a}b"), std::string("a b")})
    EXPECT_TRUE(CacheName::parse(bad).error().is(Errc::invalid_argument)) << bad;
}

TEST(CacheFrame, JustNewerIsTheNextVersion) {
  EXPECT_EQ(just_newer(BrandedId("USR0NgWEfAEJf1")), BrandedId("USR0NgWEfAEJf2"));
  EXPECT_TRUE(is_newer(just_newer(BrandedId("USR0NgWEfAEJfz")), BrandedId("USR0NgWEfAEJfz")));
  EXPECT_EQ(just_newer(BrandedId("USRAzL8n0Y58m7")), BrandedId("USRAzL8n0Y58m7"));
}

}  // namespace
}  // namespace echomq::cache
