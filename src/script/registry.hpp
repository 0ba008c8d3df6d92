// The scripts of `protocol/lua`, as the build embedded them: the only place where a script's text enters the library.
//
// The table is made at build time (cmake/embed_scripts.cmake), sorted by name, and lives as long as the program.
#pragma once

#include <span>
#include <string_view>

namespace echomq {
inline namespace v1 {
namespace script {

/// One script. All views point into static storage.
struct ScriptSource {
  std::string_view name;    ///< the file's name without `.lua`; unique over all folders
  std::string_view path;    ///< below `protocol/lua`, such as "canonical/queue/enqueue.lua"
  bool extension = false;   ///< ours, not of the canonical set
  std::string_view source;  ///< the file's bytes, head comment and all
  std::string_view sha1;    ///< 40 lower-case hex digits of `source`: what SCRIPT LOAD answers
};

/// Every script, ascending by name in byte order.
[[nodiscard]] std::span<const ScriptSource> all_scripts() noexcept;

/// The script of that name, or null.
[[nodiscard]] const ScriptSource* find_script(std::string_view name) noexcept;

}  // namespace script
}  // namespace v1
}  // namespace echomq
