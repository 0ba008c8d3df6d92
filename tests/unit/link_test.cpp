// One connection at moments that a real server gives seldom: the server is played.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "client/core.hpp"
#include "client/line.hpp"
#include "echomq/client.hpp"
#include "script/registry.hpp"
#include "support/bounds.hpp"
#include "support/played_node.hpp"
#include "wire/link.hpp"
#include "wire/request.hpp"

namespace echomq::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Words = PlayedNode::Words;

[[nodiscard]] std::optional<std::string> echoed(const Words& words) { return bulk(words.back()); }
[[nodiscard]] std::string no_map() { return "*0\r\n"; }

class PlayedServer : public ::testing::Test {
 protected:
  ~PlayedServer() override {
    client_.reset();
    node_.stop();
  }
  void open(ClientOptions options = {}) {
    options.node_lease = NodeLease::never;
    auto opened = Client::open("valkey://" + node_.address(), std::move(options));
    ASSERT_TRUE(opened) << opened.error().message();
    client_.emplace(*std::move(opened));
  }
  /// One command that is sent past the bound, as the library's own are.
  [[nodiscard]] Reply<void> past_bound() {
    const std::string_view parts[] = {"GET", "own"};
    return client_->core()->command<void>(parts, {.past_bound = true},
                                          [](const wire::Answer&) { return Result<void>(); });
  }

  PlayedNode node_;
  std::optional<Client> client_;
  std::atomic<int> seen_{0};
};

// It was taken for one of the lost connection, which it was never written on: its outcome was called unknown.
TEST_F(PlayedServer, ACallThatIsMadeInTheMomentOfALossIsSentOnTheNextConnection) {
  node_.begin(echoed, no_map);
  std::optional<Reply<Value>> asked;
  std::atomic<bool> lost{false};
  open({.log = [&](LogLevel, std::string_view event, std::span<const LogField>) {
    if (event != "disconnected" || lost)
      return;
    asked.emplace(client_->command("INCR", "n"));
    lost = true;
  }});
  ASSERT_TRUE(client_->command("GET", "before").get());
  node_.drop();
  for (int look = 0; look < 5000 && !lost; ++look)
    std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(lost);
  const auto answer = asked->get_for(5s);
  ASSERT_TRUE(answer);
  EXPECT_TRUE(*answer) << answer->error().message();
  EXPECT_EQ(client_->stats().outcomes_unknown, 0U);
  client_->close();  // the log writes to this test
}

// A caller leaves the connection to nobody when it has its answer; what nobody waits for then was read at the next tick.
TEST_F(PlayedServer, TheAnswerToACallOfTheLibrarysOwnIsReadAtOnce) {
  node_.begin(echoed, no_map);
  open();
  int late = 0;
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(client_->command("GET", "driven").get());
    const auto begun = Clock::now();
    const auto own = past_bound();
    while (!own.ready())
      std::this_thread::sleep_for(100us);
    late += Clock::now() - begun > bound(15ms) ? 1 : 0;
  }
  EXPECT_LE(late, 8);
}

// The same, of one call that fills the connection by its bytes.
TEST_F(PlayedServer, WhoWaitsForRoomIsToldAtOnce) {
  node_.begin(echoed, no_map);
  open({.max_in_flight_bytes = 1000});
  const std::string large(2000, 'x');
  for (const bool asks : {true, false}) {
    int late = 0;
    for (int round = 0; round < 20; ++round) {
      ASSERT_TRUE(client_->command("GET", "driven").get());
      client_->command("GET", large).detach();
      const auto begun = Clock::now();
      if (asks) {
        ASSERT_TRUE(client_->ready().get());
      } else {
        ASSERT_TRUE(client_->command("GET", "behind").get());
      }
      late += Clock::now() - begun > bound(15ms) ? 1 : 0;
    }
    EXPECT_LE(late, 8) << (asks ? "ready" : "command");
  }
}

// The refusal of one load was taken for that of all later ones, as long as the connection lasted.
TEST_F(PlayedServer, AScriptIsLoadedAgainAfterALoadThatTheServerWasTooBusyFor) {
  const script::ScriptSource* const script = script::find_script("node_renew");
  ASSERT_NE(script, nullptr);
  std::atomic<int> loads{0};
  node_.begin(
      [&](const Words& words) -> std::optional<std::string> {
        if (words[0] == "SCRIPT")
          return ++loads == 1 ? "-BUSY Valkey is busy running a script.\r\n" : bulk(script->sha1);
        return loads < 2 ? "-NOSCRIPT No matching script.\r\n" : ":1\r\n";
      },
      no_map);
  open();
  const std::string_view keys[] = {"k"};
  const auto refused = client_->eval("node_renew", keys, {}).get();
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().text.starts_with("BUSY")) << refused.error().message();
  const auto answer = client_->eval("node_renew", keys, {}).get();
  EXPECT_TRUE(answer) << answer.error().message();
  EXPECT_EQ(loads, 2);
  node_.stop();  // it plays with what this test has
}

