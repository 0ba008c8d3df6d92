// Records of the outbox: every form of `protocol/vectors/outbox.json` is read as it was written.
#include "queue/flow_record.hpp"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <string>

namespace {

namespace json = boost::json;
using echomq::queue::FlowRecord;
using echomq::queue::parse_flow_record;

std::string bytes_of(const json::value& value) {
  const json::object* object = value.if_object();
  if (object == nullptr)
    return std::string(value.as_string());
  std::string bytes;
  const std::string hex(object->at("hex").as_string());
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

json::object outbox_vectors() {
  std::ifstream file(ECHOMQ_PROTOCOL_DIR "/vectors/outbox.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return json::parse(text).as_object();
}

TEST(FlowRecord, EveryVectorIsReadFieldByField) {
  const json::object document = outbox_vectors();
  std::size_t done = 0;
  std::size_t failed = 0;
  for (const json::value& entry : document.at("records").as_array()) {
    const json::object& vector = entry.as_object();
    const std::string bytes = bytes_of(entry);
    const auto record = parse_flow_record(bytes);
    ASSERT_TRUE(record) << json::serialize(entry);
    EXPECT_EQ(record->parent_queue.text(), vector.at("parent_queue").as_string());
    EXPECT_EQ(record->parent.text(), vector.at("parent").as_string());
    EXPECT_EQ(record->child, vector.at("child").as_string());
    EXPECT_EQ(record->failed, vector.at("kind") == "fail");
    EXPECT_EQ(record->text, bytes_of(vector.at(record->failed ? "error" : "result")));
    if (record->failed) {
      EXPECT_EQ(record->policy, vector.at("policy").as_string());
    }
    ++(record->failed ? failed : done);

    // Their lengths are law too.
    EXPECT_EQ(bytes.size(), record->parent_queue.text().size() + record->text.size() + (record->failed ? 40 : 31));
  }
  EXPECT_GE(done, 4U);
  EXPECT_GE(failed, 5U);
}

TEST(FlowRecord, WhatIsNoneIsNotRead) {
  const json::object read = outbox_vectors();
  for (const json::value& entry : read.at("malformed").as_array())
    EXPECT_FALSE(parse_flow_record(bytes_of(entry))) << json::serialize(entry);
}

TEST(FlowRecord, NoPrefixOfAHeadIsARecord) {
  const json::object read = outbox_vectors();
  for (const json::value& entry : read.at("records").as_array()) {
    const std::string bytes = bytes_of(entry);
    const auto record = parse_flow_record(bytes);
    ASSERT_TRUE(record);
    const std::size_t head = bytes.size() - record->text.size();
    for (std::size_t size = 0; size < head; ++size)
      EXPECT_FALSE(parse_flow_record(std::string_view(bytes).substr(0, size))) << size;
  }
}

}  // namespace
