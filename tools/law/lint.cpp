// The rules.
#include "law/lint.hpp"

#include <algorithm>
#include <optional>
#include <regex>
#include <sstream>

#include "law/lua.hpp"

namespace echomq::law {
namespace {

/// A pattern as a person reads it.
[[nodiscard]] std::string shown(const std::string& pattern) {
  std::string text;
  for (const char c : pattern)
    text += c == kData ? std::string("<data>") : c == kDeclared ? std::string("<declared>") : std::string(1, c);
  return text;
}

class ScriptLint {
 public:
  ScriptLint(const Source& source, const Registry& registry)
      : source_(source), registry_(registry), entry_(registry.script(source.name)), head_(head_of(source)) {}

  [[nodiscard]] std::vector<Finding> run() {
    if (entry_ == nullptr)
      add(1, "names", "keys.json has no script " + source_.name);
    try {
      facts_ = analyse(source_, entry_, registry_);
    } catch (const SyntaxError& error) {
      add(error.line, "syntax", error.what());
      return std::move(findings_);
    }
    is_lua_ = true;
    for (const Remark& remark : facts_.remarks)
      add(remark.line, remark.rule, remark.text);
    keys();
    fields();
    clock();
    if (head_.keys.empty() && head_.keys_from == 0)
      add(1, "head", "the head comment says nothing about KEYS[n]");
    if (entry_ != nullptr) {
      contract();
      flags();
      refusals();
    }
    return std::move(findings_);
  }
  /// After `run`; nothing when it is not Lua.
  [[nodiscard]] std::optional<Facts> facts() const { return is_lua_ ? std::optional(facts_) : std::nullopt; }

 private:
  void add(int line, std::string rule, std::string text) {
    const Finding finding{source_.path, line, std::move(rule), std::move(text)};
    const auto same = [&](const Finding& f) {
      return f.line == finding.line && f.rule == finding.rule && f.text == finding.text;
    };
    if (std::none_of(findings_.begin(), findings_.end(), same))
      findings_.push_back(finding);
  }

  void keys() {
    for (const Touch& touch : facts_.touches) {
      if (touch.pattern == std::string(1, kDeclared)) {
        if (entry_ != nullptr && entry_->more_keys.empty())
          add(touch.line, "contract", "a key beyond the declared ones: keys.json has no more_keys");
      } else if (registry_.types_of(touch.pattern).empty()) {
        add(touch.line, "keys",
            touch.command + " " + shown(touch.pattern) + ": no declared key, and no key of this queue by the grammar");
      }
    }
  }

  void fields() {
    for (const Touch& touch : facts_.touches) {
      for (const std::string& type : registry_.types_of(touch.pattern)) {
        const KeyEntry* key = registry_.key(type);
        if (key->holds != "hash")
          continue;
        for (const std::string& field : touch.fields)
          check_field(touch, *key, field);
      }
    }
  }
  void check_field(const Touch& touch, const KeyEntry& key, const std::string& field) {
    if (key.type == "job") {
      const bool known = std::any_of(registry_.fields.begin(), registry_.fields.end(),
                                     [&](const RowField& one) { return one.name == field; });
      if (!known)
        add(touch.line, "fields", "the row has no field " + shown(field) + " in keys.json");
      return;
    }
    if (field.find(kData) != std::string::npos)
      return;
    for (const auto& [name, text] : key.meaning) {
      if (name == "field" && !std::regex_search(text, std::regex("\\b" + field + "\\b")))
        add(touch.line, "fields", key.type + " has no field " + field + " in keys.json");
    }
  }

  void clock() {
    if (facts_.clock_reads > 1)
      add(1, "clock", "the clock is read more than once");
    static const std::string clock_call = "redis.call('TIME')";
    std::size_t count = 0;
    for (std::size_t at = source_.text.find(clock_call); at != std::string::npos;
         at = source_.text.find(clock_call, at + 1))
      ++count;
    if (count != static_cast<std::size_t>(facts_.clock_reads))
      add(1, "clock", "the clock is read by " + clock_call + " and nothing else");
  }

