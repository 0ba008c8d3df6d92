// A slot on its way from one node to another: calls follow their keys (ASK), and wait where these are divided (TRYAGAIN).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/queue.hpp"
#include "echomq/testing/private_cluster.hpp"
#include "keyspace/slot.hpp"
#include "script/registry.hpp"

namespace echomq::test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ClusterAsk : public ::testing::Test {
 protected:
  static constexpr std::size_t kFrom = 0;
  static constexpr std::size_t kTo = 1;

  void SetUp() override {
    auto started = testing::PrivateCluster::start({});
    ASSERT_TRUE(started) << started.error().message();
    cluster_.emplace(*std::move(started));
    for (int i = 0; cluster_->owner_of(keyspace::slot(tag_)) != kFrom; ++i)
      tag_ = "n" + std::to_string(i);
    client_.emplace(open({.node_lease = NodeLease::never}));
  }
  [[nodiscard]] Client open(ClientOptions options) {
    auto opened = Client::open(cluster_->url(), std::move(options));
    if (!opened)
      throw std::runtime_error(opened.error().message());
    return *std::move(opened);
  }
  [[nodiscard]] static std::string text(const Result<Value>& value) {
    if (!value)
      return "error: " + value.error().message();
    if (const auto number = value->as_integer())
      return std::to_string(*number);
    return value->is_null() ? "(null)" : std::string(value->as_text().value_or("(not text)"));
  }
  template <typename... Parts>
  [[nodiscard]] std::string call(const Parts&... parts) {
    return text(client_->command(parts...).get());
  }
  [[nodiscard]] std::string key(std::string_view name) const { return "{" + tag_ + "}" + std::string(name); }

  std::string ask(std::size_t node, const std::vector<std::string>& words) {
    const auto answer = cluster_->ask(node, words);
    EXPECT_TRUE(answer) << words[0] << ' ' << words[1] << ": " << answer.error().message();
    return answer ? *answer : std::string();
  }
  /// From here on keys may go; the slot stays.
  void begin() {
    const std::string slot = std::to_string(keyspace::slot(tag_));
    ask(kTo, {"CLUSTER", "SETSLOT", slot, "IMPORTING", ask(kFrom, {"CLUSTER", "MYID"})});
    ask(kFrom, {"CLUSTER", "SETSLOT", slot, "MIGRATING", ask(kTo, {"CLUSTER", "MYID"})});
  }
  void send(std::string_view name) {
    EXPECT_EQ(ask(kFrom, {"MIGRATE", "127.0.0.1", std::to_string(cluster_->node(kTo).port()), key(name), "0", "5000"}),
              "OK");
  }
  void finish() {
    const auto moved = cluster_->move_slot(keyspace::slot(tag_), kTo);
    ASSERT_TRUE(moved) << moved.error().message();
  }

  std::string tag_ = "n";
  std::optional<testing::PrivateCluster> cluster_;
  std::optional<Client> client_;
};

TEST_F(ClusterAsk, EachCallGoesWhereItsKeyIs) {
  ASSERT_EQ(call("SET", key("here"), "1"), "OK");
  ASSERT_EQ(call("SET", key("gone"), "2"), "OK");
  begin();
  send("gone");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(call("GET", key("here")), "1");
    EXPECT_EQ(call("GET", key("gone")), "2");
  }
  EXPECT_EQ(call("SET", key("new"), "3"), "OK");
  EXPECT_EQ(call("INCR", key("new")), "4");
  EXPECT_EQ(client_->stats().redirects, 5U) << "one for each call of a key that is not there";
  EXPECT_EQ(client_->stats().map_refreshes, 0U) << "the map stays as it is";
  EXPECT_EQ(ask(kFrom, {"CLUSTER", "COUNTKEYSINSLOT", std::to_string(keyspace::slot(tag_))}), "1");
  send("here");
  finish();
  EXPECT_EQ(call("GET", key("here")), "1");
  EXPECT_EQ(call("GET", key("gone")), "2");
  EXPECT_EQ(call("GET", key("new")), "4");
  EXPECT_EQ(client_->stats().redirects, 6U) << "MOVED, once";
}

