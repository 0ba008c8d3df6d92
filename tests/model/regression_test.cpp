// Defects of scripts that histories have found, each as the few calls that show it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/server.hpp"

namespace echomq::model {
namespace {

class ModelRegression : public ::testing::Test {
 protected:
  ModelRegression() { server_.reset(initial_state()); }

  Value script(const std::string& name, std::vector<std::string> keys, std::vector<std::string> args) {
    for (std::string& key : keys)
      key.insert(0, base_);
    Turn turn = one(name, std::move(keys), std::move(args), Value{});
    Server::Answer answer = server_.ask(turn);
    keys_ = std::move(answer.keys);
    return answer.replies.front();
  }
  Value plain(std::vector<std::string> words) {
    Server::Answer answer = server_.ask(one("", {}, std::move(words), Value{}));
    keys_ = std::move(answer.keys);
    return answer.replies.front();
  }
  /// A row as the flow scripts admit it, with its member.
  void admit_child(const std::string& id, const std::string& parent) {
    script("enqueue", {"job:" + id, "pending"}, {id, "x"});
    plain({"HSET", base_ + "job:" + id, "parent", parent, "parent_policy", "fp"});
  }
  std::vector<std::string> held(const std::string& key) { return keys_[base_ + key]; }

  const std::string base_ = "emq:{q1}:";
  const std::string parent_ = job_id(0, 0);
  const std::string child_ = job_id(0, 1);
  Server server_{};
  Keyspace keys_{};
};

// A parent whose lapsed lease the sweep gave back before one of its children died of its own was left in pending and in dead.
TEST_F(ModelRegression, SweepFindsParentAndChildLapsedTogether) {
  script("enqueue", {"job:" + parent_, "pending"}, {parent_, "x"});
  admit_child(child_, parent_);
  plain({"HSET", base_ + "job:" + child_, "stalled", "1"});
  script("claim", {"pending", "active"}, {base_ + "job:", "5"});
  script("claim", {"pending", "active"}, {base_ + "job:", "5"});
  plain({"HSET", "{emq}:test-clock", "s", "1800000001"});

  const Value reply = script("sweep_stalled", {"active", "pending", "dead"}, {base_, "2"});
  EXPECT_EQ(reply, Value::array({Value::array({Value::text(parent_)}), Value::array({Value::text(child_)})}));
  EXPECT_EQ(held("dead"), (std::vector<std::string>{"z", parent_, "0", child_, "0"}));
  EXPECT_TRUE(held("pending").empty());
  EXPECT_TRUE(held("active").empty());
}

// The row of a parent may be a lane's job: its id was removed and admitted again while a child was left. Its death left it in the
// lane, or kept the lane's slot.
TEST_F(ModelRegression, ParentThatWaitsInALaneDies) {
  const std::string group = group_id(0);
  const std::vector<std::string> lane_keys{
      "job:" + parent_, "g:" + group + ":pending", "ring", "paused", "glimit", "gactive", "wake"};
  script("genqueue", lane_keys, {parent_, "x", group});
  admit_child(child_, parent_);
  script("claim", {"pending", "active"}, {base_ + "job:", "5"});
  EXPECT_EQ(script("retry", {"active", "schedule", "dead", "job:" + child_}, {child_, "1", "0", "1", "no", base_}),
            Value::text("dead"));
  EXPECT_EQ(held("dead"), (std::vector<std::string>{"z", parent_, "0", child_, "0"}));
  EXPECT_TRUE(held("g:" + group + ":pending").empty());
  EXPECT_TRUE(held("ring").empty());
}

TEST_F(ModelRegression, ParentInFlightInALaneDies) {
  const std::string group = group_id(0);
  const std::string sibling = job_id(0, 2);
  for (const std::string& id : {parent_, sibling})
    script("genqueue", {"job:" + id, "g:" + group + ":pending", "ring", "paused", "glimit", "gactive", "wake"},
           {id, "x", group});
  script("glimit", {"glimit", "gactive", "ring", "paused", "wake"}, {base_, group, "1"});
  script("gclaim", {"ring", "active"}, {base_, "5"});
  EXPECT_TRUE(held("ring").empty());
  admit_child(child_, parent_);
  script("claim", {"pending", "active"}, {base_ + "job:", "5"});
  script("retry", {"active", "schedule", "dead", "job:" + child_}, {child_, "1", "0", "1", "no", base_});
  EXPECT_TRUE(held("active").empty());
  EXPECT_TRUE(held("gactive").empty());
  EXPECT_EQ(held("ring"), (std::vector<std::string>{"l", group}));
}

}  // namespace
}  // namespace echomq::model
