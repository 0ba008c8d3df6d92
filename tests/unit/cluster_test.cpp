// What a client of a cluster does at moments that a real one has seldom: its nodes are played.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "client/core.hpp"
#include "echomq/client.hpp"
#include "echomq/stream.hpp"
#include "keyspace/slot.hpp"
#include "support/played_node.hpp"

namespace echomq::test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

constexpr std::size_t kA = 0, kB = 1, kC = 2;

/// Node A has all slots but that of `poke`, which C has.
class PlayedCluster : public ::testing::Test {
 protected:
  using Words = PlayedNode::Words;

  PlayedCluster() { owners_[keyspace::slot("poke")] = kC; }
  ~PlayedCluster() override {
    client_.reset();
    for (auto& node : nodes_)
      node.reset();
  }

  void begin(std::size_t node, PlayedNode::Play play) {
    nodes_[node]->begin(
        [this, node, play = std::move(play)](const Words& words) -> std::optional<std::string> {
          if (words.size() > 3 && words[0] == "EVALSHA" && words[3] == "{emq}:nodes")
            return "*3\r\n:5\r\n:60000\r\n:" + std::to_string(now_ms()) + "\r\n";
          if (words.back() == "poke")
            return poked(node);
          return play(words);
        },
        [this] { return map(); });
  }
  void open(ClientOptions options = {.node_lease = NodeLease::never}) {
    auto opened = Client::open("valkey+cluster://" + at(kA).address() + "," + at(kC).address(), std::move(options));
    ASSERT_TRUE(opened) << opened.error().message();
    client_.emplace(*std::move(opened));
  }
  [[nodiscard]] PlayedNode& at(std::size_t node) { return *nodes_[node]; }

  /// The slot has another owner, and the client learns of it by a MOVED of C and by the map, whatever A is doing.
  void give(std::size_t to) {
    {
      const std::lock_guard guard(mutex_);
      owners_[kSlot] = to;
      told_ = "-MOVED " + std::to_string(kSlot) + " " + at(to).address() + "\r\n";
    }
    EXPECT_TRUE(client_->command("GET", "poke").get());
  }
  /// What the map says from now on.
  void map_says(std::size_t owner) {
    const std::lock_guard guard(mutex_);
    owners_[kSlot] = owner;
  }
  [[nodiscard]] std::string ask(std::size_t to) {
    return "-ASK " + std::to_string(kSlot) + " " + at(to).address() + "\r\n";
  }
  static constexpr const char* kTryAgain = "-TRYAGAIN Multiple keys request during rehashing of slot\r\n";

  [[nodiscard]] static std::optional<std::string> text(Reply<Value>& reply, std::chrono::milliseconds limit) {
    const auto answer = reply.get_for(limit);
    if (!answer)
      return std::nullopt;
    return *answer ? std::string((*answer)->as_text().value_or("(no text)")) : "error: " + answer->error().message();
  }

  static constexpr std::uint16_t kSlot = keyspace::slot("q");
  std::optional<Client> client_;
  // For plays: a node outlives the body of a test.
  std::atomic<int> seen_{0};
  std::atomic<bool> there_{false};

 private:
  [[nodiscard]] static std::int64_t now_ms() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
  [[nodiscard]] std::string poked(std::size_t) {
    const std::lock_guard guard(mutex_);
    return told_.empty() ? bulk("poked") : std::exchange(told_, {});
  }
  [[nodiscard]] std::string map() {
    const std::lock_guard guard(mutex_);
    std::string ranges;
    std::size_t count = 0;
    for (std::size_t first = 0; first < owners_.size();) {
      std::size_t last = first;
      while (last + 1 < owners_.size() && owners_[last + 1] == owners_[first])
        ++last;
      ranges += "*3\r\n:" + std::to_string(first) + "\r\n:" + std::to_string(last) + "\r\n*3\r\n" + bulk("127.0.0.1") +
                ":" + std::to_string(at(owners_[first]).port()) + "\r\n" + bulk("id");
      ++count;
      first = last + 1;
    }
    return "*" + std::to_string(count) + "\r\n" + ranges;
  }

  std::mutex mutex_;
  std::array<std::size_t, keyspace::kSlots> owners_{};
  std::string told_;
  std::array<std::unique_ptr<PlayedNode>, 3> nodes_{std::make_unique<PlayedNode>(), std::make_unique<PlayedNode>(),
                                                    std::make_unique<PlayedNode>()};
};

[[nodiscard]] std::optional<std::string> well(const PlayedNode::Words& words) { return bulk(words.back()); }

