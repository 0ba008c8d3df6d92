// The linter of the law: finds nothing in `protocol/`, and each seeded violation by its rule and by no other.
#include "law/lint.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace echomq::law {
namespace {

namespace fs = std::filesystem;

std::string text_of(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& one : findings)
    text += one.to_string() + "\n";
  return text;
}
std::set<std::string> rules_of(const std::vector<Finding>& findings) {
  std::set<std::string> rules;
  for (const Finding& one : findings)
    rules.insert(one.rule);
  return rules;
}

/// The rest of the line that begins with the mark.
std::string marked(const std::string& text, const std::string& mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string::npos)
    return {};
  return text.substr(at + mark.size(), text.find('\n', at) - at - mark.size());
}

TEST(LawLint, FindsNothingInTheProtocol) {
  const Protocol protocol = read_protocol(ECHOMQ_PROTOCOL_DIR);
  EXPECT_GE(protocol.scripts.size(), 35U);
  EXPECT_GE(protocol.fragments.size(), 10U);
  EXPECT_EQ(text_of(lint(protocol)), "");
}

TEST(LawLint, FindsEverySeededViolationByItsRuleAndNoOther) {
  const Protocol protocol = read_protocol(ECHOMQ_PROTOCOL_DIR);
  std::set<std::string> rules;
  std::size_t files = 0;
  for (const auto& file : fs::directory_iterator(ECHOMQ_SOURCE_DIR "/tests/lint/seeded")) {
    const Source source{file.path().stem().string(), file.path().filename().string(), read_text(file.path())};
    SCOPED_TRACE(source.path);
    const std::string rule = marked(source.text, "-- seeded: ");
    ASSERT_NE(rule, "");
    Registry registry = protocol.registry;
    add_script(registry, marked(source.text, "-- registry: "));
    const std::vector<Finding> found = lint_script(source, registry);
    EXPECT_EQ(rules_of(found), std::set<std::string>{rule}) << text_of(found);
    rules.insert(rule);
    ++files;
  }
  EXPECT_GE(files, 34U);
  // What shows in one script; `names` needs the whole registry.
  EXPECT_EQ(rules, (std::set<std::string>{"clock", "command", "compare", "contract", "fields", "flags", "head", "keys",
                                          "loop", "read", "refusal", "syntax", "variadic"}));
}

/// Changes that make registry and scripts disagree, each with the rule that must find it.
struct Seeded {
  const char* what;
  const char* rule;
  std::function<void(Protocol&)> change;
};

KeyEntry& key(Protocol& protocol, const std::string& type) {
  return *std::find_if(protocol.registry.keys.begin(), protocol.registry.keys.end(),
                       [&](const KeyEntry& one) { return one.type == type; });
}
ScriptEntry& script(Protocol& protocol, const std::string& name) {
  return *std::find_if(protocol.registry.scripts.begin(), protocol.registry.scripts.end(),
                       [&](const ScriptEntry& one) { return one.name == name; });
}

TEST(LawLint, FindsWhereRegistryAndScriptsDisagree) {
  const std::vector<Seeded> changes = {
      {"a writer is missing", "names", [](Protocol& p) { std::erase(key(p, "pending").writers, "enqueue"); }},
      {"a reader is missing", "names", [](Protocol& p) { std::erase(key(p, "meta").readers, "claim"); }},
      {"a writer that does not write", "names", [](Protocol& p) { key(p, "dead").writers.emplace_back("enqueue"); }},
      {"a reader that does not read", "names", [](Protocol& p) { key(p, "limiter").readers.emplace_back("claim"); }},
      {"a writer that is nobody", "names", [](Protocol& p) { key(p, "dead").writers.emplace_back("enqeue"); }},
      {"a writer named twice", "names", [](Protocol& p) { key(p, "pending").writers.emplace_back("enqueue"); }},
      {"a script without a file", "names",
       [](Protocol& p) { std::erase_if(p.scripts, [](const Source& s) { return s.name == "gpause"; }); }},
      {"a file that is not registered", "names",
       [](Protocol& p) { std::erase_if(p.registry.scripts, [](const ScriptEntry& s) { return s.name == "gpause"; }); }},
      {"a script in the wrong folder", "names", [](Protocol& p) { script(p, "admit").origin = "canonical"; }},
      {"an unknown key type", "names", [](Protocol& p) { script(p, "gpause").keys[0] = "pausd"; }},
      {"a field that no script touches", "fields",
       [](Protocol& p) { p.registry.fields.push_back({"colour", "", {"retry"}, false}); }},
      {"a field's writer that does not write it", "fields",
       [](Protocol& p) { p.registry.fields[0].writers.emplace_back("counts"); }},
      {"a field that is not registered", "fields",
       [](Protocol& p) { std::erase_if(p.registry.fields, [](const RowField& f) { return f.name == "progress"; }); }},
      {"a refusal that is not registered", "refusal",
       [](Protocol& p) {
         std::erase_if(p.registry.refusals, [](const Refusal& r) { return r.text == "EMQLOCK job is locked"; });
       }},
      {"a refusal of a script that does not make it", "refusal",
       [](Protocol& p) { p.registry.refusals[0].scripts.emplace_back("claim"); }},
      {"a key with another name", "keys", [](Protocol& p) { key(p, "ring").pattern = "emq:{q}:wheel"; }},
      {"a fragment without a head", "head", [](Protocol& p) { p.fragments[0].text = "return 1\n"; }},
  };
  for (const Seeded& one : changes) {
    Protocol protocol = read_protocol(ECHOMQ_PROTOCOL_DIR);
    one.change(protocol);
    const std::vector<Finding> found = lint(protocol);
    EXPECT_TRUE(rules_of(found).contains(one.rule)) << one.what << "\n" << text_of(found);
  }
}

TEST(LawLint, PutsWritersAndReadersRight) {
  const std::string path = std::string(ECHOMQ_PROTOCOL_DIR) + "/keys.json";
  const std::string good = read_text(path);
  Protocol protocol = read_protocol(ECHOMQ_PROTOCOL_DIR);
  EXPECT_EQ(with_access(good, protocol), good);
  std::string bad = good;
  const std::string entry = "\"schedule\", ";
  const std::size_t writers = bad.find("\"writers\"", bad.find("\"type\": \"wake\""));
  bad.erase(bad.find(entry, writers), entry.size());
  ASSERT_NE(bad, good);
  protocol.registry = read_registry(bad);
  EXPECT_NE(text_of(lint(protocol)), "");
  protocol.registry = read_registry(with_access(bad, protocol));
  EXPECT_EQ(text_of(lint(protocol)), "");
}

TEST(Vectors, RefusalsAreThoseOfTheRegistry) {
  const Registry registry = read_registry(read_text(ECHOMQ_PROTOCOL_DIR "/keys.json"));
  const boost::json::value vectors = boost::json::parse(read_text(ECHOMQ_PROTOCOL_DIR "/vectors/refusals.json"));
  std::map<std::string, std::vector<std::string>> written;
  for (const boost::json::value& one : vectors.at("refusals").as_array()) {
    const std::string text(one.at("text").as_string());
    EXPECT_EQ(text.substr(0, text.find(' ')), one.at("class").as_string());
    for (const boost::json::value& script : one.at("scripts").as_array())
      written[text].emplace_back(script.as_string());
  }
  std::map<std::string, std::vector<std::string>> registered;
  for (const Refusal& one : registry.refusals)
    registered[one.text] = one.scripts;
  EXPECT_EQ(written, registered);
}

}  // namespace
}  // namespace echomq::law
