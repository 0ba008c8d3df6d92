// What a script can do, found without running it: which keys its commands may touch, which fields, how much of a key it
// reads at once, whether its loops end.
//
// Each variable stands for all values that are ever assigned to it; a text is known as far as it is written in the script,
// data is a gap. So every key that a run can touch is among the patterns found, and perhaps some that it cannot.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "law/protocol.hpp"

namespace echomq::law {

struct Touch {
  int line = 0;
  std::string command;
  std::string pattern;  ///< of the key: literal text, `kData`, `kDeclared`
  bool writes = false;
  std::set<std::string> fields;  ///< hash fields named there; data is `kData`
};

struct Remark {
  int line = 0;
  std::string rule;
  std::string text;
};

struct Facts {
  std::vector<Touch> touches;
  /// Broken rules that show in the code alone: loops, reads, variadic, compare, clock, command.
  std::vector<Remark> remarks;
  std::map<std::string, int> refusals;  ///< text of an error reply, and its line
  std::set<std::string> literals;       ///< texts that are neither commands, options, refusals nor patterns
  std::set<int> keys;                   ///< KEYS[n] with a fixed n
  std::set<int> arguments;
  bool keys_by_number = false;  ///< KEYS is also used with an n that is computed, or as a whole
  bool arguments_by_number = false;
  int clock_reads = 0;
  bool writes = false;
};

/// Types of the key; for one that was declared beyond the numbered ones, all types in the words of `more_keys`.
[[nodiscard]] std::set<std::string> types_touched(const Touch& touch, const ScriptEntry* entry,
                                                  const Registry& registry);

/// `entry` may be null: then KEYS and ARGV are data. Throws SyntaxError.
[[nodiscard]] Facts analyse(const Source& source, const ScriptEntry* entry, const Registry& registry);

}  // namespace echomq::law