// Its first reply at the third node was taken for that of an ASKING which was never sent there: the call never ended.
TEST_F(PlayedCluster, ACallThatWasAskedForAtALostNodeIsAnsweredByTheNextOwner) {
  begin(kA, [this](const Words&) { return ask(kB); });
  begin(kB, [](const Words&) { return std::optional<std::string>(); });
  begin(kC, well);
  open();
  const std::string_view parts[] = {"GET", "{q}1"};
  auto first = client_->core()->command<std::string>(parts, {.repeat = Repeat::safe}, [](const wire::Answer& answer) {
    return Result<std::string>(answer.view.as_text().value_or("(no text)"));
  });
  ASSERT_TRUE(at(kB).was_asked("GET {q}1", 5s));
  give(kB);
  std::this_thread::sleep_for(50ms);  // the map is read, too
  map_says(kC);
  at(kB).die();
  ASSERT_TRUE(at(kC).was_asked("GET {q}1", 5s));
  const auto answer = first.get_for(2s);
  ASSERT_TRUE(answer) << "it never ends";
  ASSERT_TRUE(*answer) << answer->error().message();
  EXPECT_EQ(**answer, "{q}1");
  auto next = client_->command("GET", "{q}2");
  EXPECT_EQ(text(next, 2s), "{q}2");
  EXPECT_THAT(at(kC).asked(), ::testing::Not(::testing::Contains("ASKING")));
}

// Records that the answer of earlier ones sends, other library calls, and a publisher's.
TEST_F(PlayedCluster, WhatGoesPastTheBoundDoesNotOvertakeWhatIsHeld) {
  for (const std::size_t node : {kA, kB, kC})
    begin(node, well);
  open();
  at(kA).hold();
  std::vector<Reply<Value>> replies;
  replies.push_back(client_->command("GET", "{q}0"));
  ASSERT_TRUE(at(kA).was_asked("GET {q}0", 5s));
  give(kB);
  replies.push_back(client_->command("GET", "{q}1"));
  const std::string_view parts[] = {"GET", "{q}2"};
  auto past =
      client_->core()->command<void>(parts, {.past_bound = true}, [](const wire::Answer&) { return Result<void>(); });
  replies.push_back(client_->command("GET", "{q}3"));
  std::this_thread::sleep_for(100ms);
  EXPECT_THAT(at(kB).asked(), ElementsAre()) << "the node that had the slot has not answered";
  at(kA).release();
  EXPECT_TRUE(past.get());
  for (std::size_t i = 0; i < replies.size(); ++i)
    EXPECT_EQ(text(replies[i], 5s), i == 0 ? "{q}0" : i == 1 ? "{q}1" : "{q}3");
  EXPECT_THAT(at(kB).asked(), ElementsAre("GET {q}1", "GET {q}2", "GET {q}3"));
}

TEST_F(PlayedCluster, APipelineOfWhichPartWasCarriedOutIsNotSafeToRepeat) {
  begin(kA, [this](const Words& words) { return words[1] == "{q}here" ? std::string("+OK\r\n") : ask(kB); });
  begin(kC, well);
  at(kB).begin(well, [] { return std::string(); });
  at(kB).die();
  open({.deadline = 500ms, .node_lease = NodeLease::never});
  const std::array<std::string_view, 2> here = {"INCR", "{q}here"}, gone = {"INCR", "{q}gone"};
  const std::array<CommandParts, 2> both = {CommandParts(here), CommandParts(gone)};
  const auto answers = client_->pipeline(both).get();
  ASSERT_FALSE(answers);
  EXPECT_EQ(answers.error().repeat, Repeat::unsafe) << answers.error().message();
  // One of which nothing was is.
  const std::array<CommandParts, 2> neither = {CommandParts(gone), CommandParts(gone)};
  const auto refused = client_->pipeline(neither).get();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().repeat, Repeat::safe) << refused.error().message();
}

// What of a request was carried out before the rest was sent on is not called unwritten when the rest comes to nothing.
TEST_F(PlayedCluster, RecordsOfWhichSomeStandAreNotSafeToAppendAgain) {
  begin(kA, [this](const Words& words) { return words[0] == "XADD" && ++seen_ <= 2 ? bulk(words[2]) : ask(kB); });
  begin(kC, well);
  at(kB).begin(well, [] { return std::string(); });
  at(kB).die();
  open({.deadline = 500ms});
  Stream stream = client_->stream(QueueName::parse("q").value(), StreamName::parse("s").value());
  const Field field{"k", "v"};
  const std::vector<NewRecord> three(3, NewRecord{.fields = {&field, 1}});
  const auto results = stream.append_many(three).get();
  ASSERT_TRUE(results) << results.error().message();
  ASSERT_EQ(results->size(), 3U);
  for (const auto& result : *results) {
    ASSERT_FALSE(result);
    EXPECT_TRUE(result.error().is(Errc::outcome_unknown)) << result.error().message();
    EXPECT_EQ(result.error().repeat, Repeat::unsafe);
  }
}

