// `Client` against a real server: replies in every form, pipelines, NOSCRIPT, transactions, subscriptions, loss.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/queue.hpp"
#include "echomq/task.hpp"
#include "echomq/testing/private_server.hpp"
#include "script/registry.hpp"
#include "support/bounds.hpp"
#include "support/played_node.hpp"
#include "support/proxy.hpp"

namespace echomq {
namespace {

using namespace std::chrono_literals;
using testing::PrivateServer;

class ClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = PrivateServer::start({});
    ASSERT_TRUE(started) << started.error().message();
    server_.emplace(*std::move(started));
  }
  Client open(ClientOptions options = {}) {
    auto client = Client::open(server_->url(), std::move(options));
    if (!client)
      throw std::runtime_error(client.error().message());
    return *std::move(client);
  }
  static std::string text(Result<Value> value) {
    if (!value)
      return "error: " + value.error().message();
    return value->is_null() ? "(null)" : std::string(value->as_text().value_or("(not text)"));
  }
  static bool eventually(const std::function<bool()>& what, std::chrono::milliseconds limit = 10s) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (!what()) {
      if (std::chrono::steady_clock::now() > until)
        return false;
      std::this_thread::sleep_for(2ms);
    }
    return true;
  }

  std::optional<PrivateServer> server_;
};

TEST_F(ClientTest, AnswersInEveryForm) {
  Client client = open();
  EXPECT_EQ(text(client.command("SET", "k", "1").get()), "OK");
  Reply<Value> later = client.command("GET", "k");
  const auto in_time = later.get_for(5s);
  ASSERT_TRUE(in_time);
  EXPECT_EQ(text(*in_time), "1");

  std::atomic<bool> called{false};
  client.command("GET", "k").then([&](Result<Value> value) { called = text(std::move(value)) == "1"; });
  EXPECT_TRUE(eventually([&] { return called.load(); }));

  const auto awaiting = [](const Client& on) -> Task<std::string> {
    const Result<Value> set = co_await on.command("SET", "k", "2");
    if (!set)
      co_return "no";
    co_return text(co_await on.command("GET", "k"));
  };
  EXPECT_EQ(awaiting(client).get(), "2");
}

TEST_F(ClientTest, ALoopOfCallsIsOnePipelineInOrder) {
  Client client = open();
  std::vector<Reply<Value>> replies;
  for (int i = 1; i <= 10000; ++i)
    replies.push_back(client.command("INCR", "n"));
  for (int i = 1; i <= 10000; ++i) {
    const auto value = replies[static_cast<std::size_t>(i - 1)].get();
    ASSERT_TRUE(value) << value.error().message();
    ASSERT_EQ(value->as_integer(), i);
  }
  EXPECT_LT(client.stats().writes, 5000U);
}

TEST_F(ClientTest, ManyThreadsShareOneConnection) {
  Client client = open();
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        const std::string value = std::to_string(t * 1000 + i);
        if (text(client.command("ECHO", value).get()) == value)
          ++good;
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(good, 4000);
  EXPECT_EQ(client.stats().connections, 1U);
}

TEST_F(ClientTest, ServerErrorsAreErrorsAndKeepTheirPlaces) {
  Client client = open();
  const auto wrong = client.command("NOSUCHCOMMAND").get();
  ASSERT_FALSE(wrong);
  EXPECT_TRUE(wrong.error().is(Errc::server_error));

  const std::array<std::string_view, 3> set = {"SET", "s", "x"};
  const std::array<std::string_view, 2> incr = {"INCR", "s"};
  const std::array<std::string_view, 2> get = {"GET", "s"};
  const std::array<CommandParts, 3> commands = {set, incr, get};
  const auto answers = client.pipeline(commands).get();
  ASSERT_TRUE(answers) << answers.error().message();
  ASSERT_EQ(answers->size(), 3U);
  EXPECT_EQ((*answers)[0].as_text(), "OK");
  EXPECT_TRUE((*answers)[1].is_error());
  EXPECT_EQ((*answers)[2].as_text(), "x");
  EXPECT_TRUE(client.pipeline({}).get().error().is(Errc::empty_pipeline));
}

