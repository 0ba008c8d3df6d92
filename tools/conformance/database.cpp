#include "conformance/database.hpp"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "client/nodes.hpp"

namespace echomq::conformance {
namespace {

constexpr std::string_view kVersionKey = "{emq}:version";

/// `emq:{q}:job:<id>` against a key: what stands in braces or angle brackets is free.
[[nodiscard]] bool fits(std::string_view pattern, std::string_view key) {
  const std::size_t open = pattern.find_first_of("{<");
  if (open == std::string_view::npos)
    return pattern == key;
  // `{emq}` is a name itself.
  if (pattern.substr(open).starts_with("{emq}"))
    return pattern == key;
  const bool braces = pattern[open] == '{';
  const std::string_view lead = pattern.substr(0, open + (braces ? 1 : 0));
  if (!key.starts_with(lead))
    return false;
  pattern.remove_prefix(pattern.find(braces ? '}' : '>', open) + (braces ? 0 : 1));
  key.remove_prefix(lead.size());
  for (std::size_t length = 1; length <= key.size(); ++length) {
    if (fits(pattern, key.substr(length)))
      return true;
  }
  return false;
}

[[nodiscard]] std::vector<Value> ask_all(const Client& client, const std::vector<std::vector<std::string>>& commands) {
  std::vector<std::vector<std::string_view>> parts;
  for (const auto& command : commands)
    parts.emplace_back(command.begin(), command.end());
  std::vector<CommandParts> requests(parts.begin(), parts.end());
  if (requests.empty())
    return {};
  auto answers = client.pipeline(requests).get();
  if (!answers)
    throw std::runtime_error(answers.error().message());
  return *std::move(answers);
}

/// The groups of a stream: name, last delivered entry, pending `[entry id, consumer, deliveries]`.
[[nodiscard]] json::array groups_of(const Client& client, const std::string& key) {
  json::array groups;
  const Value rows = ask(client, {"XINFO", "GROUPS", key});
  for (const Value& row : rows.items()) {
    const std::string name(row.find("name")->as_text().value());
    json::array pending;
    const Value entries = ask(client, {"XPENDING", key, name, "-", "+", "1000000"});
    for (const Value& entry : entries.items())
      pending.push_back(json::array{to_json(entry[0]), to_json(entry[1]), to_json(entry[3])});
    groups.push_back(json::object{{"name", text_to_json(name)},
                                  {"last_delivered", to_json(*row.find("last-delivered-id"))},
                                  {"pending", pending}});
  }
  return groups;
}

[[nodiscard]] json::array zset_of(const Value& reply) {
  json::array members;
  const auto items = reply.items();
  const bool pairs = !items.empty() && items[0].is_aggregate();
  for (std::size_t i = 0; i < items.size(); i += pairs ? 1 : 2) {
    const Value& member = pairs ? items[i][0] : items[i];
    const Value& score = pairs ? items[i][1] : items[i + 1];
    members.push_back(json::array{to_json(member), score.as_double().value()});
  }
  return members;
}

}  // namespace

Extensions::Extensions() {
  const json::value registry = read_json(std::string(ECHOMQ_PROTOCOL_DIR) + "/keys.json");
  for (const char* group : {"keys", "reserve"}) {
    for (const json::value& key : registry.at(group).as_array()) {
      if (key.as_object().contains("extension"))
        key_templates_.emplace_back(text_of(key.at("template")));
    }
  }
  for (const json::value& field : registry.at("row_fields").as_array()) {
    if (field.as_object().contains("extension"))
      row_fields_.emplace_back(text_of(field.at("name")));
  }
}

bool Extensions::is_key(std::string_view key) const {
  return std::any_of(key_templates_.begin(), key_templates_.end(),
                     [&](const std::string& pattern) { return fits(pattern, key); });
}

bool Extensions::is_row_field(std::string_view key, std::string_view field) const {
  return fits("emq:{q}:job:<id>", key) && std::find(row_fields_.begin(), row_fields_.end(), field) != row_fields_.end();
}

Client connect(const std::string& url, ClientOptions options) {
  auto client = Client::open(url, std::move(options));
  if (!client)
    throw std::runtime_error(client.error().message());
  return *std::move(client);
}

Value ask(const Client& client, const std::vector<std::string>& command) {
  const std::vector<std::string_view> parts(command.begin(), command.end());
  auto reply = client.command(parts).get();
  if (!reply)
    throw std::runtime_error(command.at(0) + ": " + reply.error().message());
  return *std::move(reply);
}

bool has_command(const Client& client, const std::string& name) {
  const Value known = ask(client, {"COMMAND", "INFO", name});
  return known.size() == 1 && !known[0].is_null() && known[0].size() > 0;
}

std::vector<Value> ask_each(const Client& client, const std::vector<std::string>& command) {
  const std::vector<std::string_view> parts(command.begin(), command.end());
  const client::Nodes nodes(client);
  std::vector<Value> answers;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    auto reply = nodes.command(node, parts).get();
    if (!reply)
      throw std::runtime_error(command.at(0) + ": " + reply.error().message());
    answers.push_back(*std::move(reply));
  }
  return answers;
}