  void contract() {
    sides("KEYS", facts_.keys, facts_.keys_by_number, head_.keys, head_.keys_from,
          static_cast<int>(entry_->keys.size()), !entry_->more_keys.empty());
    int fixed = 0;
    bool repeated = false;
    for (const Argument& one : entry_->arguments) {
      fixed += one.repeated ? 0 : 1;
      repeated |= one.repeated;
    }
    sides("ARGV", facts_.arguments, facts_.arguments_by_number, head_.arguments, head_.arguments_from, fixed, repeated);
    for (const std::string& type : entry_->keys) {
      if (type != "base" && registry_.key(type) == nullptr)
        add(1, "names", "keys.json has no key type " + type);
    }
    for (std::size_t i = 0; i < entry_->keys.size(); ++i) {
      const int number = static_cast<int>(i) + 1;
      // A script of ids without number is given one key, for its slot, and the base.
      const bool slot_only =
          entry_->keys.size() == 1 && std::any_of(entry_->arguments.begin(), entry_->arguments.end(),
                                                  [](const Argument& a) { return a.name == "base"; });
      if (!facts_.keys.contains(number) && !facts_.keys_by_number && !slot_only && !touches_type(entry_->keys[i]))
        add(1, "contract", "KEYS[" + std::to_string(number) + "] is documented and not used");
    }
    for (int number = 1; number <= fixed; ++number) {
      if (!facts_.arguments.contains(number) && !facts_.arguments_by_number)
        add(1, "contract", "ARGV[" + std::to_string(number) + "] is documented and not used");
    }
  }
  /// A key that is declared for the cluster's sake may be reached by its name alone.
  [[nodiscard]] bool touches_type(const std::string& type) const {
    return std::any_of(facts_.touches.begin(), facts_.touches.end(),
                       [&](const Touch& touch) { return registry_.types_of(touch.pattern).contains(type); });
  }
  void sides(const std::string& list, const std::set<int>& used, bool by_number, const std::set<int>& stated, int from,
             int registered, bool open) {
    const auto named = [&](int n) { return list + "[" + std::to_string(n) + "]"; };
    const auto is_stated = [&](int n) { return stated.contains(n) || (from != 0 && n >= from); };
    for (const int n : used) {
      if (!is_stated(n))
        add(1, "contract", named(n) + " is used and not in the head comment");
      if (n > registered && !open)
        add(1, "contract", named(n) + " is used and not in keys.json");
    }
    for (int n = 1; n <= registered; ++n) {
      if (!is_stated(n))
        add(1, "contract", named(n) + " is in keys.json and not in the head comment");
    }
    for (const int n : stated) {
      if (n > registered && !open)
        add(1, "contract", named(n) + " is in the head comment and not in keys.json");
    }
    if (from != 0 && !open)
      add(1, "contract", named(from) + " and more are in the head comment and not in keys.json");
    if (open && from == 0 && (stated.empty() || *stated.rbegin() <= registered))
      add(1, "contract", "keys.json has more " + list + " than the head comment");
    if (from != 0 && !by_number && used.lower_bound(from) == used.end() && list == "ARGV")
      add(1, "contract", named(from) + " and more are documented and not used");
  }

  void flags() {
    const bool refused = entry_->at_maxmemory == "refused";
    const std::string wanted = !facts_.writes ? "no-writes" : refused ? "" : "allow-oom";
    if (head_.flags != wanted || (head_.shebang && head_.flags.empty())) {
      add(1, "flags",
          wanted.empty() ? "a script that a full server refuses has no `#!lua` line"
                         : "the first line must be `#!lua flags=" + wanted + "`");
    }
    if (entry_->at_maxmemory != "refused" && entry_->at_maxmemory != "runs")
      add(1, "flags", "keys.json: at_maxmemory is `refused` or `runs`");
    if (entry_->writes != facts_.writes)
      add(1, "flags", std::string("keys.json says writes: ") + (entry_->writes ? "true" : "false"));
    if (entry_->reads_clock != (facts_.clock_reads > 0))
      add(1, "flags", std::string("keys.json says reads_clock: ") + (entry_->reads_clock ? "true" : "false"));
  }