// Nobody heard of it: the reply waited for its deadline.
TEST_F(PlayedServer, ATransactionOfTheLibrarysScriptsCanBeCancelled) {
  node_.begin([](const Words&) { return std::optional<std::string>(); }, no_map);
  open();
  const script::ScriptSource* const script = script::find_script("node_renew");
  ASSERT_NE(script, nullptr);
  const std::string_view evalsha[] = {"EVALSHA", script->sha1, "1", "k"};
  const CommandParts commands[] = {evalsha};
  auto reply = client_->transaction(commands);
  reply.cancel();
  const auto answer = reply.get_for(5s);
  ASSERT_TRUE(answer);
  ASSERT_FALSE(*answer);
  EXPECT_TRUE(answer->error().is(Errc::outcome_unknown)) << answer->error().message();
  EXPECT_EQ(answer->error().repeat, Repeat::unsafe);
}

// Its deadline was forgotten when the connection's were reckoned just between its refusal and its repair.
TEST_F(PlayedServer, ACallThatIsRepairedEndsAtItsDeadline) {
  const script::ScriptSource* const script = script::find_script("node_renew");
  ASSERT_NE(script, nullptr);
  node_.begin(
      [this](const Words& words) -> std::optional<std::string> {
        if (words[0] == "GET")
          return bulk("slow");
        if (words[0] == "EVALSHA" && seen_++ == 0)
          return "-NOSCRIPT No matching script.\r\n";
        return std::nullopt;
      },
      no_map);
  open({.heartbeat = 0ms});
  node_.hold();
  // The caller reads both answers at once, and is long about the first one.
  std::atomic<bool> begun{false};
  std::thread caller([&] {
    const std::string_view parts[] = {"GET", "slow"};
    auto slow = client_->core()->command<void>(parts, {.deadline = 100ms}, [](const wire::Answer&) -> Result<void> {
      std::this_thread::sleep_for(400ms);
      return {};
    });
    begun = true;
    (void)slow.get();
  });
  while (!begun)
    std::this_thread::yield();
  std::this_thread::sleep_for(2ms);
  const std::string_view keys[] = {"k"};
  auto repaired = client_->core()->eval<void>(*script, keys, {}, {.repeat = Repeat::safe, .deadline = 1s},
                                              [](const wire::Answer&) { return Result<void>(); });
  EXPECT_TRUE(node_.was_asked("EVALSHA " + std::string(script->sha1) + " 1 k", 5s));
  node_.release();
  caller.join();
  const auto answer = repaired.get_for(5s);
  ASSERT_TRUE(answer) << "it never ends";
  EXPECT_FALSE(*answer);
}

// What is made for the library's other rooms closes nothing, also when it was moved.
TEST_F(PlayedServer, AnAssignedDoorToACoreOfOthersClosesNothing) {
  node_.begin(echoed, no_map);
  open();
  {
    auto other = Client::open("valkey://" + node_.address(), {.node_lease = NodeLease::never});
    ASSERT_TRUE(other) << other.error().message();
    Client door = Client::from_core(client_->core());
    *other = std::move(door);
  }
  EXPECT_TRUE(client_->command("GET", "open").get());
}

/// Hears of one connection.
class Told final : public wire::LinkObserver {
 public:
  void link_live(std::int64_t) override { heard_late = heard_late || closed; }
  void link_lost(const Error&) override {}
  void link_push(const resp::View&) override {}
  bool closed = false;
  bool heard_late = false;
};

// Subscriptions were restored by the number of a connection that had been given up, and called themselves dead from then on.
TEST_F(PlayedServer, AConnectionThatWasGivenUpWhileItBootsDoesNotSayThatItLives) {
  node_.begin(echoed, no_map);
  wire::Counters counters;
  // It is closed in each step of its beginning, in a handler before the one that has the server's answer.
  for (int step = 0; step < 12; ++step) {
    boost::asio::io_context io;
    Told told;
    wire::LinkSettings settings;
    settings.endpoint.host = "127.0.0.1";
    settings.endpoint.port = node_.port();
    settings.boot.accepted_versions = {"echomq:3.0.0"};
    const auto link = std::make_shared<wire::Link>(
        io, settings, counters, [](LogLevel, std::string_view, std::string_view) {}, nullptr, &told);
    link->start();
    for (int turn = 0; turn <= step; ++turn) {
      std::this_thread::sleep_for(5ms);  // the answer is there
      boost::asio::post(io, [&, last = turn == step] {
        if (!last)
          return;
        told.closed = true;
        link->close(Error(Errc::disconnected, "elsewhere", Repeat::safe));
      });
      io.poll();
    }
    io.run();
    EXPECT_FALSE(told.heard_late) << "closed in step " << step;
    EXPECT_TRUE(link->closed());
  }
  EXPECT_EQ(counters.connections, 0U);
}

