// The table of keys in the code is the table in `protocol/keys.json`, and the code reproduces `protocol/vectors`.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>

#include "echomq/id.hpp"
#include "echomq/names.hpp"
#include "keyspace/keys.hpp"

namespace {

namespace json = boost::json;
using namespace echomq;
using namespace echomq::keyspace;

std::string whole_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(file.good()) << path;
  return text.str();
}
json::object load(const std::string& path) {
  return json::parse(whole_text(ECHOMQ_PROTOCOL_DIR "/" + path)).as_object();
}
std::string_view text_of(const json::object& object, std::string_view name) {
  const json::value* const value = object.if_contains(name);
  return value != nullptr && value->is_string() ? std::string_view(value->get_string()) : std::string_view();
}
std::uint64_t number_of(const json::object& object, std::string_view name) {
  const json::value& value = object.at(name);
  return value.is_string() ? std::strtoull(value.get_string().c_str(), nullptr, 10) : value.to_number<std::uint64_t>();
}

TEST(KeysJson, TheTableIsTheSameOnBothSidesOfTheLine) {
  using Row = std::tuple<std::string, std::string, std::string, bool>;
  std::set<Row> written;
  const json::object document = load("keys.json");
  for (const std::string_view part : {"keys", "subkeys", "reserve"}) {
    for (const json::value& entry : document.at(part).as_array()) {
      const json::object& row = entry.as_object();
      const std::string_view holds = text_of(row, "valkey_type");
      written.emplace(text_of(row, "type"), text_of(row, "template"), holds.empty() ? "none" : holds,
                      row.contains("extension") && row.at("extension").as_bool());
    }
  }
  std::set<Row> coded;
  for (const KeySpec& row : key_table())
    coded.emplace(row.name, row.key, to_string(row.holds), row.extension);
  for (const Row& row : written)
    EXPECT_TRUE(coded.contains(row)) << "only in keys.json: " << std::get<1>(row);
  for (const Row& row : coded)
    EXPECT_TRUE(written.contains(row)) << "only in the code: " << std::get<1>(row);
  EXPECT_EQ(document.at("subkeys").as_array().size(), kSubkeys);
}

/// The key that the code makes for a vector.
std::string made(const json::object& vector) {
  const QueueKeys keys(QueueName::parse(text_of(vector, "queue")).value());
  const std::string_view type = text_of(vector, "type");
  if (type.empty())
    return keys.base();
  const auto id = BrandedId::parse(text_of(vector, vector.contains("group") ? "group" : "id"));
  for (const KeySpec& row : key_table()) {
    if (row.name != type)
      continue;
    const auto index = static_cast<std::size_t>(row.type);
    if (index < kFixedKeys)
      return keys.fixed(row.type);
    switch (row.type) {
      case KeyType::job: return keys.job(id.value()).str();
      case KeyType::lane: return keys.lane(id.value()).str();
      case KeyType::dedup: return keys.dedup(DedupId::parse(text_of(vector, "dedup_id")).value()).str();
      case KeyType::repeat_record: return keys.repeat_record(text_of(vector, "name")).str();
      case KeyType::result: return keys.result(id.value()).str();
      case KeyType::stream: return keys.stream(text_of(vector, "name")).str();
      case KeyType::stream_archived: return keys.stream_archived(text_of(vector, "name")).str();
      case KeyType::once: return keys.once(text_of(vector, "name")).str();
      case KeyType::once_ages: return keys.once_ages(text_of(vector, "name")).str();
      default: break;
    }
    const auto subkey = index - static_cast<std::size_t>(KeyType::job_logs);
    if (subkey < kSubkeys)
      return keys.job_sub(id.value(), static_cast<Subkey>(subkey)).str();
  }
  return "no such type";
}

TEST(Vectors, Keys) {
  const json::object document = load("vectors/keys.json");
  for (const json::value& entry : document.at("keys").as_array()) {
    const json::object& vector = entry.as_object();
    EXPECT_EQ(made(vector), text_of(vector, "key"));
    if (text_of(vector, "type").empty())
      continue;
    EXPECT_EQ(spec(classify(text_of(vector, "key")).type).name, text_of(vector, "type"));
  }
  for (const json::value& entry : document.at("reserve").as_array()) {
    EXPECT_EQ(spec(classify(text_of(entry.as_object(), "key")).type).name, text_of(entry.as_object(), "suffix"));
  }
  for (const json::value& name : document.at("queue_names_accepted").as_array()) {
    EXPECT_TRUE(QueueName::parse(name.as_string()).has_value()) << name;
  }
  for (const json::value& name : document.at("queue_names_refused").as_array()) {
    EXPECT_TRUE(QueueName::parse(name.as_string()).error().is(Errc::invalid_queue_name)) << name;
  }
  for (const json::value& id : document.at("job_ids_refused").as_array()) {
    EXPECT_FALSE(JobId::parse(id.as_string()).has_value()) << id;
  }
}