  void refusals() {
    for (const auto& [text, line] : facts_.refusals) {
      if (std::find(entry_->refusals.begin(), entry_->refusals.end(), text) == entry_->refusals.end())
        add(line, "refusal", "not among its refusals in keys.json: " + shown(text));
      if (!stated(text))
        add(line, "refusal", "not in the head comment: " + shown(text));
      if (text.starts_with("EMQ") && !registered(text))
        add(line, "refusal", "keys.json does not list this script under `" + shown(text) + "`");
    }
    for (const std::string& text : entry_->refusals) {
      if (!facts_.refusals.contains(text))
        add(1, "refusal", "keys.json lists a refusal that the script never makes: " + text);
    }
  }
  [[nodiscard]] bool stated(const std::string& text) const {
    std::string head = std::regex_replace(head_.text, std::regex("\\s+"), " ");
    if (head.find(text) != std::string::npos)
      return true;
    return text.starts_with("ERR ") && head.find("ERR with what is wrong") != std::string::npos;
  }
  [[nodiscard]] bool registered(const std::string& text) const {
    return std::any_of(registry_.refusals.begin(), registry_.refusals.end(), [&](const Refusal& one) {
      return one.text == text && std::find(one.scripts.begin(), one.scripts.end(), source_.name) != one.scripts.end();
    });
  }

  const Source& source_;
  const Registry& registry_;
  const ScriptEntry* entry_;
  Head head_;
  Facts facts_;
  bool is_lua_ = false;
  std::vector<Finding> findings_;
};

/// Facts of every script that is in the registry and is Lua.
[[nodiscard]] std::map<std::string, Facts> facts_of(const Protocol& protocol) {
  std::map<std::string, Facts> all;
  for (const Source& source : protocol.scripts) {
    try {
      all.emplace(source.name, analyse(source, protocol.registry.script(source.name), protocol.registry));
    } catch (const SyntaxError&) {  // found where the script itself is checked
    }
  }
  return all;
}

[[nodiscard]] Access access_of(const Protocol& protocol, const std::map<std::string, Facts>& facts) {
  Access access;
  for (const auto& [script, its] : facts) {
    for (const Touch& touch : its.touches) {
      for (const std::string& type : types_touched(touch, protocol.registry.script(script), protocol.registry))
        (touch.writes ? access.writers : access.readers)[type].insert(script);
    }
  }
  for (auto& [type, readers] : access.readers) {
    for (const std::string& writer : access.writers[type])
      readers.erase(writer);
  }
  return access;
}

/// Prose ("lock plane of a peer") names what is above the line; one word must be a script or one of `hosts`.
[[nodiscard]] bool is_prose(const std::string& name) { return name.find(' ') != std::string::npos; }

/// "worker (ZREM of its name before a claim)" is the worker.
[[nodiscard]] std::string bare(const std::string& name) { return name.substr(0, name.find(" (")); }

[[nodiscard]] bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& one) { return bare(one) == name; });
}

class RegistryLint {
 public:
  RegistryLint(const Protocol& protocol, const std::map<std::string, Facts>& facts)
      : protocol_(protocol), registry_(protocol.registry), facts_(facts) {}

