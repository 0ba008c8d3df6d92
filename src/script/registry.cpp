// Look-up by name in the generated table.
#include "script/registry.hpp"

#include <algorithm>

namespace echomq {
inline namespace v1 {
namespace script {

const ScriptSource* find_script(std::string_view name) noexcept {
  const auto scripts = all_scripts();
  const auto found = std::ranges::lower_bound(scripts, name, {}, &ScriptSource::name);
  return found != scripts.end() && found->name == name ? &*found : nullptr;
}

}  // namespace script
}  // namespace v1
}  // namespace echomq