TEST_F(ClusterAsk, OfAPipelineEachCallByItself) {
  constexpr int kKeys = 100;
  for (int i = 0; i < kKeys; ++i)
    ASSERT_EQ(call("SET", key(std::to_string(i)), std::to_string(1000 * i)), "OK");
  begin();
  for (int i = 1; i < kKeys; i += 2)
    send(std::to_string(i));
  std::vector<std::string> keys;
  for (int i = 0; i < kKeys; ++i)
    keys.push_back(key(std::to_string(i)));
  std::vector<std::array<std::string_view, 2>> commands;
  for (const char* verb : {"INCR", "INCR", "GET"}) {
    for (const std::string& one : keys)
      commands.push_back({verb, one});
  }
  const std::vector<CommandParts> parts(commands.begin(), commands.end());
  const auto answers = client_->pipeline(parts).get();
  ASSERT_TRUE(answers) << answers.error().message();
  for (std::size_t i = 0; i < kKeys; ++i)
    EXPECT_EQ((*answers)[2 * kKeys + i].as_text(), std::to_string(1000 * i + 2)) << i;
  EXPECT_EQ(client_->stats().redirects, 3U * kKeys / 2);
}

// Calls of a key are carried out in their order, while it goes, and while its slot does.
TEST_F(ClusterAsk, AKeyThatGoesKeepsTheOrderOfItsCalls) {
  ASSERT_EQ(call("RPUSH", key("list"), "first"), "1");
  begin();
  constexpr int kCalls = 6000;
  std::vector<Reply<Value>> replies;
  for (int i = 0; i < kCalls; ++i) {
    if (i == kCalls / 3)
      send("list");
    if (i == 2 * kCalls / 3)
      finish();
    replies.push_back(client_->command("RPUSH", key("list"), std::to_string(i)));
    if (i % 400 == 0)
      std::this_thread::sleep_for(200us);
  }
  for (int i = 0; i < kCalls; ++i)
    ASSERT_EQ(text(replies[static_cast<std::size_t>(i)].get()), std::to_string(i + 2));
  EXPECT_EQ(call("LLEN", key("list")), std::to_string(kCalls + 1));
  EXPECT_EQ(call("LINDEX", key("list"), "-1"), std::to_string(kCalls - 1));
  EXPECT_GT(client_->stats().redirects, 100U);
  EXPECT_EQ(client_->stats().outcomes_unknown, 0U);
}

TEST_F(ClusterAsk, AScriptIsLoadedWhereItsKeysHaveGone) {
  const script::ScriptSource* const list = script::find_script("stream_list");
  const std::string streams = "emq:{" + tag_ + "}:streams";
  const auto add = [&](std::string_view name) {
    const std::array<std::string_view, 1> keys = {streams};
    const std::array<std::string_view, 1> arguments = {name};
    return text(client_->eval("stream_list", keys, arguments).get());
  };
  ASSERT_NE(list, nullptr);
  ASSERT_EQ(add("a"), "1");
  begin();
  ASSERT_EQ(ask(kFrom, {"MIGRATE", "127.0.0.1", std::to_string(cluster_->node(kTo).port()), streams, "0", "5000"}),
            "OK");
  const auto loads = client_->stats().script_loads;
  EXPECT_EQ(add("a"), "0");
  EXPECT_EQ(add("b"), "1");
  EXPECT_EQ(client_->stats().script_loads, loads + 1);
  ASSERT_EQ(ask(kTo, {"SCRIPT", "FLUSH"}), "OK");
  EXPECT_EQ(add("c"), "1");
  EXPECT_EQ(client_->stats().script_loads, loads + 2);
  EXPECT_EQ(client_->stats().redirects, 3U) << "what met an empty script cache is not sent round again";
  finish();
  EXPECT_EQ(call("ZCARD", streams), "3");
}