std::vector<std::string> keys_of(const Client& client, const std::string& pattern) {
  std::vector<std::string> names;
  for (const Value& node : ask_each(client, {"KEYS", pattern})) {
    for (const Value& key : node.items())
      names.emplace_back(key.as_text().value());
  }
  return names;
}

void remove_keys(const Client& client, const std::string& pattern) {
  const client::Nodes nodes(client);
  std::string cursor = "0";
  for (std::size_t node = 0; node < nodes.size();) {
    const std::string_view scan[] = {"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"};
    const auto page = nodes.command(node, scan).get();
    if (!page)
      throw std::runtime_error("SCAN: " + page.error().message());
    cursor = (*page)[0].as_text().value();
    for (const Value& key : (*page)[1].items())
      ask(client, {"DEL", std::string(key.as_text().value())});
    if (cursor == "0")
      ++node;
  }
}

std::int64_t server_time(const Client& client) {
  const Value time = ask(client, {"TIME"});
  return time[0].as_integer().value() * 1000 + time[1].as_integer().value() / 1000;
}

json::object dump(const Client& client, const Extensions& extensions) {
  std::set<std::string> keys;
  for (std::string& name : keys_of(client, "*")) {
    if (name != kVersionKey && !extensions.is_key(name))
      keys.insert(std::move(name));
  }

  std::vector<std::vector<std::string>> questions;
  for (const std::string& key : keys) {
    questions.push_back({"TYPE", key});
    questions.push_back({"PTTL", key});
  }
  const std::vector<Value> kinds = ask_all(client, questions);
  questions.clear();
  std::size_t index = 0;
  for (const std::string& key : keys) {
    const std::string_view type = kinds[index].as_text().value();
    index += 2;
    if (type == "hash")
      questions.push_back({"HGETALL", key});
    if (type == "zset")
      questions.push_back({"ZRANGE", key, "0", "-1", "WITHSCORES"});
    if (type == "list")
      questions.push_back({"LRANGE", key, "0", "-1"});
    if (type == "set")
      questions.push_back({"SMEMBERS", key});
    if (type == "string")
      questions.push_back({"GET", key});
    if (type == "stream")
      questions.push_back({"XRANGE", key, "-", "+"});
    if (questions.size() != index / 2)
      throw std::runtime_error("no way to dump a " + std::string(type));
  }
  const std::vector<Value> contents = ask_all(client, questions);

  json::object state;
  index = 0;
  for (const std::string& key : keys) {
    const std::string_view type = kinds[2 * index].as_text().value();
    const std::int64_t ttl = kinds[2 * index + 1].as_integer().value();
    const Value& content = contents[index++];
    json::value value;
    if (type == "hash") {
      json::object fields;
      const auto items = content.items();
      for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
        const std::string_view field = items[i].as_text().value();
        if (!extensions.is_row_field(key, field))
          fields[field] = to_json(items[i + 1]);
      }
      value = fields;
    } else if (type == "zset") {
      value = zset_of(content);
    } else if (type == "set") {
      std::set<std::string> members;
      for (const Value& member : content.items())
        members.emplace(member.as_text().value());
      json::array list;
      for (const std::string& member : members)
        list.push_back(text_to_json(member));
      value = list;
    } else {
      value = to_json(content);
    }
    json::object entry{{"type", type}, {"value", value}};
    if (type == "stream") {
      if (json::array groups = groups_of(client, key); !groups.empty())
        entry["groups"] = std::move(groups);
    }
    if (ttl >= 0)
      entry["ttl_ms"] = ttl;
    state[key] = entry;
  }
  return state;
}

}  // namespace echomq::conformance
