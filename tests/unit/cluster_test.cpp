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
#include "support/bounds.hpp"
#include "support/played_node.hpp"

namespace echomq::test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

constexpr std::size_t kA = 0, kB = 1, kC = 2;

/// What the server says to a script about node ids.
[[nodiscard]] std::string leased() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return "*3\r\n:5\r\n:60000\r\n:" +
         std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) + "\r\n";
}
[[nodiscard]] auto about_node_ids(const PlayedNode& node) {
  return std::ranges::count_if(node.asked(), [](const std::string& line) { return line.contains("{emq}:nodes"); });
}

/// Node A has all slots but that of `poke`, which C has.
class PlayedCluster : public ::testing::Test {
 protected:
  using Words = PlayedNode::Words;

  PlayedCluster() { owners_[keyspace::slot("poke")] = kC; }
  ~PlayedCluster() override {
    client_.reset();
    // All of them first: each may ask for the others.
    for (const auto& node : nodes_)
      node->stop();
  }

  void begin(std::size_t node, PlayedNode::Play play) {
    nodes_[node]->begin(
        [this, node, play = std::move(play)](const Words& words) -> std::optional<std::string> {
          if (words.size() > 3 && words[0] == "EVALSHA" && words[3] == "{emq}:nodes")
            return leased();
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
  void map_says_all_are_at(std::size_t owner) {
    const std::lock_guard guard(mutex_);
    owners_.fill(owner);
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

  /// The client's own questions for the map count too; they come at any time, and end.
  [[nodiscard]] bool nothing_stays_in_flight() {
    for (const auto until = std::chrono::steady_clock::now() + 5s; std::chrono::steady_clock::now() < until;) {
      if (client_->stats().in_flight == 0)
        return true;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }

  /// A call that waits for its next time: node A is to tell MGET to come again, and to answer what else it is asked.
  [[nodiscard]] Reply<Value> held() {
    const std::ptrdiff_t before = times_asked();
    auto divided = client_->command("MGET", "{q}1", "{q}2");
    while (times_asked() < before + 8)  // from then on it is asked for every 50 ms
      std::this_thread::sleep_for(1ms);
    return divided;
  }
  [[nodiscard]] std::ptrdiff_t times_asked() { return std::ranges::count(at(kA).asked(), "MGET {q}1 {q}2"); }
  /// What node A was asked by now is answered, and the answers had their effect: they come in order, and what comes with the
  /// first of these two is done with when the second comes.
  void await_answers() {
    for (int i = 0; i < 2; ++i)
      EXPECT_TRUE(client_->command("GET", "another slot").get());
  }

  static constexpr std::uint16_t kSlot = keyspace::slot("q");
  std::optional<Client> client_;
  // For plays: a node outlives the body of a test.
  std::atomic<int> seen_{0};
  std::atomic<bool> there_{false};

 private:
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

/// A request of several commands, whose texts it gives.
class Several final : public detail::CallOf<std::vector<std::string>> {
 public:
  using Answer = Result<std::vector<std::string>>;

  static Reply<std::vector<std::string>> start(const Client& client,
                                               const std::vector<std::vector<std::string>>& commands,
                                               wire::CallSettings settings = {}) {
    auto* call = new Several(commands);
    call->retain();
    detail::CallPointer<detail::CallOf<std::vector<std::string>>> mine(call);
    client.core()->submit(call, settings);
    return Reply<std::vector<std::string>>(std::move(mine));
  }
  void part(const resp::View& reply) noexcept override {
    texts_.emplace_back(reply.is_error() ? reply.error_text() : reply.as_text().value_or("(no text)"));
  }
  void accept(const resp::View& reply) noexcept override {
    part(reply);
    store(std::move(texts_));
    publish();
  }

 private:
  explicit Several(const std::vector<std::vector<std::string>>& commands) {
    for (const auto& words : commands) {
      bytes_ += "*" + std::to_string(words.size()) + "\r\n";
      for (const std::string& word : words)
        bytes_ += bulk(word);
    }
    request = bytes_.data();
    request_size = static_cast<std::uint32_t>(bytes_.size());
    replies = static_cast<std::uint32_t>(commands.size());
  }
  void destroy() noexcept override { delete this; }

  std::string bytes_;
  std::vector<std::string> texts_;
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

// What waits for a slot, or for a node that it was sent on to, is not in the pipeline of the node that it was first sent to.
TEST_F(PlayedCluster, AHeldCallThatIsWithdrawnWasNotCarriedOut) {
  begin(kA, [](const Words& words) { return words[0] == "MGET" ? kTryAgain : bulk(words.back()); });
  begin(kB, well);
  begin(kC, well);
  open({.deadline = 60s, .node_lease = NodeLease::never});
  bool waited = false;
  for (int i = 0; i < 100 && !waited; ++i) {
    auto divided = held();
    const std::uint64_t unknown = client_->stats().outcomes_unknown;
    const std::ptrdiff_t asked = times_asked();
    await_answers();
    divided.cancel();
    const auto refused = divided.get();
    await_answers();
    ASSERT_FALSE(refused);
    waited = times_asked() == asked;  // else it may have been on its way again, and have been carried out
    if (waited) {
      EXPECT_TRUE(refused.error().is(Errc::cancelled)) << refused.error().message();
      EXPECT_EQ(refused.error().repeat, Repeat::safe);
      EXPECT_EQ(client_->stats().outcomes_unknown, unknown);
    }
  }
  ASSERT_TRUE(waited);
  EXPECT_TRUE(nothing_stays_in_flight());
  const std::uint64_t unknown = client_->stats().outcomes_unknown;

  at(kA).hold();
  auto first = client_->command("GET", "{q}0");
  ASSERT_TRUE(at(kA).was_asked("GET {q}0", 5s));
  give(kB);
  std::vector<Reply<Value>> second;
  for (int i = 0; i < 8; ++i)
    second.push_back(client_->command("GET", "{q}second"));
  auto third = client_->command("GET", "{q}third");
  for (auto& one : second) {
    one.cancel();
    const auto withdrawn = one.get();
    ASSERT_FALSE(withdrawn);
    EXPECT_TRUE(withdrawn.error().is(Errc::cancelled)) << withdrawn.error().message();
  }
  EXPECT_LE(client_->stats().in_flight, 3U) << "the first, the third, and perhaps the question for the map";
  at(kA).release();
  EXPECT_EQ(text(first, 5s), "{q}0");
  EXPECT_EQ(text(third, 5s), "{q}third");
  EXPECT_THAT(at(kB).asked(), ElementsAre("GET {q}third"));
  EXPECT_EQ(client_->stats().outcomes_unknown, unknown);
  EXPECT_TRUE(nothing_stays_in_flight());
}

TEST_F(PlayedCluster, WhatWaitsAtAnotherNodeIsWithdrawnThere) {
  begin(kA, [this](const Words& words) { return words[1] == "{q}1" ? ask(kB) : bulk(words[1]); });
  begin(kC, well);
  at(kB).begin(well, [] { return std::string(); });
  at(kB).die();
  open({.deadline = 60s, .node_lease = NodeLease::never});
  auto one = client_->command("GET", "{q}1");
  await_answers();
  one.cancel();
  const auto withdrawn = one.get();
  ASSERT_FALSE(withdrawn);
  EXPECT_TRUE(withdrawn.error().is(Errc::cancelled)) << withdrawn.error().message();
  EXPECT_TRUE(nothing_stays_in_flight());
}

TEST_F(PlayedCluster, AHeldCallWhoseClientClosesWasNotCarriedOut) {
  begin(kA, [](const Words& words) { return words[0] == "MGET" ? kTryAgain : bulk(words.back()); });
  begin(kC, well);
  bool waited = false;
  for (int i = 0; i < 100 && !waited; ++i) {
    open({.deadline = 60s, .node_lease = NodeLease::never});
    auto divided = held();
    const std::ptrdiff_t asked = times_asked();
    await_answers();
    auto behind = client_->command("GET", "{q}1");
    client_.reset();
    const auto refused = divided.get(), refused_too = behind.get();
    open({.deadline = 60s, .node_lease = NodeLease::never});
    await_answers();                  // so that the node has read what the other client wrote
    waited = times_asked() == asked;  // else they may have been on their way again
    if (waited) {
      ASSERT_FALSE(refused);
      EXPECT_TRUE(refused.error().is(Errc::client_closed)) << refused.error().message();
      ASSERT_FALSE(refused_too);
      EXPECT_TRUE(refused_too.error().is(Errc::client_closed)) << refused_too.error().message();
    }
  }
  EXPECT_TRUE(waited);
}

TEST_F(PlayedCluster, AHeldCallEndsAtItsDeadlineUnwritten) {
  for (const std::size_t node : {kA, kB, kC})
    begin(node, well);
  open();
  at(kA).hold();
  auto first = client_->command("GET", "{q}0");
  ASSERT_TRUE(at(kA).was_asked("GET {q}0", 5s));
  give(kB);
  const std::string_view parts[] = {"GET", "{q}1"};
  const auto begun = std::chrono::steady_clock::now();
  const auto late = client_->core()
                        ->command<void>(parts, {.deadline = 100ms}, [](const wire::Answer&) { return Result<void>(); })
                        .get();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 700ms) << "the slot is held for a second";
  ASSERT_FALSE(late);
  EXPECT_TRUE(late.error().is(Errc::timeout)) << late.error().message();
  EXPECT_EQ(late.error().repeat, Repeat::safe);
  at(kA).release();
  EXPECT_EQ(text(first, 5s), "{q}0");
  auto last = client_->command("GET", "{q}2");
  EXPECT_EQ(text(last, 5s), "{q}2");
  EXPECT_THAT(at(kB).asked(), ElementsAre("GET {q}2"));
}

TEST_F(PlayedCluster, WithdrawingMakesRoom) {
  begin(kA, well);
  begin(kC, well);
  open({.deadline = 60s, .max_in_flight = 4, .overflow = Overflow::refuse, .node_lease = NodeLease::never});
  at(kA).die();
  while (client_->stats().connections > 0)
    std::this_thread::sleep_for(1ms);
  std::vector<Reply<Value>> replies;
  for (int i = 0; i < 4; ++i)
    replies.push_back(client_->command("GET", "{q}" + std::to_string(i)));
  auto ready = client_->ready();
  EXPECT_FALSE(ready.ready());
  for (auto& reply : replies)
    reply.cancel();
  EXPECT_TRUE(ready.get_for(5s));
}

// A call that was first written long ago, at a node that was lost, is not overdue at the next one.
TEST_F(PlayedCluster, ACallThatComesLateToANodeDoesNotBreakItsConnection) {
  begin(kA, [this](const Words&) -> std::optional<std::string> {
    if (++seen_ == 1)
      return std::nullopt;
    while (!there_)
      std::this_thread::sleep_for(1ms);
    return ask(kC);
  });
  begin(kC, [](const Words& words) { return words[0] == "ASKING" ? "+OK\r\n" : bulk(words.back()); });
  open({.deadline = 60s, .heartbeat = 1500ms, .node_lease = NodeLease::never});
  EXPECT_TRUE(client_->command("GET", "poke").get());
  const std::string_view parts[] = {"GET", "{q}1"};
  auto answer = client_->core()->command<std::string>(parts, {.repeat = Repeat::safe}, [](const wire::Answer& reply) {
    return Result<std::string>(reply.view.as_text().value_or("(no text)"));
  });
  ASSERT_TRUE(at(kA).was_asked("GET {q}1", 5s));
  at(kA).drop();
  while (seen_ < 2)
    std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(900ms);
  at(kC).hold();
  there_ = true;
  ASSERT_TRUE(at(kC).was_asked("GET {q}1", 5s));
  std::this_thread::sleep_for(1000ms);
  at(kC).release();
  const auto text = answer.get();
  ASSERT_TRUE(text) << text.error().message();
  EXPECT_EQ(*text, "{q}1");
  EXPECT_EQ(client_->stats().reconnects, 1U) << "only the first node's connection was lost";
  EXPECT_EQ(client_->stats().calls_resent, 1U);
}

TEST_F(PlayedCluster, TheRestOfARequestGoesOnWhereItsKeysAre) {
  begin(kA, [this](const Words& words) { return words[1] == "{q}here" ? bulk("one") : ask(kB); });
  begin(kB, [this](const Words& words) {
    if (words[0] == "ASKING")
      return std::string("+OK\r\n");
    return words[1] == "{q}last" && ++seen_ == 1 ? std::string(kTryAgain) : bulk(words[1]);
  });
  begin(kC, well);
  open({.deadline = 60s, .node_lease = NodeLease::never});
  auto several = Several::start(*client_, {{"GET", "{q}here"}, {"GET", "{q}gone"}, {"GET", "{q}last"}});
  auto behind = client_->command("GET", "{q}here");
  const auto answers = several.get_for(5s);
  ASSERT_TRUE(answers) << "it never ends";
  ASSERT_TRUE(*answers) << answers->error().message();
  EXPECT_THAT(**answers, ElementsAre("one", "{q}gone", "{q}last"));
  EXPECT_EQ(text(behind, 5s), "one");
  // What was carried out is asked for no more; what is told TRYAGAIN goes back to the owner.
  const std::vector<std::string> asked = at(kA).asked();
  EXPECT_EQ(std::ranges::count(asked, "GET {q}here"), 2) << "of the other call, too";
  EXPECT_EQ(std::ranges::count(asked, "GET {q}gone"), 1);
  EXPECT_EQ(std::ranges::count(asked, "GET {q}last"), 2);
  EXPECT_THAT(at(kB).asked(), ElementsAre("ASKING", "GET {q}gone", "ASKING", "GET {q}last", "ASKING", "GET {q}last"));
  auto next = client_->command("GET", "{q}next");
  EXPECT_EQ(text(next, 5s), "{q}next");
  EXPECT_TRUE(nothing_stays_in_flight());
}

// The first was carried out, and the rest may have been.
TEST_F(PlayedCluster, ARestThatIsLostOnItsWayHasAnUnknownOutcome) {
  begin(kA, [this](const Words& words) { return words[1] == "{q}here" ? bulk("one") : ask(kB); });
  begin(kB, [](const Words&) { return std::optional<std::string>(); });
  begin(kC, well);
  open({.deadline = 60s, .node_lease = NodeLease::never});
  auto several = Several::start(*client_, {{"INCR", "{q}here"}, {"INCR", "{q}gone"}}, {.repeat = Repeat::safe});
  ASSERT_TRUE(at(kB).was_asked("INCR {q}gone", 5s));
  at(kB).drop();
  const auto lost = several.get_for(5s);
  ASSERT_TRUE(lost) << "it never ends";
  ASSERT_FALSE(*lost);
  EXPECT_TRUE(lost->error().is(Errc::outcome_unknown)) << lost->error().message();
  EXPECT_EQ(lost->error().repeat, Repeat::unsafe);
  EXPECT_EQ(std::ranges::count(at(kB).asked(), "INCR {q}gone"), 1);
}

// What was written once and waits at a node that it was sent on to waits no longer than its window.
TEST_F(PlayedCluster, TheWindowOfARepeatGoesAlongToTheNextNode) {
  begin(kA, [this](const Words&) { return ++seen_ == 1 ? std::optional<std::string>() : ask(kB); });
  begin(kC, well);
  at(kB).begin(well, [] { return std::string(); });
  at(kB).die();
  open({.deadline = 60s, .resend_window = 400ms, .node_lease = NodeLease::never});
  auto several = Several::start(*client_, {{"GET", "{q}1"}}, {.repeat = Repeat::safe});
  ASSERT_TRUE(at(kA).was_asked("GET {q}1", 5s));
  at(kA).drop();
  const auto late = several.get_for(5s);
  ASSERT_TRUE(late) << "it waits until its deadline";
  ASSERT_FALSE(*late);
  EXPECT_TRUE(late->error().is(Errc::outcome_unknown)) << late->error().message();
  EXPECT_EQ(seen_, 2);
}

TEST_F(PlayedCluster, TheNodeIdIsRenewedWhateverIsInFlightAndHoweverBusyTheExecutorIs) {
  begin(kA, well);
  begin(kC, well);
  std::mutex mutex;
  std::vector<Continuation> kept;
  open({.deadline = 60s,
        .max_in_flight = 4,
        .overflow = Overflow::refuse,
        .executor =
            [&](Continuation one) {
              const std::lock_guard guard(mutex);
              kept.push_back(one);
            },
        .node_lease_time = 1s});
  bool minted = true;
  for (int round = 0; round < 20; ++round) {
    at(kA).hold();  // nearly always as much is in flight as may be
    std::vector<Reply<Value>> replies;
    for (int i = 0; i < 4; ++i)
      replies.push_back(client_->command("GET", "{q}" + std::to_string(i)));
    std::this_thread::sleep_for(100ms);
    at(kA).release();
    for (auto& reply : replies)
      (void)reply.get();
    minted = minted && client_->mint("JOB");
  }
  EXPECT_TRUE(minted);
  client_->close();
  for (const Continuation& one : kept)
    one();
}

TEST_F(PlayedCluster, ANodeIdThatWasReleasedIsNotRevivedByARenewal) {
  at(kA).begin(
      [this](const Words& words) -> std::optional<std::string> {
        if (words[0] != "EVALSHA")
          return bulk("well");
        return ++seen_ <= 2 ? std::optional(leased()) : std::nullopt;  // the third is the release
      },
      [this] {
        return "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n" + bulk("127.0.0.1") + ":" + std::to_string(at(kA).port()) + "\r\n" +
               bulk("id");
      });
  begin(kC, well);
  open({.deadline = 60s, .node_lease_time = 1500ms});
  EXPECT_TRUE(client_->mint("JOB"));
  at(kA).hold();
  while (about_node_ids(at(kA)) < 2)
    std::this_thread::sleep_for(1ms);
  std::thread closer([this] { client_->close(); });
  while (about_node_ids(at(kA)) < 3)
    std::this_thread::sleep_for(1ms);
  at(kA).release();
  bool minted = false;
  for (const auto until = std::chrono::steady_clock::now() + 400ms; std::chrono::steady_clock::now() < until;)
    minted = minted || client_->mint("JOB");
  closer.join();
  EXPECT_FALSE(minted);
}

// What the network still takes is a sign of life, though the answer to a large request is a while in coming.
TEST_F(PlayedCluster, ARequestThatIsLongOnItsWayDoesNotBreakItsConnection) {
  at(kA).read_slowly();
  begin(kA, well);
  begin(kC, well);
  open({.deadline = 60s, .heartbeat = bound(1500ms), .node_lease = NodeLease::never});
  const std::string large(std::size_t{24} << 20, 'x');
  const std::string_view parts[] = {"SET", "{q}1", large, "KEEPTTL"};
  const auto begun = std::chrono::steady_clock::now();
  const auto answer = client_->command(parts).get();
  ASSERT_TRUE(answer) << answer.error().message();
  EXPECT_GT(std::chrono::steady_clock::now() - begun, 1500ms) << "it was not long on its way";
  EXPECT_EQ(client_->stats().reconnects, 0U);
}

// Redirects are counted between two waits: one that has waited often may still be sent on at once.
TEST_F(PlayedCluster, ACallThatHasWaitedOftenIsSentOnAtOnce) {
  begin(kA, [this](const Words&) { return ask(kB); });
  begin(kB, [this](const Words& words) {
    return words[0] == "ASKING" ? std::string("+OK\r\n") : ++seen_ <= 6 ? std::string(kTryAgain) : ask(kC);
  });
  begin(kC, [](const Words& words) { return words[0] == "ASKING" ? std::string("+OK\r\n") : bulk("both"); });
  open({.deadline = 5s, .node_lease = NodeLease::never});
  auto both = client_->command("MGET", "{q}1", "{q}2");
  EXPECT_EQ(text(both, 10s), "both");
  EXPECT_EQ(at(kA).asked().size(), 7U) << "it was sent back to the owner";
  EXPECT_EQ(seen_, 7);
}

// Of the nodes that serve none had been asked anything yet, and there was no connection to look at.
TEST_F(PlayedCluster, ThereIsRoomWhenAllNodesAreNew) {
  begin(kA, well);
  begin(kC, well);
  open();
  map_says_all_are_at(kC);
  at(kA).die();
  const auto until = std::chrono::steady_clock::now() + 5s;
  while (at(kC).maps_read() == 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(1ms);
  for (int look = 0; look < 200; ++look) {
    ASSERT_TRUE(client_->ready().get_for(5s));
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(client_->command("GET", "{q}1").get());
}

// A caller left the connection to nobody when it had its answer. Who waits for a pipeline reads no connection: the library
// came to it with the next tick.
TEST_F(PlayedCluster, APipelineBehindACallIsAnsweredAtOnce) {
  begin(kA, well);
  begin(kC, well);
  open();
  const std::string_view get[] = {"GET", "{q}2"};
  const CommandParts commands[] = {get};
  int late = 0;
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(client_->command("GET", "{q}1").get());
    const auto begun = std::chrono::steady_clock::now();
    ASSERT_TRUE(client_->pipeline(commands).get());
    late += std::chrono::steady_clock::now() - begun > bound(15ms) ? 1 : 0;
  }
  EXPECT_LE(late, 8);
}

// Nobody heard of it: the reply waited for its deadline.
TEST_F(PlayedCluster, APipelineCanBeCancelled) {
  begin(kA, [](const Words&) { return std::optional<std::string>(); });
  begin(kC, well);
  open();
  const std::string_view get[] = {"GET", "{q}1"};
  const CommandParts commands[] = {get, get};
  auto reply = client_->pipeline(commands);
  reply.cancel();
  const auto answer = reply.get_for(5s);
  ASSERT_TRUE(answer);
  ASSERT_FALSE(*answer);
  EXPECT_TRUE(answer->error().is(Errc::outcome_unknown)) << answer->error().message();
  EXPECT_EQ(answer->error().repeat, Repeat::unsafe);
}

}  // namespace
}  // namespace echomq::test