TEST_F(ClusterAsk, DividedKeysAreWaitedFor) {
  ASSERT_EQ(call("MSET", key("here"), "1", key("gone"), "2"), "OK");
  begin();
  send("gone");
  auto both = client_->command("MGET", key("here"), key("gone"));
  std::this_thread::sleep_for(150ms);
  EXPECT_FALSE(both.ready());
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(call("GET", key("here")), "1");
  EXPECT_EQ(call("GET", key("gone")), "2");
  EXPECT_LT(std::chrono::steady_clock::now() - before, 1s) << "others do not wait for it";
  send("here");
  const auto answer = both.get();
  ASSERT_TRUE(answer) << answer.error().message();
  EXPECT_EQ((*answer)[0].as_text(), "1");
  EXPECT_EQ((*answer)[1].as_text(), "2");
  EXPECT_EQ(client_->stats().map_refreshes, 0U) << "served at the other node, the slot is here still";
}

// Of two keys one that stands nowhere is divided from the other, says the server: no node answers while their slot is on its way,
// whichever has the other. Once the slot has settled, here or there, the call waits no longer.
class ClusterAskMissing : public ClusterAsk {
 protected:
  void wait_until(const std::function<void()>& settled) {
    ASSERT_EQ(call("MSET", key("here"), "00000000000000", key("gone"), "00000000000000"), "OK");
    begin();
    send("gone");
    std::vector<Reply<Value>> loads;
    for (const std::string name : {"nowhere", "here", "gone"}) {
      const std::string row = key(name), lease = key(name + "-lease");
      const std::array<std::string_view, 2> keys = {row, lease};
      const std::array<std::string_view, 3> arguments = {"00000000000000000000000000000001", "1000", ""};
      loads.push_back(client_->eval("cache_load", keys, arguments));
    }
    std::this_thread::sleep_for(200ms);
    for (const Reply<Value>& load : loads)
      EXPECT_FALSE(load.ready());
    ASSERT_NO_FATAL_FAILURE(settled());
    const auto before = std::chrono::steady_clock::now();
    for (Reply<Value>& load : loads) {
      const auto answer = load.get();
      EXPECT_TRUE(answer) << answer.error().message();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - before, 2s) << "the client's deadline is 10 s";
  }
};

TEST_F(ClusterAskMissing, IsWaitedForUntilItsSlotHasMoved) {
  wait_until([this] {
    send("here");
    finish();
  });
}

TEST_F(ClusterAskMissing, IsWaitedForUntilItsSlotStays) {
  wait_until([this] {
    for (const std::size_t node : {kFrom, kTo})
      ask(node, {"CLUSTER", "SETSLOT", std::to_string(keyspace::slot(tag_)), "STABLE"});
  });
}

TEST_F(ClusterAsk, DividedKeysAreWaitedForUntilTheDeadline) {
  const Client brief = open({.deadline = 300ms, .node_lease = NodeLease::never});
  ASSERT_EQ(call("MSET", key("here"), "1", key("gone"), "2"), "OK");
  begin();
  send("gone");
  const auto before = std::chrono::steady_clock::now();
  const auto refused = brief.command("MSET", key("here"), "3", key("gone"), "4").get();
  const auto took = std::chrono::steady_clock::now() - before;
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(Errc::moved)) << refused.error().message();
  EXPECT_THAT(refused.error().text, HasSubstr("TRYAGAIN"));
  EXPECT_EQ(refused.error().repeat, Repeat::safe);
  EXPECT_GT(took, 200ms);
  EXPECT_LT(took, 2s);
  EXPECT_EQ(call("GET", key("here")), "1");
  EXPECT_EQ(call("GET", key("gone")), "2");
}

