// The contract as `protocol/` states it: the registry of `keys.json`, and each script with its head comment.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace echomq::law {

/// In patterns of keys: whatever stands for data, such as an id.
inline constexpr char kData = '\x01';
/// In patterns of keys: a key that was declared, of whatever type.
inline constexpr char kDeclared = '\x02';

struct KeyEntry {
  std::string type;
  std::string name;     ///< as written: "emq:{q}:job:<id>"
  std::string pattern;  ///< the same with `kData` for what is in angle brackets
  std::string holds;    ///< Valkey type; empty for a reserved name
  /// Everything else the registry says about the content: member, score, fields, value, element, records.
  std::vector<std::pair<std::string, std::string>> meaning;
  std::vector<std::string> writers;
  std::vector<std::string> readers;
  long at_most = 0;  ///< members, when the key cannot grow beyond; 0: it can
  bool extension = false;
};

struct RowField {
  std::string name;
  std::string value;
  std::vector<std::string> writers;
  bool extension = false;
};

struct Refusal {
  std::string text;
  std::vector<std::string> scripts;
  bool extension = false;
};

struct Argument {
  std::string name;
  bool optional = false;
  bool repeated = false;
};

/// What the registry says about a script.
struct ScriptEntry {
  std::string name;
  std::string path;  ///< below `protocol/`
  std::string origin;
  std::vector<std::string> keys;  ///< types, in order
  std::string more_keys;          ///< in words; empty: there are none
  std::vector<Argument> arguments;
  std::vector<std::string> replies;
  std::vector<std::string> refusals;
  bool reads_clock = false;
  bool writes = false;
  std::string at_maxmemory;
};

struct Registry {
  std::string wire_version;
  std::vector<KeyEntry> keys;  ///< keys, subkeys and reserve
  std::vector<RowField> fields;
  std::vector<Refusal> refusals;
  std::vector<ScriptEntry> scripts;
  /// Names in `writers` and `readers` that are no scripts: host verbs and operators; and scripts that are to come.
  std::set<std::string> hosts;

  [[nodiscard]] const KeyEntry* key(std::string_view type) const;
  [[nodiscard]] const ScriptEntry* script(std::string_view name) const;
  /// Types of the keys that such a pattern can name; empty: none.
  [[nodiscard]] std::set<std::string> types_of(std::string_view pattern) const;
};

/// One text of `lua/`.
struct Source {
  std::string name;
  std::string path;  ///< below `protocol/`
  std::string text;
};

struct Protocol {
  Registry registry;
  std::vector<Source> scripts;
  std::vector<Source> fragments;
};

/// What the head comment of a script states.
struct Head {
  std::string text;
  std::string flags;  ///< of `#!lua flags=...`
  bool shebang = false;
  std::set<int> keys;
  std::set<int> arguments;
  int keys_from = 0;  ///< the n of "KEYS[n..]"; 0: there is none
  int arguments_from = 0;
};

/// Throws std::runtime_error, naming the file, when something is missing or is no JSON.
[[nodiscard]] Registry read_registry(const std::string& json);
/// Adds one entry of `scripts`, as JSON.
void add_script(Registry& registry, const std::string& json);
/// `folder` is a checkout, or its `protocol`.
[[nodiscard]] Protocol read_protocol(const std::filesystem::path& folder);
[[nodiscard]] Head head_of(const Source& source);
[[nodiscard]] std::string read_text(const std::filesystem::path& path);

}  // namespace echomq::law