TEST_F(ClientTest, TransactionsGiveWhatExecGives) {
  Client client = open();
  const std::array<std::string_view, 3> set = {"SET", "k", "1"};
  const std::array<std::string_view, 2> incr = {"INCR", "k"};
  const std::array<CommandParts, 2> commands = {set, incr};
  const auto answers = client.transaction(commands).get();
  ASSERT_TRUE(answers) << answers.error().message();
  EXPECT_EQ((*answers)[1].as_integer(), 2);

  const std::array<std::string_view, 1> broken = {"SET"};
  const std::array<CommandParts, 2> aborted = {set, broken};
  const auto refused = client.transaction(aborted).get();
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().text.find("EXECABORT"), std::string::npos);
  EXPECT_NE(refused.error().text.find("wrong number"), std::string::npos);
}

// CASES 25: an empty script cache is repaired in single calls, pipelines and transactions; one load a flush.
TEST_F(ClientTest, NoscriptIsRepairedInPlace) {
  Client client = open();
  const std::array<std::string_view, 1> keys = {"emq:{q}:meta"};
  const auto calls = [&](int count) {
    std::vector<Reply<Value>> replies;
    for (int i = 0; i < count; ++i) {
      replies.push_back(client.eval("queue_pause", keys, {}));
      replies.push_back(client.command("ECHO", std::to_string(i)));
    }
    for (int i = 0; i < count; ++i) {
      const auto paused = replies[static_cast<std::size_t>(2 * i)].get();
      ASSERT_TRUE(paused) << paused.error().message();
      ASSERT_EQ(paused->as_integer(), 1);
      ASSERT_EQ(text(replies[static_cast<std::size_t>(2 * i + 1)].get()), std::to_string(i));
    }
  };
  const std::uint64_t before = client.stats().script_loads;
  calls(300);
  EXPECT_EQ(client.stats().script_loads, before + 1);
  ASSERT_TRUE(client.command("SCRIPT", "FLUSH").get());
  calls(300);
  EXPECT_EQ(client.stats().script_loads, before + 2);

  ASSERT_TRUE(client.command("SCRIPT", "FLUSH").get());
  const std::string_view sha = script::find_script("queue_pause")->sha1;
  const std::array<std::string_view, 3> set = {"SET", "k", "v"};
  const std::array<std::string_view, 4> eval = {"EVALSHA", sha, "1", "emq:{q}:meta"};
  const std::array<std::string_view, 2> get = {"GET", "k"};
  const std::array<CommandParts, 3> commands = {set, eval, get};
  const auto answers = client.transaction(commands).get();
  ASSERT_TRUE(answers) << answers.error().message();
  ASSERT_EQ(answers->size(), 3U);
  EXPECT_EQ((*answers)[0].as_text(), "OK");
  EXPECT_EQ((*answers)[1].as_integer(), 1);
  EXPECT_EQ((*answers)[2].as_text(), "v");

  ASSERT_TRUE(client.command("SCRIPT", "FLUSH").get());
  const auto piped = client.pipeline(commands).get();
  ASSERT_TRUE(piped) << piped.error().message();
  EXPECT_EQ((*piped)[1].as_integer(), 1);
}

