// Reads `keys.json`, the scripts and their heads.
#include "law/protocol.hpp"

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>
#include <regex>
#include <sstream>
#include <stdexcept>

namespace echomq::law {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

[[nodiscard]] std::string text_of(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr || value->is_null())
    return {};
  return value->is_string() ? std::string(value->as_string()) : json::serialize(*value);
}
[[nodiscard]] bool is_set(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_bool() && value->as_bool();
}
[[nodiscard]] std::vector<std::string> list_of(const json::object& object, std::string_view name) {
  std::vector<std::string> list;
  if (const json::value* values = object.if_contains(name)) {
    for (const json::value& one : values->as_array())
      list.emplace_back(one.as_string());
  }
  return list;
}

[[nodiscard]] std::string pattern_of(std::string_view name) {
  std::string pattern;
  bool inside = false;
  for (const char c : name) {
    if (c == '<')
      pattern += kData;
    inside = c == '<' || (inside && c != '>');
    if (!inside && c != '>')
      pattern += c;
  }
  return pattern;
}

[[nodiscard]] KeyEntry key_of(const json::object& entry) {
  KeyEntry key;
  key.type = text_of(entry, "type");
  key.name = text_of(entry, "template");
  key.pattern = pattern_of(key.name);
  key.holds = text_of(entry, "valkey_type");
  for (const char* name : {"member", "score", "field", "fields", "element", "records", "value"}) {
    if (entry.contains(name))
      key.meaning.emplace_back(name, text_of(entry, name));
  }
  key.writers = list_of(entry, "writers");
  for (const std::string& one : list_of(entry, "deleted_by")) {
    if (std::find(key.writers.begin(), key.writers.end(), one) == key.writers.end())
      key.writers.push_back(one);
  }
  key.readers = list_of(entry, "readers");
  if (const json::value* most = entry.if_contains("at_most"))
    key.at_most = most->to_number<long>();
  key.extension = is_set(entry, "extension");
  return key;
}

[[nodiscard]] ScriptEntry script_of(const json::object& entry) {
  ScriptEntry script;
  script.name = text_of(entry, "name");
  script.path = text_of(entry, "path");
  script.origin = text_of(entry, "origin");
  script.keys = list_of(entry, "keys");
  script.more_keys = text_of(entry, "more_keys");
  for (const json::value& one : entry.at("argv").as_array()) {
    const json::object& argument = one.as_object();
    script.arguments.push_back({text_of(argument, "name"), is_set(argument, "optional"), is_set(argument, "repeated")});
  }
  script.replies = list_of(entry, "replies");
  script.refusals = list_of(entry, "refusals");
  script.reads_clock = is_set(entry, "reads_clock");
  script.writes = is_set(entry, "writes");
  script.at_maxmemory = text_of(entry, "at_maxmemory");
  return script;
}

/// Could the pattern name the key of the template? Data in a template is one part of a name, without a colon.
[[nodiscard]] bool fits(std::string_view pattern, std::string_view name) {
  if (pattern.empty() || name.empty())
    return pattern.empty() && name.empty();
  if (pattern[0] == name[0])
    return fits(pattern.substr(1), name.substr(1));
  // What a script takes from data may stand for one part of a name as well, behind some text of its own.
  const bool wide = pattern[0] == kData;
  if (!wide && name[0] != kData)
    return false;
  const std::string_view other = wide ? name : pattern;
  for (std::size_t length = 1; length <= other.size() && other[length - 1] != ':'; ++length) {
    if (wide ? fits(pattern.substr(1), name.substr(length)) : fits(pattern.substr(length), name.substr(1)))
      return true;
  }
  return false;
}

}  // namespace

const KeyEntry* Registry::key(std::string_view type) const {
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const KeyEntry& one) { return one.type == type; });
  return found == keys.end() ? nullptr : &*found;
}

const ScriptEntry* Registry::script(std::string_view name) const {
  const auto found =
      std::find_if(scripts.begin(), scripts.end(), [&](const ScriptEntry& one) { return one.name == name; });
  return found == scripts.end() ? nullptr : &*found;
}