TEST_F(PlayedCluster, WhatIsHeldCountsAgainstTheBound) {
  for (const std::size_t node : {kA, kB, kC})
    begin(node, well);
  open({.max_in_flight = 4, .overflow = Overflow::refuse, .node_lease = NodeLease::never});
  at(kA).hold();
  std::vector<Reply<Value>> replies;
  replies.push_back(client_->command("GET", "{q}0"));
  ASSERT_TRUE(at(kA).was_asked("GET {q}0", 5s));
  give(kB);
  for (int i = 1; i < 20; ++i)
    replies.push_back(client_->command("GET", "{q}" + std::to_string(i)));
  EXPECT_EQ(client_->stats().overloads, 16U);
  auto ready = client_->ready();
  EXPECT_FALSE(ready.ready());
  at(kA).release();
  int answered = 0;
  for (auto& reply : replies) {
    const auto answer = reply.get();
    answered += answer ? 1 : 0;
    if (!answer) {
      EXPECT_TRUE(answer.error().is(Errc::overloaded)) << answer.error().message();
    }
  }
  EXPECT_EQ(answered, 4);
  EXPECT_TRUE(ready.get_for(5s));
}

TEST_F(PlayedCluster, CallersWaitForRoomWhileCallsAreHeld) {
  for (const std::size_t node : {kA, kB, kC})
    begin(node, well);
  open({.max_in_flight = 4, .node_lease = NodeLease::never});
  at(kA).hold();
  std::vector<Reply<Value>> replies;
  replies.push_back(client_->command("GET", "{q}0"));
  ASSERT_TRUE(at(kA).was_asked("GET {q}0", 5s));
  give(kB);
  std::atomic<int> started{1};
  std::thread caller([&] {
    for (int i = 1; i < 20; ++i) {
      replies.push_back(client_->command("GET", "{q}" + std::to_string(i)));
      ++started;
    }
  });
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(started, 4);
  at(kA).release();
  caller.join();
  for (std::size_t i = 0; i < replies.size(); ++i)
    EXPECT_EQ(text(replies[i], 5s), "{q}" + std::to_string(i));
  const std::vector<std::string> asked = at(kB).asked();
  ASSERT_EQ(asked.size(), 19U);
  for (std::size_t i = 0; i < asked.size(); ++i)
    EXPECT_EQ(asked[i], "GET {q}" + std::to_string(i + 1));
}

TEST_F(PlayedCluster, NodesThatAskAtEachOtherAreAskedAtAPace) {
  begin(kA, [this](const Words&) { return ask(kB); });
  begin(kB, [this](const Words& words) { return words[0] == "ASKING" ? std::string("+OK\r\n") : ask(kC); });
  begin(kC, [this](const Words& words) { return words[0] == "ASKING" ? std::string("+OK\r\n") : ask(kB); });
  open({.deadline = 1s, .node_lease = NodeLease::never});
  const auto before = std::chrono::steady_clock::now();
  const auto refused = client_->command("GET", "{q}1").get();
  ASSERT_FALSE(refused);
  EXPECT_LT(std::chrono::steady_clock::now() - before, 2s) << "its deadline is over";
  const std::vector<std::string> asked = at(kB).asked();
  EXPECT_LT(std::ranges::count(asked, "GET {q}1"), 60);
  EXPECT_GT(std::ranges::count(asked, "GET {q}1"), 5) << "they may come to terms";
}

// Told ASK by the one and TRYAGAIN by the other, a call waits until its deadline, however often that is.
TEST_F(PlayedCluster, DividedKeysAtBothNodesAreWaitedFor) {
  begin(kA, [this](const Words&) { return ask(kB); });
  begin(kB, [this](const Words& words) {
    return words[0] == "ASKING" ? std::string("+OK\r\n") : there_ ? bulk("both") : std::string(kTryAgain);
  });
  begin(kC, well);
  open({.deadline = 60s, .node_lease = NodeLease::never});
  auto both = client_->command("MGET", "{q}1", "{q}2");
  std::this_thread::sleep_for(500ms);
  EXPECT_FALSE(both.ready());
  there_ = true;
  EXPECT_EQ(text(both, 5s), "both");
}

}  // namespace
}  // namespace echomq::test
