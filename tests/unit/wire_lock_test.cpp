// The lock of the contract is that of the tree, and a comparison names every change that is seeded into a copy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "law/lock.hpp"

namespace echomq::law {
namespace {

using ::testing::HasSubstr;

std::string text_of(const std::vector<Change>& changes) {
  std::string text;
  for (const Change& one : changes)
    text += one.to_string() + "\n";
  return text;
}

TEST(WireLock, IsWhatTheTreeHolds) {
  const Lock locked = parse_lock(read_text(std::string(ECHOMQ_PROTOCOL_DIR) + "/wire.lock"));
  const Lock now = lock_of(read_protocol(ECHOMQ_PROTOCOL_DIR));
  EXPECT_EQ(text_of(compare(locked, now)), "");
  EXPECT_EQ(locked.to_text(), now.to_text()) << "the contract has moved: `emq wire lock` writes the lock";
  EXPECT_GE(now.items.size(), 100U);
}

TEST(WireLock, IsNotEditedByHand) {
  std::string text = lock_of(read_protocol(ECHOMQ_PROTOCOL_DIR)).to_text();
  EXPECT_EQ(parse_lock(text).to_text(), text);
  text.replace(text.find("emq:{q}:ring"), 12, "emq:{q}:rink");
  EXPECT_THROW((void)parse_lock(text), std::runtime_error);
  EXPECT_THROW((void)parse_lock("no lock\n"), std::runtime_error);
}

KeyEntry& key_of(Protocol& protocol, const std::string& type) {
  return *std::find_if(protocol.registry.keys.begin(), protocol.registry.keys.end(),
                       [&](const KeyEntry& one) { return one.type == type; });
}
ScriptEntry& script_of(Protocol& protocol, const std::string& name) {
  return *std::find_if(protocol.registry.scripts.begin(), protocol.registry.scripts.end(),
                       [&](const ScriptEntry& one) { return one.name == name; });
}
/// Replaces a text in a script's code; false when it is not there.
bool edit(Protocol& protocol, const std::string& name, const std::string& from, const std::string& to) {
  for (Source& source : protocol.scripts) {
    if (source.name != name)
      continue;
    bool found = false;
    for (std::size_t at = source.text.find(from); at != std::string::npos;
         at = source.text.find(from, at + to.size())) {
      source.text.replace(at, from.size(), to);
      found = true;
    }
    return found;
  }
  return false;
}

struct Seed {
  const char* what;
  std::function<void(Protocol&)> change;
  bool breaking;
  std::vector<const char*> named;  ///< texts that the comparison must have
};

TEST(WireLock, NamesEverySeededChangeAndWhomItHits) {
  const Lock before = lock_of(read_protocol(ECHOMQ_PROTOCOL_DIR));
  const std::vector<Seed> seeds = {
      {"a key renamed",
       [](Protocol& p) { key_of(p, "ring").name = "emq:{q}:wheel"; },
       true,
       {"key ring", "emq:{q}:wheel", "gclaim"}},
      {"another Valkey type",
       [](Protocol& p) { key_of(p, "paused").holds = "hash"; },
       true,
       {"key paused", "holds", "gpause"}},
      {"another score",
       [](Protocol& p) {
         for (auto& [name, text] : key_of(p, "active").meaning)
           if (name == "score")
             text = "seconds";
       },
       true,
       {"key active", "score", "claim"}},
      {"a key gone",
       [](Protocol& p) {
         std::erase_if(p.registry.keys, [](const KeyEntry& k) { return k.type == "limiter"; });
         p.registry.scripts.erase(std::find_if(p.registry.scripts.begin(), p.registry.scripts.end(),
                                               [](const ScriptEntry& s) { return s.name == "rate_ttl"; }));
       },
       true,
       {"key limiter: gone", "rate_ttl", "script rate_ttl: gone"}},
      {"a new key",
       [](Protocol& p) {
         p.registry.keys.push_back({"jar", "emq:{q}:jar", "emq:{q}:jar", "set", {}, {"producer"}, {}, 0, true});
       },
       false,
       {"key jar: new", "producer"}},
      {"a field gone",
       [](Protocol& p) { std::erase_if(p.registry.fields, [](const RowField& f) { return f.name == "progress"; }); },
       true,
       {"field progress", "value"}},
      {"a new field",
       [](Protocol& p) { p.registry.fields.push_back({"colour", "red", {"producer"}, true}); },
       false,
       {"field colour: new", "producer"}},
      {"a field under another name in a script",
       [](Protocol& p) { ASSERT_TRUE(edit(p, "update_progress", "'progress', ARGV[1]", "'advance', ARGV[1]")); },
       true,
       {"field progress", "update_progress no longer writes it", "field advance: new", "'advance'"}},
      {"a state's literal",
       [](Protocol& p) { ASSERT_TRUE(edit(p, "schedule", "'scheduled'", "'waiting'")); },
       true,
       {"script schedule: no longer has the literal 'scheduled'", "promote", "'waiting'"}},
      {"an outbox marker",
       [](Protocol& p) { ASSERT_TRUE(edit(p, "retry", "\\0fail\\0", "\\0dead\\0")); },
       true,
       {"script retry: no longer has the literal '\\x00fail\\x00'", "sweep_stalled"}},
      {"KEYS in another order",
       [](Protocol& p) { std::swap(script_of(p, "enqueue").keys[0], script_of(p, "enqueue").keys[1]); },
       true,
       {"script enqueue: KEYS were `job pending`, are `pending job`"}},
      {"an optional argument more",
       [](Protocol& p) { script_of(p, "gpause").arguments.push_back({"reason", true, false}); },
       false,
       {"script gpause: ARGV", "[reason]"}},
      {"an argument more",
       [](Protocol& p) { script_of(p, "gpause").arguments.push_back({"reason", false, false}); },
       true,
       {"script gpause: ARGV", "wrong arguments"}},
      {"a reply gone",
       [](Protocol& p) { script_of(p, "complete").replies.pop_back(); },
       true,
       {"script complete: no longer replies `0 gone`"}},
      {"a refusal's text",
       [](Protocol& p) {
         for (Refusal& one : p.registry.refusals)
           if (one.text == "EMQLOCK job is locked")
             one.text = "EMQLOCK locked";
       },
       true,
       {"refusal EMQLOCK job is locked: gone", "refusal EMQLOCK locked: new", "remove_job"}},
      {"a refusal more",
       [](Protocol& p) { script_of(p, "claim").refusals.emplace_back("EMQRATE closed"); },
       false,
       {"script claim: now refuses with `EMQRATE closed`"}},
      {"a script that touches a key no more",
       [](Protocol& p) { ASSERT_TRUE(edit(p, "gpause", "redis.call('LREM', KEYS[2], 0, ARGV[1])", "")); },
       true,
       {"key ring: gpause no longer writes it"}},
      {"refused at maxmemory",
       [](Protocol& p) { script_of(p, "claim").at_maxmemory = "refused"; },
       true,
       {"script claim: at maxmemory"}},
      {"another wire version",
       [](Protocol& p) { p.registry.wire_version = "echomq:3.0.1"; },
       true,
       {"wire version: was echomq:3.0.0, is echomq:3.0.1"}},
  };
  for (const Seed& seed : seeds) {
    SCOPED_TRACE(seed.what);
    Protocol protocol = read_protocol(ECHOMQ_PROTOCOL_DIR);
    seed.change(protocol);
    const Lock after = lock_of(protocol);
    EXPECT_NE(after.to_text(), before.to_text());
    const std::vector<Change> changes = compare(before, after);
    const std::string text = text_of(changes);
    for (const char* named : seed.named)
      EXPECT_THAT(text, HasSubstr(named));
    const bool breaking = std::any_of(changes.begin(), changes.end(), [](const Change& one) { return one.breaking; });
    EXPECT_EQ(breaking, seed.breaking) << text;
  }
}

}  // namespace
}  // namespace echomq::law