TEST_F(ClusterAsk, ATransactionGoesAsAWhole) {
  ASSERT_EQ(call("MSET", key("here"), "10", key("gone"), "20", key("too"), "30"), "OK");
  begin();
  send("gone");
  send("too");
  const std::string here = key("here"), gone = key("gone"), too = key("too");
  const auto increments = [&](const std::string& one, const std::string& other) {
    const std::array<std::string_view, 2> first = {"INCR", one}, second = {"INCR", other};
    const std::array<CommandParts, 2> block = {CommandParts(first), CommandParts(second)};
    return client_->transaction(block);
  };
  const auto numbers = [](const Result<std::vector<Value>>& answers) {
    std::vector<std::int64_t> out;
    EXPECT_TRUE(answers) << answers.error().message();
    for (const Value& value : answers ? *answers : std::vector<Value>())
      out.push_back(value.as_integer().value_or(-1));
    return out;
  };
  EXPECT_THAT(numbers(increments(gone, gone).get()), ElementsAre(21, 22));
  EXPECT_THAT(numbers(increments(gone, too).get()), ElementsAre(23, 31));
  EXPECT_THAT(numbers(increments(here, here).get()), ElementsAre(11, 12));
  // Its first command is queued where the slot is: it must not go where that key would be a new one.
  auto divided = increments(here, gone);
  std::this_thread::sleep_for(150ms);
  EXPECT_FALSE(divided.ready());
  send("here");
  EXPECT_THAT(numbers(divided.get()), ElementsAre(13, 24));
  finish();
  EXPECT_THAT(numbers(increments(here, gone).get()), ElementsAre(14, 25));
}

// The map was never changed, so nothing is left of it.
TEST_F(ClusterAsk, AnImportThatIsGivenUpIsFollowedBack) {
  ASSERT_EQ(call("SET", key("a"), "1"), "OK");
  begin();
  send("a");
  EXPECT_EQ(call("GET", key("a")), "1");
  // Back again, as an operator does who changes his mind.
  const std::string slot = std::to_string(keyspace::slot(tag_));
  ask(kFrom, {"CLUSTER", "SETSLOT", slot, "STABLE"});
  ask(kTo, {"CLUSTER", "SETSLOT", slot, "STABLE"});
  EXPECT_EQ(call("GET", key("a")), "(null)") << "the node that has the slot does not have the key";
  EXPECT_EQ(call("SET", key("a"), "2"), "OK");
  EXPECT_EQ(call("GET", key("a")), "2");
  EXPECT_EQ(ask(kFrom, {"GET", key("a")}), "2");
}

// Admissions of a queue while its keys go one by one: none is lost, none stands twice.
TEST_F(ClusterAsk, AQueueIsFilledWhileItGoes) {
  const Client minting = open({});
  Queue queue = minting.queue(QueueName::parse(tag_).value());
  std::atomic<bool> stop{false};
  std::atomic<int> admitted{0};
  std::atomic<int> refused{0};
  std::vector<std::string> errors;
  for (int i = 0; i < 50; ++i)
    ASSERT_TRUE(queue.enqueue("x").get());
  admitted = 50;
  std::thread producer([&] {
    while (!stop) {
      const auto done = queue.enqueue("x").get();
      done ? ++admitted : ++refused;
      if (!done)
        errors.push_back(done.error().message());
    }
  });
  std::this_thread::sleep_for(50ms);
  begin();
  for (;;) {
    const auto keys =
        cluster_->ask(kFrom, {"EVAL", "return table.concat(redis.call('KEYS', 'emq:{" + tag_ + "}*'), ' ')", "0"});
    ASSERT_TRUE(keys) << keys.error().message();
    if (keys->empty())
      break;
    std::string_view rest = *keys;
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      ask(kFrom, {"MIGRATE", "127.0.0.1", std::to_string(cluster_->node(kTo).port()), std::string(rest.substr(0, end)),
                  "0", "5000"});
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  finish();
  std::this_thread::sleep_for(100ms);
  stop = true;
  producer.join();
  for (std::size_t i = 0; i < std::min<std::size_t>(errors.size(), 3); ++i)
    ADD_FAILURE() << errors[i];
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(queue.counts().get()->pending, admitted);
}

}  // namespace
}  // namespace echomq::test