TEST(Vectors, Slots) {
  const json::object document = load("vectors/slots.json");
  for (const json::value& entry : document.at("keys").as_array()) {
    const json::object& vector = entry.as_object();
    EXPECT_EQ(hashtag(text_of(vector, "key")), text_of(vector, "hash_tag"));
    EXPECT_EQ(slot(text_of(vector, "key")), number_of(vector, "slot")) << text_of(vector, "key");
  }
  for (const json::value& group : document.at("same_slot").as_array()) {
    std::set<std::uint16_t> slots;
    for (const json::value& key : group.as_array())
      slots.insert(slot(key.as_string()));
    EXPECT_EQ(slots.size(), 1U);
  }
}

Errc code_of(std::string_view word) {
  return word == "length"      ? Errc::id_length
         : word == "namespace" ? Errc::id_namespace
         : word == "charset"   ? Errc::id_charset
         : word == "kind"      ? Errc::wrong_kind
                               : Errc::id_range;
}

TEST(Vectors, Ids) {
  const json::object document = load("vectors/ids.json");
  EXPECT_EQ(number_of(document, "epoch_unix_ms"), static_cast<std::uint64_t>(kIdEpoch.time_since_epoch().count()));
  EXPECT_EQ(text_of(document, "alphabet"), echomq::detail::kBase62Alphabet);
  for (const json::value& entry : document.at("values").as_array()) {
    const json::object& vector = entry.as_object();
    const std::uint64_t value = number_of(vector, "value");
    const Base62 digits = base62_encode(value).value();
    EXPECT_EQ(std::string_view(digits.data(), digits.size()), text_of(vector, "base62"));
    EXPECT_EQ(base62_decode(text_of(vector, "base62")).value(), value);
    EXPECT_EQ(hash32(value), number_of(vector, "hash32"));
    const BrandedId id = BrandedId::encode("CRS", value).value();
    EXPECT_EQ(static_cast<std::uint64_t>(id.minted_at().time_since_epoch().count()), number_of(vector, "unix_ms"));
    EXPECT_EQ(id.node(), number_of(vector, "node"));
    EXPECT_EQ(id.sequence(), number_of(vector, "seq"));
  }
  for (const json::value& entry : document.at("decode").as_array()) {
    const json::object& vector = entry.as_object();
    const BrandedId id = BrandedId::parse(text_of(vector, "id")).value();
    EXPECT_EQ(id.brand(), text_of(vector, "namespace"));
    EXPECT_EQ(id.value(), number_of(vector, "value"));
    EXPECT_EQ(BrandedId::encode(id.brand(), id.value()).value(), id);
  }
  for (const json::value& entry : document.at("encode_refused").as_array()) {
    const json::object& vector = entry.as_object();
    EXPECT_TRUE(BrandedId::encode(text_of(vector, "namespace"), number_of(vector, "value"))
                    .error()
                    .is(code_of(text_of(vector, "error"))));
  }
  for (const json::value& entry : document.at("decode_refused").as_array()) {
    const json::object& vector = entry.as_object();
    EXPECT_TRUE(BrandedId::parse(text_of(vector, "id")).error().is(code_of(text_of(vector, "error"))))
        << text_of(vector, "id");
  }
  for (const json::value& entry : document.at("stream_entry_ids").as_array()) {
    const json::object& vector = entry.as_object();
    EXPECT_EQ(EventId::parse(text_of(vector, "id")).value().entry_id().text(), text_of(vector, "entry"));
  }
  for (const json::value& entry : document.at("stream_entry_refused").as_array()) {
    const json::object& vector = entry.as_object();
    const auto refused = EventId::parse(text_of(vector, "id"));
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().is(Errc::wrong_kind), text_of(vector, "error") == "kind");
  }
}

/// The file names of the scripts whose text has all of `line`.
std::set<std::string> scripts_with(const std::string& line) {
  std::set<std::string> names;
  for (const char* const folder : {"/lua/canonical", "/lua/extension"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(std::string(ECHOMQ_PROTOCOL_DIR) + folder)) {
      if (entry.path().extension() == ".lua" && whole_text(entry.path()).find(line) != std::string::npos)
        names.insert(entry.path().stem().string());
    }
  }
  return names;
}

// A script that kills a parent was left out of the rows that say so.
TEST(Repairs, TheRowsOfADyingParentNameEveryScriptThatExpandsTheFragment) {
  const std::string folder = ECHOMQ_PROTOCOL_DIR;
  // A nested fragment loses its markers: a line of it tells where it is.
  const std::string line = "local left_set = parent_state == 'active' and 'active'";
  ASSERT_NE(whole_text(folder + "/lua/fragments/parent_dies.lua").find(line), std::string::npos);
  const std::set<std::string> expanded = scripts_with(line);
  EXPECT_GE(expanded.size(), 6U);
  std::istringstream readme(whole_text(folder + "/README.md"));
  int rows = 0;
  for (std::string row; std::getline(readme, row);) {
    if (row.find("| a parent that dies and is a lane's job") == std::string::npos &&
        row.find("| a parent moved to dead by this call") == std::string::npos)
      continue;
    ++rows;
    std::set<std::string> named;
    std::istringstream cell(row.substr(2, row.find(" |") - 2));
    for (std::string name; std::getline(cell >> std::ws, name, ',');)
      named.insert(name);
    EXPECT_EQ(named, expanded) << row;
  }
  EXPECT_EQ(rows, 2);
}

}  // namespace