/// A call whose connection is a test's.
class Asked final : public detail::CallOf<void> {
 public:
  void accept(const resp::View&) noexcept override {}

 private:
  void destroy() noexcept override { delete this; }
};

/// Has the answer in the moment in which a caller leaves the reading to others.
class AnswersWhenLeft final : public detail::Source {
 public:
  bool drive(bool (*)(void*), void*, detail::Clock::time_point) override { return false; }
  void leave_to_library() noexcept override {
    inside = true;
    if (call->win())
      call->fail(Error(Errc::cancelled, "at once", Repeat::safe));
    inside = false;
  }
  void cancel(detail::Call&) override {}
  detail::Call* call = nullptr;
  bool inside = false;
};

class ContinuesAtOnce final : public detail::Target {
 public:
  explicit ContinuesAtOnce(const AnswersWhenLeft& source) : source_(source) {}
  void post(Continuation) override { too_early = too_early || source_.inside; }
  bool too_early = false;

 private:
  const AnswersWhenLeft& source_;
};

// A coroutine may own its client: once it can go on, whoever suspended it must not touch the connection any more.
TEST(CallTest, WhoRegistersAContinuationHasLeftTheConnectionBeforeItCanRun) {
  const detail::CallPointer<Asked> call(new Asked);
  AnswersWhenLeft source;
  ContinuesAtOnce target(source);
  source.call = call.get();
  call->source = &source;
  EXPECT_FALSE(call->on_done(&target, Continuation([](void*) noexcept {}, nullptr))) << "the answer was there first";
  EXPECT_FALSE(target.too_early);
  EXPECT_TRUE(call->done());
}

// The connection was chosen under the lock and used without: given up in between, it ended the call.
TEST_F(PlayedServer, ALineThatMovesWhileOthersAskEndsNoCall) {
  PlayedNode other;
  node_.begin(echoed, no_map);
  other.begin(echoed, no_map);
  boost::asio::io_context io;
  auto work = boost::asio::make_work_guard(io);
  std::thread loop([&] { io.run(); });
  wire::Counters counters;
  std::atomic<unsigned> place{0};
  client::FollowingLine::Ways ways;
  ways.where = [&] {
    wire::Endpoint endpoint;
    endpoint.host = "127.0.0.1";
    endpoint.port = place.load() % 2 == 0 ? node_.port() : other.port();
    return endpoint;
  };
  ways.connect = [&](const wire::Endpoint& node, const std::shared_ptr<client::FollowingLine>& line) {
    wire::LinkSettings settings;
    settings.endpoint = node;
    settings.boot.accepted_versions = {"echomq:3.0.0"};
    settings.parks = true;
    return std::make_shared<wire::Link>(
        io, settings, counters, [line](LogLevel, std::string_view, std::string_view) {}, nullptr, line.get());
  };
  const auto line = std::make_shared<client::FollowingLine>(std::move(ways));
  std::atomic<int> ended{0}, answered{0};
  // Where all is slow few connections live long enough to answer: it goes on until some have.
  const auto begun = Clock::now();
  const auto goes_on = [&] {
    const auto gone = Clock::now() - begun;
    return gone < 2s || (answered < 20 && gone < 30s);
  };
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&] {
      while (goes_on()) {
        const std::array<std::string_view, 2> parts = {"GET", "x"};
        auto decode = [](const wire::Answer&) -> Result<void> { return {}; };
        detail::CallOf<void>* call = wire::BoundCall<void, decltype(decode)>::make(parts, decode);
        call->retain();
        const detail::CallPointer<detail::CallOf<void>> mine(call);
        call->deadline = Clock::now() + 10s;
        line->submit(call);
        if (!call->wait(Clock::now() + 10s))
          break;
        ++(call->take() ? answered : ended);
      }
    });
  }
  while (goes_on()) {
    ++place;
    line->map_changed();
    std::this_thread::sleep_for(200us);
  }
  for (auto& caller : callers)
    caller.join();
  line->close(Error(Errc::client_closed, "the test is over", Repeat::safe));
  work.reset();
  loop.join();
  other.stop();
  EXPECT_EQ(ended, 0);
  EXPECT_GE(answered, 20);
}

}  // namespace
}  // namespace echomq::test