TEST_F(ClientTest, SubscriptionsAreConfirmedRestoredAndGapsReported) {
  Client client = open();
  ClientOptions quick;
  quick.backoff_initial = 20ms;
  quick.backoff_max = 50ms;
  Client listener = open(quick);
  std::mutex mutex;
  std::vector<std::string> messages;
  std::atomic<int> gaps{0};
  SubscriptionHandlers handlers;
  handlers.on_message = [&](std::string_view, std::string_view payload) {
    const std::lock_guard lock(mutex);
    messages.emplace_back(payload);
  };
  handlers.on_gap = [&] { ++gaps; };
  auto subscribed = listener.subscribe("emq:{q}:chan", handlers).get();
  ASSERT_TRUE(subscribed) << subscribed.error().message();
  EXPECT_TRUE(subscribed->live());
  EXPECT_EQ(client.command("PUBLISH", "emq:{q}:chan", "before").get()->as_integer(), 1);
  const auto has = [&](const char* what) {
    return eventually([&] {
      const std::lock_guard lock(mutex);
      return std::find(messages.begin(), messages.end(), what) != messages.end();
    });
  };
  EXPECT_TRUE(has("before"));

  const std::string id = std::to_string(subscribed->connection_id());
  ASSERT_TRUE(client.command("CLIENT", "KILL", "ID", id).get());
  EXPECT_TRUE(eventually([&] { return gaps == 1 && subscribed->live(); }));
  EXPECT_EQ(client.command("PUBLISH", "emq:{q}:chan", "after").get()->as_integer(), 1);
  EXPECT_TRUE(has("after"));

  subscribed->cancel();
  EXPECT_TRUE(eventually([&] { return client.command("PUBLISH", "emq:{q}:chan", "gone").get()->as_integer() == 0; }));
}

/// A server that refuses what it is told to.
class RefusedSubscriptions : public ::testing::Test {
 protected:
  void SetUp() override {
    node_.begin(
        [this](const test::PlayedNode::Words& words) -> std::optional<std::string> {
          if (words[0] != "SUBSCRIBE")
            return "+OK\r\n";
          if (refused_ > 0 && (!spared_ || words[1] != "two")) {
            --refused_;
            return "-LOADING the dataset is in memory soon\r\n";
          }
          ++confirmed_;
          return ">3\r\n" + test::bulk("subscribe") + test::bulk(words[1]) + ":1\r\n>3\r\n" + test::bulk("message") +
                 test::bulk(words[1]) + test::bulk("of " + std::to_string(confirmed_));
        },
        {});
    ClientOptions options;
    options.backoff_initial = 5ms;
    options.backoff_max = 20ms;
    options.node_lease = NodeLease::never;
    options.log = [this](LogLevel level, std::string_view event, std::span<const LogField> fields) {
      if (level != LogLevel::warning || event != "subscription_refused")
        return;
      const std::lock_guard lock(mutex_);
      logged_.emplace_back(fields[0].value);
    };
    auto opened = Client::open("valkey://" + node_.address(), std::move(options));
    ASSERT_TRUE(opened) << opened.error().message();
    client_.emplace(*std::move(opened));
  }
  void TearDown() override { client_.reset(); }

  struct Heard {
    std::atomic<int> messages{0};
    std::atomic<int> gaps{0};
  };
  [[nodiscard]] Result<Subscription> subscribe(std::string_view channel, Heard& heard) {
    return client_
        ->subscribe(channel, {.on_message = [&heard](std::string_view, std::string_view) { ++heard.messages; },
                              .on_gap = [&heard] { ++heard.gaps; }})
        .get();
  }
  [[nodiscard]] std::size_t asked(std::string_view channel) const {
    const std::vector<std::string> all = node_.asked();
    return static_cast<std::size_t>(std::ranges::count(all, "SUBSCRIBE " + std::string(channel)));
  }
  [[nodiscard]] std::size_t logged(std::string_view channel) {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::ranges::count(logged_, channel));
  }
  static bool eventually(const std::function<bool()>& what) {
    const auto until = std::chrono::steady_clock::now() + 10s;
    while (!what()) {
      if (std::chrono::steady_clock::now() > until)
        return false;
      std::this_thread::sleep_for(1ms);
    }
    return true;
  }

  std::atomic<int> refused_{0};
  std::atomic<bool> spared_{false};  // the channel two is not refused
  std::atomic<int> confirmed_{0};
  test::PlayedNode node_;
  std::mutex mutex_;
  std::vector<std::string> logged_;  // guarded by mutex_
  std::optional<Client> client_;
};

