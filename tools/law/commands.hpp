// What a linter must know of the server's commands: which arguments are keys, and what the call does to them.
#pragma once

#include <string_view>

namespace echomq::law {

struct Command {
  std::string_view name;
  int first = 1;  ///< the first key among the arguments, the command's name being 0; 0: none
  int last = 1;   ///< the last; -1: all that follow
  bool writes = false;
  bool integer = false;  ///< the reply is an integer
  /// Where names of hash fields stand: 0 nowhere, else the first; `field_step` 2 for pairs, 0 for one.
  int field = 0;
  int field_step = 0;
};

/// Null for a command that no script of this protocol may use without it being added here first.
[[nodiscard]] const Command* find_command(std::string_view name) noexcept;

}  // namespace echomq::law
