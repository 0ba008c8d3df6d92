// sweep_lapsed and flow_death_deliver: whole databases after random mixes beside those that sweep_stalled and flow_fail_deliver leave.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "support/exchange_twins.hpp"

namespace echomq::test {
namespace {

class SweepMix : public Twins {
 public:
  using Twins::Twins;

  /// Flows, most of all: leases lapse and are swept, and records of deaths are brought.
  void round() {
    steps_.clear();
    for (int i = below(4); i > 0; --i)
      admit();
    for (int i = 1 + below(3); i > 0; --i)
      flow();
    if (below(4) == 0)
      disturb();
    for (const std::string& id : parents_) {
      const std::optional<std::string> state = one_field(id, "state");
      if (state == "awaiting_children" && below(3) == 0) {  // as one that was reprocessed: it runs beside its children
        both({"HSET", kBase + "job:" + id, "state", "pending"});
        both({"ZADD", kBase + "pending", "0", id});
      }
      if (state && below(6) == 0)
        both({"HSET", kBase + "job:" + id, "cancel", "1"});
    }
    for (int i = 0; i < 2; ++i)
      exchange_both({}, {}, {}, claim());
    if (below(3) != 0)
      sweep_both();
    for (int i = below(4); i > 0; --i)
      deliver_both();
    if (parents_.size() > 30)
      parents_.erase(parents_.begin(), parents_.begin() + 15);
  }

 private:
  /// Jobs by their rows' states.
  std::map<std::string, std::string> one_states() {
    std::map<std::string, std::string> states;
    const Value reply = one_.raw({"EVAL", R"(
      local out = {}
      for _, key in ipairs(redis.call('KEYS', 'emq:{q}:job:??????????????')) do
        out[#out + 1] = string.sub(key, -14)
        out[#out + 1] = redis.call('HGET', key, 'state') or ''
      end
      return out)",
                                  "0"});
    for (std::size_t i = 0; i + 1 < reply.size(); i += 2)
      states[std::string(reply[i].as_text().value_or(""))] = reply[i + 1].as_text().value_or("");
    return states;
  }
  static std::vector<std::string> texts(const Value& list) {
    std::vector<std::string> out;
    for (const Value& one : list.items())
      out.emplace_back(one.as_text().value_or(""));
    return out;
  }
  /// One side by `sweep_stalled`, the other by `sweep_lapsed`: who died is found by looking at all rows before and after.
  void sweep_both() {
    for (const std::string& id : one_.members("active")) {
      if (below(3) == 0)
        continue;
      both({"ZADD", kBase + "active", "XX", "1", id});
      if (!one_field(id, "parent") || below(2) == 0)
        continue;
      for (const char* field : {"attempts", "stalled"})  // a child that has lost more leases than its parent
        both({"HINCRBY", kBase + "job:" + id, field, "5"});
    }
    const auto before = one_states();
    const std::vector<std::string> arguments = {kBase, std::to_string(1 + below(3)), std::to_string(1 + below(20))};
    const std::vector<std::string> keys = {"active", "pending", "dead"};
    const Value said = one_.call("sweep_stalled", keys, arguments);
    ASSERT_EQ(one_.error(), "");
    const Value named = all_.call("sweep_lapsed", keys, arguments);
    ASSERT_EQ(all_.error(), "");
    ASSERT_EQ(said.size(), 2U);
    ASSERT_EQ(named.size(), 3U);
    EXPECT_EQ(texts(named[0]), texts(said[0]));
    EXPECT_EQ(texts(named[1]), texts(said[1]));
    const auto recovered = texts(said[0]);
    const auto died = texts(said[1]);
    std::vector<std::string> fallen = texts(named[2]);
    steps_.push_back("sweep: " + std::to_string(recovered.size()) + ", " + std::to_string(died.size()) + ", " +
                     std::to_string(fallen.size()));
    std::vector<std::string> expected;
    for (const auto& [id, state] : one_states()) {
      const auto was = before.find(id);
      if (state == "dead" && was != before.end() && was->second != "dead" && std::ranges::count(died, id) == 0)
        expected.push_back(id);
    }
    for (const std::string& id : died)
      end_mark(id);
    for (const std::string& id : expected) {
      if (one_field(id, "cancel"))
        seen["marked parent"]++;
      end_mark(id);
      seen["fallen by a sweep"]++;
      if (std::ranges::count(recovered, id) > 0)
        seen["recovered and fallen"]++;
      if (one_.raw({"HLEN", kBase + "job:" + id + ":failed"}).as_integer().value_or(0) > 1)
        seen["of several"]++;
    }
    std::ranges::sort(fallen);
    EXPECT_EQ(fallen, expected);
  }
  /// One side by `flow_fail_deliver`, the other by `flow_death_deliver`.
  void deliver_both() {
    if (parents_.empty())
      return;
    const std::string& parent = any(parents_);
    const std::string row = "job:" + parent;
    if (children_.size() > 20)
      children_.erase(children_.begin(), children_.begin() + 10);
    if (children_.empty() || below(3) != 0)
      children_.push_back(fresh());
    const std::string& child = any(children_);  // a record may come again
    if (below(10) == 0)
      both({"HSET", kBase + row + ":processed", child, "done before"});
    const bool lived = one_field(parent, "state").value_or("dead") != "dead";
    const std::vector<std::string> keys = {row + ":dependencies", row + ":failed", row + ":unsuccessful", row};
    const std::vector<std::string> arguments = {child, "of " + child, below(3) == 0 ? "id" : "fp", kBase, parent};
    EXPECT_EQ(one_.call("flow_fail_deliver", keys, arguments).as_integer(), 1);
    const Value named = all_.call("flow_death_deliver", keys, arguments);
    const bool fallen = lived && one_field(parent, "state") == "dead";
    steps_.push_back("deliver " + child + " to " + parent + (fallen ? ": dead" : ""));
    EXPECT_EQ(named.as_integer(), fallen ? 2 : 1);
    seen[fallen ? "fallen by a record" : "a record that kills nobody"]++;
    if (fallen && one_field(parent, "cancel"))
      seen["marked parent"]++;
    if (fallen)
      end_mark(parent);
  }

  std::vector<std::string> children_;  // elsewhere
};

TEST(ExchangeServerTest, ASweepAndADeliveryThatNameTheDeadLeaveTheDatabaseOfThoseThatDoNot) {
  play_mixes<SweepMix>(101, 8, 60,
                       {{"fallen by a sweep", 10},
                        {"recovered and fallen", 10},
                        {"of several", 10},
                        {"fallen by a record", 10},
                        {"a record that kills nobody", 10},
                        {"marked parent", 10}});
}

}  // namespace
}  // namespace echomq::test