// A new connection that was refused a channel once left its subscribers deaf for as long as it lasted.
TEST_F(RefusedSubscriptions, AreAskedForAgainAndTheGapIsToldOnce) {
  Heard one, two;
  auto first = subscribe("one", one);
  auto second = subscribe("two", two);
  ASSERT_TRUE(first && second);
  ASSERT_TRUE(eventually([&] { return one.messages == 1 && two.messages == 1; }));
  refused_ = 1'000'000;
  node_.drop();
  ASSERT_TRUE(eventually([&] { return logged("one") >= 2 && logged("two") >= 2; }));
  EXPECT_FALSE(first->live());
  EXPECT_FALSE(second->live());
  EXPECT_EQ(one.gaps + two.gaps, 0);
  refused_ = 0;
  ASSERT_TRUE(eventually([&] { return first->live() && second->live(); }));
  EXPECT_TRUE(eventually([&] { return one.messages == 2 && two.messages == 2; })) << "it is heard again";
  EXPECT_TRUE(eventually([&] { return one.gaps == 1 && two.gaps == 1; }));
  const std::size_t asked_all = asked("one") + asked("two");
  EXPECT_EQ(asked_all, 4 + logged("one") + logged("two")) << "two, the refused ones, two more";
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(asked("one") + asked("two"), asked_all) << "what is confirmed is not asked for again";
  EXPECT_EQ(first->gaps() + second->gaps(), 2U);
}

TEST_F(RefusedSubscriptions, WhatIsConfirmedIsNotAskedForWithThem) {
  Heard one, two;
  auto first = subscribe("one", one);
  auto second = subscribe("two", two);
  ASSERT_TRUE(first && second);
  spared_ = true;
  refused_ = 1'000'000;
  node_.drop();
  ASSERT_TRUE(eventually([&] { return logged("one") >= 3; }));
  EXPECT_TRUE(second->live());
  EXPECT_EQ(asked("two"), 2U) << "by its subscriber, and of the new connection";
  EXPECT_EQ(logged("two"), 0U);
  refused_ = 0;
  EXPECT_TRUE(eventually([&] { return first->live() && one.gaps == 1 && two.gaps == 1; }));
  EXPECT_EQ(asked("two"), 2U);
}

TEST_F(RefusedSubscriptions, AreNotAskedForAgainOnceNobodyListens) {
  Heard one, two;
  auto first = subscribe("one", one);
  auto second = subscribe("two", two);
  ASSERT_TRUE(first && second);
  refused_ = 1'000'000;
  node_.drop();
  ASSERT_TRUE(eventually([&] { return logged("one") >= 1 && logged("two") >= 1; }));
  first->cancel();
  const std::size_t before = asked("one");
  ASSERT_TRUE(eventually([&] { return logged("two") >= 3; }));
  EXPECT_LE(asked("one"), before + 1) << "one may have been on its way";
  refused_ = 0;
  EXPECT_TRUE(eventually([&] { return second->live(); }));
  EXPECT_EQ(one.gaps, 0);
}

// Who subscribes while the channel of others is refused is given what it asked for, has missed nothing and is told of no gap.
TEST_F(RefusedSubscriptions, OneWhoComesMeanwhileHasNoGap) {
  Heard old, late;
  auto before = subscribe("one", old);
  ASSERT_TRUE(before);
  refused_ = 1'000'000;
  node_.drop();
  ASSERT_TRUE(eventually([&] { return logged("one") >= 3; })) << "the next pause is 400 ms";
  refused_ = 0;
  auto meanwhile = subscribe("one", late);
  ASSERT_TRUE(meanwhile);
  EXPECT_TRUE(meanwhile->live());
  EXPECT_TRUE(eventually([&] { return before->live() && old.gaps == 1; }));
  EXPECT_EQ(late.gaps, 0);
  EXPECT_EQ(meanwhile->gaps(), 0U);
}

// Closing ends the asking, and waits for little.
TEST_F(RefusedSubscriptions, ClosingDoesNotWaitForThePause) {
  Heard one;
  auto first = subscribe("one", one);
  ASSERT_TRUE(first);
  refused_ = 1'000'000;
  node_.drop();
  ASSERT_TRUE(eventually([&] { return logged("one") >= 5; })) << "the next pause is 1.6 s";
  const auto begin = std::chrono::steady_clock::now();
  client_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
}

