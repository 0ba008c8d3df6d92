// The contract as one readable list (`protocol/wire.lock`), and what two such lists mean for those who speak them.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "law/protocol.hpp"

namespace echomq::law {

/// One thing of the contract ("key", "ring") and what is said of it: attribute and value, an attribute perhaps often.
using Item = std::multimap<std::string, std::string>;

struct Lock {
  std::map<std::pair<std::string, std::string>, Item> items;

  /// The file: a digest (SHA-256) of all lines that follow it, then a line a fact, columns separated by tabs.
  [[nodiscard]] std::string to_text() const;
};

/// Keys, fields, refusals, and each script's KEYS, ARGV, replies, refusals, what it touches, and its literals.
/// Throws std::runtime_error when a script is no Lua.
[[nodiscard]] Lock lock_of(const Protocol& protocol);
/// Throws std::runtime_error when the text is no lock, or its digest is another.
[[nodiscard]] Lock parse_lock(std::string_view text);
/// `path`: a lock file, or a checkout (then from what it holds now, not from its lock).
[[nodiscard]] Lock read_lock(const std::string& path);

struct Change {
  bool breaking = false;
  std::string what;  ///< "key ring: ..."
  std::string who;   ///< who can no longer read what, or what the others do not see

  [[nodiscard]] std::string to_string() const;
};

/// From A to B, breaking changes first.
[[nodiscard]] std::vector<Change> compare(const Lock& a, const Lock& b);

}  // namespace echomq::law