  [[nodiscard]] std::vector<Finding> run() {
    files();
    const Access access = access_of(protocol_, facts_);
    for (const KeyEntry& key : registry_.keys) {
      const auto found = [](const auto& map, const std::string& type) {
        const auto entry = map.find(type);
        return entry == map.end() ? std::set<std::string>() : entry->second;
      };
      const std::set<std::string> writers = found(access.writers, key.type);
      const std::set<std::string> readers = found(access.readers, key.type);
      for (const std::string& one : writers) {
        if (!holds(key.writers, one))
          add(key.type + ": " + one + " writes it and is not among its writers");
      }
      for (const std::string& one : readers) {
        if (!holds(key.readers, one) && !holds(key.writers, one))
          add(key.type + ": " + one + " reads it and is not among its readers");
      }
      listed(key.type, key.writers, "writers", writers, {});
      listed(key.type, key.readers, "readers", readers, writers);
    }
    fields();
    for (const Refusal& refusal : registry_.refusals)
      listed_in_refusal(refusal);
    return std::move(findings_);
  }

 private:
  void add(std::string text, const char* rule = "names") {
    findings_.push_back({"keys.json", 0, rule, std::move(text)});
  }

  [[nodiscard]] bool is_there(const std::string& name) const {
    return std::any_of(protocol_.scripts.begin(), protocol_.scripts.end(),
                       [&](const Source& one) { return one.name == name; });
  }

  void files() {
    for (const ScriptEntry& script : registry_.scripts) {
      const auto source = std::find_if(protocol_.scripts.begin(), protocol_.scripts.end(),
                                       [&](const Source& one) { return one.path == script.path; });
      if (source == protocol_.scripts.end()) {
        add(script.name + ": there is no " + script.path);
      } else if (source->name != script.name) {
        add(script.name + ": its file is named otherwise: " + script.path);
      } else if (!script.path.starts_with("lua/" + script.origin + "/")) {
        add(script.name + ": of origin " + script.origin + ", but in " + script.path);
      }
    }
  }

  void listed(const std::string& type, const std::vector<std::string>& names, const char* role,
              const std::set<std::string>& really, const std::set<std::string>& also) {
    std::set<std::string> seen;
    for (const std::string& name : names) {
      const std::string one = bare(name);
      if (!seen.insert(one).second)
        add(type + ": " + one + " stands twice among its " + role);
      if (is_there(one)) {
        if (!really.contains(one) && !also.contains(one))
          add(type + ": " + one + " is among its " + role + " and does not touch it so");
      } else if (!registry_.hosts.contains(one) && !is_prose(one)) {
        add(type + ": " + one + " among its " + role + " is neither a script nor one of `hosts`");
      }
    }
  }

  void fields() {
    std::map<std::string, std::set<std::string>> written;
    std::set<std::string> touched;
    for (const auto& [script, facts] : facts_) {
      for (const Touch& touch : facts.touches) {
        if (!types_touched(touch, registry_.script(script), registry_).contains("job"))
          continue;
        touched.insert(touch.fields.begin(), touch.fields.end());
        for (const std::string& field : touch.fields) {
          if (touch.writes)
            written[field].insert(script);
        }
      }
    }
    for (const RowField& field : registry_.fields) {
      bool by_script = false;
      for (const std::string& name : field.writers) {
        const std::string one = bare(name);
        if (!is_there(one) && !registry_.hosts.contains(one) && !is_prose(one))
          add(field.name + ": " + one + " among its writers is neither a script nor one of `hosts`", "fields");
        by_script |= is_there(one);
        if (is_there(one) && !written[field.name].contains(one))
          add(field.name + ": " + one + " is among its writers and does not write it", "fields");
      }
      if (by_script && !touched.contains(field.name))
        add(field.name + ": no script touches that field", "fields");
    }
  }

  void listed_in_refusal(const Refusal& refusal) {
    for (const std::string& name : refusal.scripts) {
      const ScriptEntry* script = registry_.script(name);
      if (script == nullptr) {
        if (!registry_.hosts.contains(name))
          add("`" + refusal.text + "`: no script " + name, "refusal");
      } else if (std::find(script->refusals.begin(), script->refusals.end(), refusal.text) == script->refusals.end()) {
        add("`" + refusal.text + "`: not among the refusals of " + name, "refusal");
      }
    }
  }