TEST_F(ClientTest, ReconnectsAndSendsWhatWasNotWritten) {
  ClientOptions quick;
  quick.backoff_initial = 10ms;
  quick.node_lease = NodeLease::never;
  Client client = open(quick);
  ASSERT_TRUE(client.command("SET", "k", "v").get());
  server_->kill();
  EXPECT_TRUE(eventually([&] { return client.stats().connections == 0; }));
  Reply<Value> waiting = client.command("PING");
  EXPECT_FALSE(waiting.get_for(50ms));
  ASSERT_TRUE(server_->restart());
  EXPECT_EQ(text(waiting.get()), "PONG");
  EXPECT_GE(client.stats().reconnects, 1U);
}

TEST_F(ClientTest, ADeadlineEndsACallAndItsLateReplyIsDrained) {
  ClientOptions options;
  options.deadline = 1s;
  options.heartbeat = 30s;
  options.node_lease = NodeLease::never;
  Client client = open(options);
  server_->pause();
  const auto begin = std::chrono::steady_clock::now();
  const auto late = client.command("PING").get();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, test::bound(3s));
  ASSERT_FALSE(late);
  EXPECT_TRUE(late.error().is(Errc::outcome_unknown)) << late.error().message();
  server_->resume();
  EXPECT_EQ(text(client.command("ECHO", "mine").get()), "mine");
}

TEST_F(ClientTest, ADeadServerIsUnreachableAtTheDeadline) {
  ClientOptions options;
  options.deadline = 1s;
  options.node_lease = NodeLease::never;
  Client client = open(options);
  server_->kill();
  EXPECT_TRUE(eventually([&] { return client.stats().connections == 0; }));
  const auto answer = client.command("PING").get();
  ASSERT_FALSE(answer);
  EXPECT_TRUE(answer.error().is(Errc::unreachable)) << answer.error().message();
  const auto opened = Client::open(server_->url());
  ASSERT_FALSE(opened);
  EXPECT_TRUE(opened.error().is(Errc::unreachable)) << opened.error().message();
}

// Written, carried out, its answer lost, and no connection until the call's time is over: by its deadline, by the window
// for sending again, by a cancel or by `close`, it never ends as a call that the server has not seen.
TEST_F(ClientTest, ACallThatWaitsToBeSentAgainHasAnUnknownOutcome) {
  for (const std::string_view end : {"deadline", "window", "cancel", "close"}) {
    SCOPED_TRACE(end);
    test::Proxy proxy(server_->url());
    ClientOptions options;
    options.deadline = end == "deadline" ? 3s : 20s;
    options.resend_window = end == "window" ? 1500ms : 20s;
    options.backoff_initial = 5ms;
    options.backoff_max = 20ms;
    options.node_lease = NodeLease::never;
    auto through = Client::open(proxy.url(), options);
    ASSERT_TRUE(through) << through.error().message();
    Client direct = open();
    const Queue queue = through->queue(*QueueName::parse(end));
    const Queue past = direct.queue(*QueueName::parse(end));
    // The first one loads the scripts.
    Result<std::optional<ClaimedJob>> job;
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(past.enqueue("x").get());
      job = queue.claim().get();
      ASSERT_TRUE(job && *job);
      if (i == 0) {
        ASSERT_TRUE(queue.complete((*job)->id, (*job)->token).get());
      }
    }

    proxy.hold(test::Direction::to_client);
    Reply<void> done = queue.complete((*job)->id, (*job)->token);
    ASSERT_TRUE(eventually([&] { return past.counts().get()->completed == 2; }));
    proxy.refuse_new(true);
    EXPECT_EQ(proxy.cut(), 1U);
    EXPECT_TRUE(eventually([&] { return through->stats().calls_resent == 1; }));
    // One that comes while there is no connection was not written.
    Reply<Value> fresh = through->command("PING");
    const auto begin = std::chrono::steady_clock::now();
    if (end == "cancel")
      done.cancel();
    if (end == "close")
      through->close();
    const auto answer = done.get();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
    ASSERT_FALSE(answer);
    EXPECT_TRUE(answer.error().is(Errc::outcome_unknown)) << answer.error().message();
    EXPECT_EQ(answer.error().repeat, Repeat::safe);
    EXPECT_EQ(through->stats().outcomes_unknown, 1U);
    if (end == "window")
      proxy.heal();
    const auto other = fresh.get_for(10s);
    if (end == "window") {
      EXPECT_TRUE(other && *other);
    } else if (end == "deadline") {
      EXPECT_TRUE(other && other->error().is(Errc::unreachable));
    } else if (end == "close") {
      EXPECT_TRUE(other && other->error().is(Errc::client_closed));
    }
  }
}

