// Walks the syntax tree until nothing new is learnt about any variable, then once more to note the facts.
#include "law/analysis.hpp"

#include "law/analyser.hpp"

namespace echomq::law {

std::set<std::string> types_touched(const Touch& touch, const ScriptEntry* entry, const Registry& registry) {
  if (touch.pattern != std::string(1, kDeclared))
    return registry.types_of(touch.pattern);
  std::set<std::string> types;
  std::string word;
  for (const char c : (entry == nullptr ? std::string() : entry->more_keys) + " ") {
    if (c != ' ' && c != '(' && c != ')' && c != '|' && c != ',') {
      word += c;
    } else {
      if (registry.key(word) != nullptr)
        types.insert(word);
      word.clear();
    }
  }
  return types;
}

Facts analyse(const Source& source, const ScriptEntry* entry, const Registry& registry) {
  return Analyser(source, entry, registry).run();
}

}  // namespace echomq::law
