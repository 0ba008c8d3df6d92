// The law of the wire, checked on the texts alone: what every script must state and must not do, and that the registry
// and the scripts say the same.
//
// Rules, by the word that a finding carries:
//   keys      a key that is neither KEYS[n] nor built by the registry's grammar from a declared key or base of the queue
//   command   a command that is computed, or that no script uses yet
//   contract  KEYS and ARGV: head comment, code and registry
//   flags     `#!lua flags=`, and what the registry says about writing, the clock and a full server
//   refusal   error replies: code, head comment, registry
//   names     scripts, keys, writers and readers: registry and files, in both directions
//   fields    fields of rows and of other hashes: registry and code
//   loop      a loop that nothing bounds
//   read      a whole key read or cleared that has no bound
//   variadic  more than 1000 arguments at once
//   compare   `<` or `>` on what may be an id
//   clock     TIME more than once, or not by the one expression that a test can replace
//   head      a fragment or script that does not say what it takes
//   syntax    no Lua
#pragma once

#include <map>
#include <string>
#include <vector>

#include "law/analysis.hpp"
#include "law/protocol.hpp"

namespace echomq::law {

struct Finding {
  std::string path;
  int line = 0;
  std::string rule;
  std::string text;

  [[nodiscard]] std::string to_string() const;
};

/// One script against its entry of the registry.
[[nodiscard]] std::vector<Finding> lint_script(const Source& source, const Registry& registry);
/// Everything: scripts, fragments, registry.
[[nodiscard]] std::vector<Finding> lint(const Protocol& protocol);

/// Which scripts write and read keys of which type, by the code.
struct Access {
  std::map<std::string, std::set<std::string>> writers;
  std::map<std::string, std::set<std::string>> readers;  ///< those that only read
};
[[nodiscard]] Access access_of(const Protocol& protocol);

/// The text of `keys.json` with the scripts among writers and readers put right; host names stay.
[[nodiscard]] std::string with_access(const std::string& keys_json, const Protocol& protocol);

}  // namespace echomq::law
