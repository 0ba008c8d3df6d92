// Writes and reads the lock.
#include "law/lock.hpp"

#include <openssl/evp.h>

#include <array>
#include <filesystem>
#include <set>
#include <sstream>
#include <stdexcept>

#include "law/analysis.hpp"
#include "law/lua.hpp"

namespace echomq::law {
namespace {

constexpr std::string_view kHead =
    "# The contract of the wire, made by `emq wire lock` from keys.json and the scripts. A test compares it.\n";
constexpr std::string_view kDigest = "digest\tsha256\t";

[[nodiscard]] std::string digest_of(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), bytes.data(), &size, EVP_sha256(), nullptr);
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) {
    hex += kDigits[bytes[i] >> 4U];
    hex += kDigits[bytes[i] & 0xFU];
  }
  return hex;
}

/// One line, no tabs, whatever the bytes are.
[[nodiscard]] std::string printable(std::string_view text) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F || c == '\\') {
      out += "\\x";
      out += kDigits[byte >> 4U];
      out += kDigits[byte & 0xFU];
    } else {
      out += c;
    }
  }
  return out;
}

template <typename List>
[[nodiscard]] std::string joined(const List& list) {
  std::string text;
  for (const std::string& one : list)
    text += (text.empty() ? "" : " ") + one;
  return text;
}

void add_script_to(Lock& lock, const Source& source, const Registry& registry, const ScriptEntry& entry) {
  Item& item = lock.items[{"script", entry.name}];
  item.emplace("origin", entry.origin);
  item.emplace("keys", joined(entry.keys));
  if (!entry.more_keys.empty())
    item.emplace("more_keys", entry.more_keys);
  std::vector<std::string> arguments;
  for (const Argument& one : entry.arguments)
    arguments.push_back(one.optional ? "[" + one.name + "]" : one.repeated ? one.name + "..." : one.name);
  item.emplace("argv", joined(arguments));
  for (const std::string& reply : entry.replies)
    item.emplace("reply", reply);
  for (const std::string& refusal : entry.refusals)
    item.emplace("refusal", refusal);
  item.emplace("clock", entry.reads_clock ? "yes" : "no");
  item.emplace("at_maxmemory", entry.at_maxmemory);

  Facts facts;
  try {
    facts = analyse(source, &entry, registry);
  } catch (const SyntaxError& error) {
    throw std::runtime_error(source.path + ":" + std::to_string(error.line) + ": " + error.what());
  }
  for (const Touch& touch : facts.touches) {
    for (const std::string& type : types_touched(touch, &entry, registry)) {
      lock.items[{"key", type}].emplace(touch.writes ? "writer" : "reader", entry.name);
      if (type != "job")
        continue;
      for (const std::string& field : touch.fields)
        lock.items[{"field", field}].emplace(touch.writes ? "writer" : "reader", entry.name);
    }
  }
  for (const std::string& literal : facts.literals)
    item.emplace("literal", "'" + literal + "'");
}

}  // namespace

std::string Lock::to_text() const {
  std::string body;
  for (const auto& [id, item] : items) {
    std::string last;
    std::set<std::string> values;
    const auto flush = [&] {
      for (const std::string& value : values)
        body += id.first + "\t" + id.second + "\t" + last + "\t" + value + "\n";
      values.clear();
    };
    for (const auto& [attribute, value] : item) {
      if (attribute != last)
        flush();
      last = attribute;
      values.insert(value);
    }
    flush();
  }
  return std::string(kHead) + std::string(kDigest) + digest_of(body) + "\n" + body;
}

Lock lock_of(const Protocol& protocol) {
  const Registry& registry = protocol.registry;
  // What scripts write and read is told by their code; the registry knows it of hosts alone.
  const auto hosts = [&](const char* role, const std::vector<std::string>& names, Item& item) {
    for (const std::string& one : names) {
      if (registry.script(one.substr(0, one.find(" ("))) == nullptr)
        item.emplace(role, one);
    }
  };
  Lock lock;
  lock.items[{"wire", "version"}].emplace("is", registry.wire_version);
  for (const KeyEntry& key : registry.keys) {
    Item& item = lock.items[{"key", key.type}];
    item.emplace("name", key.name);
    item.emplace("holds", key.holds.empty() ? "nothing" : key.holds);
    if (key.extension)
      item.emplace("extension", "yes");
    for (const auto& [name, text] : key.meaning)
      item.emplace(name, text);
    hosts("writer", key.writers, item);
    hosts("reader", key.readers, item);
  }
  for (const RowField& field : registry.fields) {
    Item& item = lock.items[{"field", field.name}];
    item.emplace("value", field.value);
    if (field.extension)
      item.emplace("extension", "yes");
    hosts("writer", field.writers, item);
  }
  for (const Refusal& refusal : registry.refusals) {
    Item& item = lock.items[{"refusal", refusal.text}];
    for (const std::string& one : refusal.scripts)
      item.emplace("script", one);
  }
  for (const Source& source : protocol.scripts) {
    if (const ScriptEntry* entry = registry.script(source.name))
      add_script_to(lock, source, registry, *entry);
  }
  // As it will be read back.
  Lock readable;
  for (const auto& [id, item] : lock.items) {
    Item& into = readable.items[{id.first, printable(id.second)}];
    for (const auto& [attribute, value] : item)
      into.emplace(attribute, printable(value));
  }
  return readable;
}

Lock parse_lock(std::string_view text) {
  const std::size_t mark = text.find(kDigest);
  const std::size_t end = mark == std::string_view::npos ? mark : text.find('\n', mark);
  if (end == std::string_view::npos)
    throw std::runtime_error("this is no wire lock: it has no digest");
  const std::string_view body = text.substr(end + 1);
  if (text.substr(mark + kDigest.size(), end - mark - kDigest.size()) != digest_of(body))
    throw std::runtime_error("the digest of the wire lock does not fit its lines: it was edited by hand");
  Lock lock;
  std::istringstream lines{std::string(body)};
  for (std::string line; std::getline(lines, line);) {
    std::array<std::string, 4> columns;
    std::size_t from = 0;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::size_t tab = i + 1 == columns.size() ? line.size() : line.find('\t', from);
      if (tab == std::string::npos)
        throw std::runtime_error("the wire lock has a line of less than four columns: " + line);
      columns[i] = line.substr(from, tab - from);
      from = tab + 1;
    }
    lock.items[{columns[0], columns[1]}].emplace(columns[2], columns[3]);
  }
  return lock;
}

Lock read_lock(const std::string& path) {
  if (std::filesystem::is_directory(path))
    return lock_of(read_protocol(path));
  return parse_lock(read_text(path));
}

}  // namespace echomq::law