TEST_F(ClientTest, TheHeartbeatNoticesAServerThatIsSilent) {
  ClientOptions options;
  options.heartbeat = 200ms;
  options.node_lease = NodeLease::never;
  Client client = open(options);
  server_->pause();
  EXPECT_TRUE(eventually([&] { return client.stats().connections == 0; }));
  server_->resume();
  EXPECT_EQ(text(client.command("PING").get()), "PONG");
}

TEST_F(ClientTest, AtTheBoundItRefusesOrBlocks) {
  ClientOptions refuse;
  refuse.max_in_flight = 8;
  refuse.overflow = Overflow::refuse;
  refuse.heartbeat = 30s;
  refuse.node_lease = NodeLease::never;
  Client refusing = open(refuse);
  ClientOptions block = refuse;
  block.overflow = Overflow::block;
  Client blocking = open(block);
  server_->pause();
  std::vector<Reply<Value>> replies;
  for (int i = 0; i < 9; ++i)
    replies.push_back(refusing.command("PING"));
  EXPECT_TRUE(replies[8].ready());
  EXPECT_TRUE(replies[8].get().error().is(Errc::overloaded));
  Reply<void> room = refusing.ready();
  EXPECT_FALSE(room.ready());

  std::atomic<int> sent{0};
  std::thread producer([&] {
    std::vector<Reply<Value>> mine;
    for (int i = 0; i < 20; ++i) {
      mine.push_back(blocking.command("PING"));
      ++sent;
    }
    for (auto& reply : mine)
      EXPECT_EQ(text(reply.get()), "PONG");
  });
  std::this_thread::sleep_for(100ms);
  EXPECT_LE(sent, 9);
  server_->resume();
  producer.join();
  EXPECT_TRUE(room.get());
}

TEST_F(ClientTest, BlockingOnALibraryThreadIsRefused) {
  Client client = open();
  std::atomic<int> code{0};
  client.command("PING").then([&](Result<Value>) {
    auto inner = client.command("BLPOP", "nothing", "0.3").get();
    code = inner ? 1 : inner.error().code.value();
  });
  EXPECT_TRUE(eventually([&] { return code != 0; }));
  EXPECT_EQ(code, static_cast<int>(Errc::would_deadlock));
}

TEST_F(ClientTest, CallsAfterCloseAndInFlightAtCloseEnd) {
  auto client = std::make_unique<Client>(open());
  server_->pause();
  Reply<Value> in_flight = client->command("PING");
  client->close();
  const auto ended = in_flight.get();
  ASSERT_FALSE(ended);
  EXPECT_TRUE(ended.error().is(Errc::outcome_unknown) || ended.error().is(Errc::client_closed));
  EXPECT_TRUE(client->command("PING").get().error().is(Errc::client_closed));
  EXPECT_TRUE(client->mint_job().error().is(Errc::client_closed));
  client.reset();
  server_->resume();
}

TEST_F(ClientTest, TheDestructorIsLegalInACallback) {
  auto client = std::make_shared<std::optional<Client>>(open());
  std::atomic<bool> done{false};
  (*client)->command("PING").then([client, &done](Result<Value>) {
    client->reset();
    done = true;
  });
  EXPECT_TRUE(eventually([&] { return done.load(); }));
}