std::set<std::string> Registry::types_of(std::string_view pattern) const {
  static constexpr std::string_view kBase = "emq:{q}:";
  std::set<std::string> types;
  for (const KeyEntry& one : keys) {
    if (one.pattern == pattern)
      return {one.type};
  }
  // A base with nothing but data behind it names any key: that is no grammar.
  if (pattern == std::string(kBase) + kData ||
      !(pattern.starts_with("emq:{q}:") || pattern.starts_with("ecc:{") || pattern.starts_with("eccx:{")))
    return types;
  for (const KeyEntry& one : keys) {
    if (fits(pattern, one.pattern))
      types.insert(one.type);
  }
  return types;
}

Registry read_registry(const std::string& text) {
  const json::value document = json::parse(text);
  const json::object& root = document.as_object();
  Registry registry;
  registry.wire_version = text_of(root, "wire_version");
  for (const char* part : {"keys", "subkeys", "reserve"}) {
    for (const json::value& one : root.at(part).as_array())
      registry.keys.push_back(key_of(one.as_object()));
  }
  for (const json::value& one : root.at("row_fields").as_array()) {
    const json::object& field = one.as_object();
    registry.fields.push_back(
        {text_of(field, "name"), text_of(field, "value"), list_of(field, "writers"), is_set(field, "extension")});
  }
  for (const json::value& one : root.at("refusals").as_array()) {
    const json::object& refusal = one.as_object();
    registry.refusals.push_back({text_of(refusal, "text"), list_of(refusal, "scripts"), is_set(refusal, "extension")});
  }
  for (const json::value& one : root.at("scripts").as_array())
    registry.scripts.push_back(script_of(one.as_object()));
  for (const char* part : {"hosts", "awaited"}) {
    for (std::string& one : list_of(root, part))
      registry.hosts.insert(std::move(one));
  }
  return registry;
}

void add_script(Registry& registry, const std::string& text) {
  registry.scripts.push_back(script_of(json::parse(text).as_object()));
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw std::runtime_error("cannot read " + path.string());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Protocol read_protocol(const fs::path& folder) {
  const fs::path root = fs::exists(folder / "protocol" / "keys.json") ? folder / "protocol" : folder;
  Protocol protocol;
  try {
    protocol.registry = read_registry(read_text(root / "keys.json"));
  } catch (const boost::system::system_error& error) {
    throw std::runtime_error((root / "keys.json").string() + ": " + error.what());
  }
  for (const char* part : {"canonical", "extension", "fragments"}) {
    const fs::path lua = root / "lua" / part;
    if (!fs::exists(lua))
      continue;
    for (const auto& file : fs::recursive_directory_iterator(lua)) {
      if (file.path().extension() != ".lua")
        continue;
      Source source{file.path().stem().string(), fs::relative(file.path(), root).string(), read_text(file.path())};
      (std::string_view(part) == "fragments" ? protocol.fragments : protocol.scripts).push_back(std::move(source));
    }
  }
  const auto by_path = [](const Source& a, const Source& b) { return a.path < b.path; };
  std::sort(protocol.scripts.begin(), protocol.scripts.end(), by_path);
  std::sort(protocol.fragments.begin(), protocol.fragments.end(), by_path);
  return protocol;
}

Head head_of(const Source& source) {
  Head head;
  std::istringstream lines(source.text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (number == 1 && line.starts_with("#!")) {
      head.shebang = true;
      const std::size_t flags = line.find("flags=");
      head.flags = flags == std::string::npos ? "" : line.substr(flags + 6);
    } else if (line.starts_with("--")) {
      head.text += line.substr(2) + "\n";
    } else {
      break;
    }
  }
  static const std::regex mention_pattern("(KEYS|ARGV)\\[([0-9]+)(\\.\\.)?");
  for (auto found = std::sregex_iterator(head.text.begin(), head.text.end(), mention_pattern);
       found != std::sregex_iterator(); ++found) {
    const bool key = (*found)[1] == "KEYS";
    const int number = std::stoi((*found)[2]);
    if (!(*found)[3].matched) {
      (key ? head.keys : head.arguments).insert(number);
    } else if (int& from = key ? head.keys_from : head.arguments_from; from == 0 || number < from) {
      from = number;
    }
  }
  return head;
}

}  // namespace echomq::law