  const Protocol& protocol_;
  const Registry& registry_;
  const std::map<std::string, Facts>& facts_;
  std::vector<Finding> findings_;
};

}  // namespace

std::string Finding::to_string() const {
  return path + ":" + (line == 0 ? "" : std::to_string(line) + ":") + " [" + rule + "] " + text;
}

std::vector<Finding> lint_script(const Source& source, const Registry& registry) {
  return ScriptLint(source, registry).run();
}

std::vector<Finding> lint(const Protocol& protocol) {
  std::vector<Finding> all;
  std::map<std::string, Facts> facts;  // most of the work
  for (const Source& source : protocol.scripts) {
    ScriptLint script(source, protocol.registry);
    for (Finding& one : script.run())
      all.push_back(std::move(one));
    if (auto found = script.facts())
      facts.emplace(source.name, *std::move(found));
  }
  for (const Source& fragment : protocol.fragments) {
    const Head head = head_of(fragment);
    if (head.text.find("Expects") == std::string::npos && head.keys.empty() && head.arguments.empty())
      all.push_back({fragment.path, 1, "head", "a fragment begins with what it expects: `-- Expects ...`"});
  }
  for (Finding& one : RegistryLint(protocol, facts).run())
    all.push_back(std::move(one));
  return all;
}

Access access_of(const Protocol& protocol) { return access_of(protocol, facts_of(protocol)); }

std::string with_access(const std::string& keys_json, const Protocol& protocol) {
  const Access access = access_of(protocol);
  const auto is_there = [&](const std::string& name) {
    return std::any_of(protocol.scripts.begin(), protocol.scripts.end(),
                       [&](const Source& one) { return one.name == name; });
  };
  static const std::regex type_pattern("^ *\\{\"type\": \"([^\"]*)\"");
  static const std::regex name_pattern("\"([^\"]*)\"");
  std::istringstream lines(keys_json);
  std::string out;
  for (std::string line; std::getline(lines, line); out += line + "\n") {
    std::smatch type;
    if (!std::regex_search(line, type, type_pattern))
      continue;
    const KeyEntry* key = protocol.registry.key(type[1].str());
    const std::string name = type[1].str();
    std::set<std::string> deleters;
    for (const char* list : {"deleted_by", "writers", "readers"}) {
      const std::string mark = std::string("\"") + list + "\": [";
      const std::size_t begin = line.find(mark);
      if (key == nullptr || begin == std::string::npos)
        continue;
      const std::size_t from = begin + mark.size();
      const std::string old = line.substr(from, line.find(']', from) - from);
      const bool write = std::string_view(list) != "readers";
      const auto found = (write ? access.writers : access.readers).find(name);
      const std::set<std::string> really =
          found == (write ? access.writers : access.readers).end() ? std::set<std::string>() : found->second;
      std::vector<std::string> kept;
      for (auto one = std::sregex_iterator(old.begin(), old.end(), name_pattern); one != std::sregex_iterator();
           ++one) {
        const std::string entry = (*one)[1];
        const bool stale = is_there(bare(entry)) && !really.contains(bare(entry));
        if (!stale && !holds(kept, bare(entry)))
          kept.push_back(entry);
      }
      if (std::string_view(list) == "deleted_by") {
        for (const std::string& one : kept)
          deleters.insert(bare(one));
      } else {
        for (const std::string& one : really) {
          if (!holds(kept, one) && !deleters.contains(one))
            kept.push_back(one);
        }
      }
      std::string text;
      for (const std::string& one : kept)
        text += (text.empty() ? "\"" : ", \"") + one + "\"";
      line.replace(from, old.size(), text);
    }
  }
  return out;
}

}  // namespace echomq::law