TEST_F(ClientTest, AForkedChildIsToldSo) {
  Client client = open();
  ASSERT_TRUE(client.command("PING").get());
  const pid_t child = ::fork();
  if (child == 0) {
    const auto answer = client.command("PING").get();
    const bool told = !answer && answer.error().is(Errc::forked) && client.mint_job().error().is(Errc::forked);
    ::_exit(told ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(client.command("PING").get());
}

TEST_F(ClientTest, CancelWithdrawsWhatIsNotWritten) {
  ClientOptions options;
  options.backoff_initial = 2s;
  options.node_lease = NodeLease::never;
  Client client = open(options);
  server_->kill();
  EXPECT_TRUE(eventually([&] { return client.stats().connections == 0; }));
  // A try to connect that fails may answer a call before it is cancelled: that one says so, and the next one waits.
  std::string others;
  bool withdrawn = false;
  for (int i = 0; i < 10 && !withdrawn; ++i) {
    Reply<Value> waiting = client.command("PING");
    waiting.cancel();
    const auto answer = waiting.get();
    ASSERT_FALSE(answer);
    withdrawn = answer.error().is(Errc::cancelled);
    others += withdrawn ? "" : answer.error().message() + "; ";
  }
  EXPECT_TRUE(withdrawn) << others;
}

TEST_F(ClientTest, TheFenceRefusesAnotherWireVersion) {
  Client client = open();
  ASSERT_TRUE(client.command("SET", "{emq}:version", "echomq:2.4.2").get());
  const auto refused = Client::open(server_->url());
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(Errc::version_mismatch)) << refused.error().message();
  EXPECT_NE(refused.error().text.find("echomq:2.4.2"), std::string::npos);
  ClientOptions lenient;
  lenient.accepted_versions = {"echomq:3.0.0", "echomq:2.4.2"};
  EXPECT_TRUE(Client::open(server_->url(), lenient));
}

TEST_F(ClientTest, NodeIdsAreLeasedOnePerClient) {
  Client first = open();
  Client second = open();
  ASSERT_TRUE(first.node_id());
  ASSERT_TRUE(second.node_id());
  EXPECT_NE(first.node_id(), second.node_id());
  ClientOptions same;
  same.node_id = first.node_id();
  const auto held = Client::open(server_->url(), same);
  ASSERT_FALSE(held);
  EXPECT_TRUE(held.error().is(Errc::node_held)) << held.error().message();
  const auto id = first.mint_job();
  ASSERT_TRUE(id);
  EXPECT_EQ(id->node(), *first.node_id());

  ClientOptions none;
  none.node_lease = NodeLease::never;
  Client silent = open(none);
  EXPECT_TRUE(silent.mint_job().error().is(Errc::node_lease_lost));
}

// A flushed database takes the record of the node id with it: the client leases one again and goes on minting.
TEST_F(ClientTest, ALostNodeIdIsLeasedAgain) {
  ClientOptions options;
  options.node_lease_time = 600ms;
  Client client = open(options);
  ASSERT_TRUE(client.mint_job());
  ASSERT_TRUE(client.command("FLUSHDB").get());
  std::this_thread::sleep_for(900ms);
  EXPECT_TRUE(eventually([&] { return client.mint_job().has_value(); }));
  EXPECT_EQ(client.command("HLEN", "{emq}:nodes").get()->as_integer(), 1);
}

TEST_F(ClientTest, MintingStopsBeforeTheLeaseCanLapse) {
  ClientOptions options;
  options.node_lease_time = 500ms;
  options.heartbeat = 30s;
  Client client = open(options);
  server_->pause();
  std::this_thread::sleep_for(600ms);
  EXPECT_TRUE(client.mint_job().error().is(Errc::node_lease_lost));
  server_->resume();
  EXPECT_TRUE(eventually([&] { return client.mint_job().has_value(); }));
}

TEST_F(ClientTest, ManyReadyAwaitsNeedNoStack) {
  Client client = open();
  client.close();
  const auto awaiting = [](const Client& on) -> Task<int> {
    int failed = 0;
    for (int i = 0; i < 1000000; ++i) {
      if (!co_await on.command("PING"))
        ++failed;
    }
    co_return failed;
  };
  EXPECT_EQ(awaiting(client).get(), 1000000);
}

}  // namespace
}  // namespace echomq
