// A client of a cluster: routing, slots that change hands, scripts a node, workers, subscriptions, loss of a node.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/nodes.hpp"
#include "client/wake_hubs.hpp"
#include "echomq/client.hpp"
#include "echomq/queue.hpp"
#include "echomq/testing/private_cluster.hpp"
#include "echomq/worker.hpp"
#include "keyspace/slot.hpp"
#include "resp/encode.hpp"
#include "support/worker_harness.hpp"
#include "wire/request_keys.hpp"

namespace echomq {
namespace {

using namespace std::chrono_literals;
using keyspace::slot;
using test::eventually;
using testing::PrivateCluster;

class ClusterTest : public ::testing::Test {
 protected:
  void SetUp() override { start_cluster({}); }
  void start_cluster(testing::PrivateClusterOptions options) {
    cluster_.reset();
    auto started = PrivateCluster::start(std::move(options));
    ASSERT_TRUE(started) << started.error().message();
    cluster_.emplace(*std::move(started));
  }
  [[nodiscard]] Client open(ClientOptions options = {}) { return open(cluster_->url(), std::move(options)); }
  [[nodiscard]] static Client open(const std::string& url, ClientOptions options) {
    auto client = Client::open(url, std::move(options));
    if (!client)
      throw std::runtime_error(client.error().message());
    return *std::move(client);
  }
  [[nodiscard]] static std::string text(const Result<Value>& value) {
    if (!value)
      return "error: " + value.error().message();
    if (const auto number = value->as_integer())
      return std::to_string(*number);
    return value->is_null() ? "(null)" : std::string(value->as_text().value_or("(not text)"));
  }
  [[nodiscard]] std::string asked(std::size_t node, const std::vector<std::string>& words) const {
    auto answer = cluster_->ask(node, words);
    return answer ? *answer : "error: " + answer.error().message();
  }
  /// A name whose slot the node serves; different ones for different `nth`.
  [[nodiscard]] std::string name_on(std::size_t node, int nth = 0) const {
    for (int i = 0;; ++i) {
      std::string name = "n" + std::to_string(i);
      if (cluster_->owner_of(slot(name)) == node && nth-- == 0)
        return name;
    }
  }
  [[nodiscard]] static std::string to_key(const std::string& tag, int i) { return "{" + tag + "}" + std::to_string(i); }

  std::optional<PrivateCluster> cluster_;
};

TEST_F(ClusterTest, SendsEachCallToTheNodeOfItsKeys) {
  const Client client = open();
  for (int i = 0; i < 300; ++i)
    ASSERT_EQ(text(client.command("SET", "k" + std::to_string(i), std::to_string(i)).get()), "OK");
  for (int i = 0; i < 300; ++i)
    ASSERT_EQ(text(client.command("GET", "k" + std::to_string(i)).get()), std::to_string(i));
  std::size_t keys = 0;
  for (std::size_t node = 0; node < cluster_->size(); ++node) {
    const std::size_t here = std::stoul(asked(node, {"DBSIZE"}));
    EXPECT_GT(here, 50U) << node;
    keys += here;
  }
  EXPECT_EQ(keys, 300U + 2);  // the version and the node lease
  EXPECT_EQ(client.stats().redirects, 0U);
  EXPECT_EQ(client.stats().map_refreshes, 0U);
  EXPECT_EQ(client.stats().connections, 3U);
  EXPECT_EQ(client.endpoint(), cluster_->url());
  EXPECT_EQ(text(client.command("PING").get()), "PONG");
  // The deployment's own keys are where their slot is, and nowhere else.
  const std::size_t home = cluster_->owner_of(slot("{emq}:version"));
  EXPECT_EQ(asked(home, {"GET", "{emq}:version"}), "echomq:3.0.0");
  EXPECT_TRUE(client.node_id());
}

TEST_F(ClusterTest, RefusesKeysOfTwoSlotsBeforeAnythingIsSent) {
  const Client client = open();
  const std::string a = name_on(0);
  const std::string b = name_on(1);
  const std::string twin = name_on(0, 1);  // another slot of the same node
  const auto commands = client.stats().commands;
  for (const std::string& other : {b, twin}) {
    const auto refused = client.command("DEL", a, other).get();
    ASSERT_FALSE(refused);
    EXPECT_TRUE(refused.error().is(Errc::cross_slot)) << refused.error().message();
    EXPECT_NE(refused.error().text.find("'" + a + "'"), std::string::npos);
    EXPECT_NE(refused.error().text.find("'" + other + "'"), std::string::npos);
  }
  const std::array<std::string_view, 3> set_a = {"SET", a, "1"};
  const std::array<std::string_view, 3> set_b = {"SET", b, "1"};
  const std::array<std::string_view, 3> both = {"DEL", a, b};
  const std::array<CommandParts, 2> crossing = {CommandParts(set_a), CommandParts(both)};
  EXPECT_TRUE(client.pipeline(crossing).get().error().is(Errc::cross_slot));
  const std::array<CommandParts, 2> two_slots = {CommandParts(set_a), CommandParts(set_b)};
  EXPECT_TRUE(client.transaction(two_slots).get().error().is(Errc::cross_slot));
  EXPECT_EQ(client.stats().commands, commands);
  EXPECT_EQ(text(client.command("EXISTS", a).get()), "0");
  EXPECT_EQ(text(client.command("DEL", "{" + a + "}1", "{" + a + "}2").get()), "0");
}

// The table of commands against what the server itself says.
TEST_F(ClusterTest, KnowsTheKeysOfEveryCommandOfTheServer) {
  const Client client = open();
  const auto all = client.command("COMMAND").get();
  ASSERT_TRUE(all);
  int checked = 0;
  for (const Value& row : all->items()) {
    const std::string name(row[0].as_text().value());
    const std::int64_t first = row[3].as_integer().value();
    const std::int64_t last = row[4].as_integer().value();
    const std::int64_t step = row[5].as_integer().value();
    bool movable = false;
    for (const Value& flag : row[2].items())
      movable = movable || flag.as_text() == "movablekeys";
    if (movable || name.find('.') != std::string::npos)
      continue;
    // Seven arguments: those that the server calls keys have one tag, the others each their own.
    constexpr std::int64_t kParts = 8;
    const std::int64_t end = last < 0 ? kParts + last : last;
    std::vector<std::string> words = {name};
    bool any = false;
    for (std::int64_t i = 1; i < kParts; ++i) {
      const bool is_key = first > 0 && i >= first && i <= end && (i - first) % step == 0;
      words.push_back(is_key ? "{q}" + std::to_string(i) : "other" + std::to_string(i));
      any = any || is_key;
    }
    std::vector<std::string_view> parts(words.begin(), words.end());
    std::string bytes;
    resp::CommandWriter(bytes).command(parts);
    const auto found = wire::slot_of_request(bytes);
    ASSERT_TRUE(found) << name << ": " << found.error().message();
    // Of these some subcommands have a key; the server says so of each of them alone.
    if (std::set<std::string>{"object", "memory", "xinfo", "xgroup"}.contains(name))
      continue;
    EXPECT_EQ(*found, any ? slot("q") : detail::Call::kAnySlot) << name;
    ++checked;
  }
  EXPECT_GT(checked, 200);

  using Words = std::vector<std::string>;
  for (const Words& words : std::vector<Words>{{"EVAL", "return 1", "2", "{q}a", "{q}b", "c"},
                                               {"FCALL_RO", "f", "1", "{q}a", "c"},
                                               {"LMPOP", "2", "{q}a", "{q}b", "LEFT"},
                                               {"BZMPOP", "1", "2", "{q}a", "{q}b", "MIN"},
                                               {"SINTERCARD", "1", "{q}a", "LIMIT", "3"},
                                               {"ZDIFFSTORE", "{q}a", "2", "{q}b", "{q}c"},
                                               {"XREAD", "COUNT", "3", "STREAMS", "{q}a", "{q}b", "0", "0"},
                                               {"SORT_RO", "{q}a", "LIMIT", "0", "1"},
                                               {"SORT", "{q}a", "STORE", "{q}b"},
                                               {"OBJECT", "FREQ", "{q}a"},
                                               {"XGROUP", "DESTROY", "{q}a", "g"},
                                               {"MEMORY", "USAGE", "{q}a"},
                                               {"GEORADIUS", "{q}a", "0", "0", "1", "m", "STORE", "{q}b"}}) {
    std::vector<std::string_view> parts(words.begin(), words.end());
    std::string bytes;
    resp::CommandWriter(bytes).command(parts);
    EXPECT_EQ(wire::slot_of_request(bytes).value(), slot("q")) << words[0];
    std::vector<std::string_view> question = {"COMMAND", "GETKEYS"};
    question.insert(question.end(), parts.begin(), parts.end());
    const auto keys = client.command(CommandParts(question)).get();
    ASSERT_TRUE(keys) << words[0] << ": " << keys.error().message();
    for (const Value& key : keys->items())
      EXPECT_EQ(slot(key.as_text().value()), slot("q")) << words[0];
  }
}

TEST_F(ClusterTest, FollowsASlotThatMovedAndKeepsTheOrder) {
  const Client client = open({.node_lease = NodeLease::never});
  const std::string tag = name_on(0);
  const std::string key = "{" + tag + "}list";
  ASSERT_EQ(text(client.command("RPUSH", key, "x").get()), "1");
  std::uint64_t redirects = 0;
  for (int round = 1; round <= 6; ++round) {
    ASSERT_EQ(text(client.command("DEL", key).get()), "1");
    const std::size_t to = static_cast<std::size_t>(round) % cluster_->size();
    const auto moved = cluster_->move_slot(slot(tag), to);
    ASSERT_TRUE(moved) << moved.error().message();
    // A pipeline on the stale map: what was refused must not be overtaken by what came after the map was repaired.
    constexpr int kCalls = 4000;
    std::vector<Reply<Value>> replies;
    for (int i = 0; i < kCalls; ++i) {
      replies.push_back(client.command("RPUSH", key, std::to_string(i)));
      if (i % 400 == 0)
        std::this_thread::sleep_for(200us);
    }
    for (int i = 0; i < kCalls; ++i)
      ASSERT_EQ(text(replies[static_cast<std::size_t>(i)].get()), std::to_string(i + 1)) << "round " << round;
    EXPECT_GT(client.stats().redirects, redirects) << "round " << round;
    redirects = client.stats().redirects;
    EXPECT_EQ(asked(to, {"LINDEX", key, "-1"}), std::to_string(kCalls - 1));
    // The map is repaired: nothing more is redirected.
    ASSERT_EQ(text(client.command("LINDEX", key, "7").get()), "7");
    EXPECT_EQ(client.stats().redirects, redirects);
  }
  // Asked for once a change or a little more, not once a refused call.
  EXPECT_TRUE(eventually([&] { return client.stats().map_refreshes >= 1; }));
  EXPECT_LE(client.stats().map_refreshes, 18U);
}

TEST_F(ClusterTest, ManyThreadsKeepTheirOrderWhileSlotsMove) {
  const Client client = open({.node_lease = NodeLease::never});
  std::vector<std::string> tags;
  for (std::size_t i = 0; i < 4; ++i)
    tags.push_back(name_on(i % 3, static_cast<int>(i)));
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (const std::string& tag : tags) {
    threads.emplace_back([&, tag] {
      // A script without a row: the slot stays empty and can move at any time. PING-like, but with a key.
      const std::string key = "{" + tag + "}none";
      while (!stop) {
        std::vector<Reply<Value>> replies;
        for (int i = 0; i < 50; ++i)
          replies.push_back(client.command("EVAL", "return ARGV[1]", "1", key, std::to_string(i)));
        for (int i = 0; i < 50; ++i) {
          const std::string got = text(replies[static_cast<std::size_t>(i)].get());
          if (got != std::to_string(i)) {
            ++wrong;
            ADD_FAILURE() << got;
          }
          ++done;
        }
      }
    });
  }
  for (int round = 0; round < 60; ++round) {
    const std::string& tag = tags[static_cast<std::size_t>(round) % tags.size()];
    EXPECT_TRUE(cluster_->move_slot(slot(tag), static_cast<std::size_t>(round / 4) % 3));
    std::this_thread::sleep_for(5ms);
  }
  stop = true;
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(done, 1000);
  EXPECT_GT(client.stats().redirects, 0U);
  EXPECT_EQ(client.stats().outcomes_unknown, 0U);
}

TEST_F(ClusterTest, PipelinesGoToEveryNodeAndTransactionsFollowTheirSlot) {
  const Client client = open({.node_lease = NodeLease::never});
  std::vector<std::vector<std::string>> commands;
  for (int i = 0; i < 60; ++i)
    commands.push_back({"SET", "p" + std::to_string(i), std::to_string(i)});
  for (int i = 0; i < 60; ++i)
    commands.push_back({"GET", "p" + std::to_string(i)});
  commands.push_back({"INCR", "p0", "too", "many"});
  std::vector<std::vector<std::string_view>> views;
  for (const auto& command : commands)
    views.emplace_back(command.begin(), command.end());
  const std::vector<CommandParts> parts(views.begin(), views.end());
  const auto answers = client.pipeline(parts).get();
  ASSERT_TRUE(answers) << answers.error().message();
  ASSERT_EQ(answers->size(), 121U);
  for (int i = 0; i < 60; ++i)
    EXPECT_EQ((*answers)[60 + static_cast<std::size_t>(i)].as_text(), std::to_string(i));
  EXPECT_TRUE((*answers)[120].is_error());

  const std::string tag = name_on(1);
  const std::string key = "{" + tag + "}n";
  const std::array<std::string_view, 2> increment = {"INCR", key};
  const std::array<std::string_view, 2> remove = {"DEL", key};
  const std::array<CommandParts, 3> block = {CommandParts(increment), CommandParts(increment), CommandParts(remove)};
  for (const std::size_t to : {std::size_t{1}, std::size_t{2}, std::size_t{0}}) {
    ASSERT_TRUE(cluster_->move_slot(slot(tag), to));
    const auto done = client.transaction(block).get();
    ASSERT_TRUE(done) << done.error().message();
    ASSERT_EQ(done->size(), 3U);
    EXPECT_EQ((*done)[1].as_integer(), 2);
  }
  EXPECT_EQ(client.stats().redirects, 2U);
}

TEST_F(ClusterTest, LoadsScriptsOnEachNodeAndAgainAfterAFlushOfOne) {
  const Client client = open();
  const auto enqueue_everywhere = [&] {
    for (std::size_t node = 0; node < cluster_->size(); ++node) {
      const auto admitted = client.queue(QueueName::parse(name_on(node)).value()).enqueue("x").get();
      ASSERT_TRUE(admitted) << admitted.error().message();
    }
  };
  enqueue_everywhere();
  const auto loads = client.stats().script_loads;
  EXPECT_GE(loads, 3U);
  enqueue_everywhere();
  EXPECT_EQ(client.stats().script_loads, loads);
  ASSERT_EQ(asked(1, {"SCRIPT", "FLUSH"}), "OK");
  enqueue_everywhere();
  EXPECT_EQ(client.stats().script_loads, loads + 1);
  EXPECT_EQ(client.queue(QueueName::parse(name_on(1)).value()).counts().get()->pending, 3);

  // Within a transaction the load goes to the node that lacks it, wherever keyless commands go.
  for (std::size_t node = 0; node < cluster_->size(); ++node) {
    ASSERT_EQ(asked(node, {"SCRIPT", "FLUSH"}), "OK");
    const script::ScriptSource* promote = script::find_script("promote");
    ASSERT_NE(promote, nullptr);
    const std::string base = "emq:{" + name_on(node) + "}:";
    const std::string schedule = base + "schedule";
    const std::string pending = base + "pending";
    const std::array<std::string_view, 6> call = {"EVALSHA", promote->sha1, "2", schedule, pending, base};
    const std::array<CommandParts, 1> block = {CommandParts(call)};
    const auto done = client.transaction(block).get();
    ASSERT_TRUE(done) << done.error().message();
    EXPECT_EQ((*done)[0].as_integer(), 0) << (*done)[0].to_string();
  }
}

TEST_F(ClusterTest, WorkersOfQueuesOnEveryNodeAreWoken) {
  const Client client = open();
  const Client producer = open();
  std::array<std::atomic<int>, 3> done{};
  std::vector<Worker> workers;
  for (std::size_t node = 0; node < 3; ++node) {
    auto worker = Worker::start(
        client.queue(QueueName::parse(name_on(node)).value()),
        [&done, node](Job&) {
          ++done[node];
          return Done();
        },
        test::quick_options());
    ASSERT_TRUE(worker) << worker.error().message();
    workers.push_back(*std::move(worker));
  }
  for (int round = 1; round <= 3; ++round) {
    for (std::size_t node = 0; node < 3; ++node) {
      const std::string parked = "emq:{" + name_on(node) + "}:parked";
      ASSERT_TRUE(eventually([&] { return text(client.command("ZCARD", parked).get()) == "1"; }));
      // The beat is half a minute: only the wake list of that node can tell in time.
      ASSERT_TRUE(producer.queue(QueueName::parse(name_on(node)).value()).enqueue("x").get());
      ASSERT_TRUE(eventually([&] { return done[node] == round; })) << "node " << node << ", round " << round;
    }
  }
}

TEST_F(ClusterTest, BeyondTheParkedConnectionsWorkersGoByTheirBeat) {
  const Client client = open();
  constexpr std::size_t kQueues = client::WakeHubs::kMostParked + 4;
  std::atomic<std::size_t> done{0};
  WorkerOptions options = test::quick_options();
  options.beat = 500ms;
  std::vector<Worker> workers;
  for (std::size_t i = 0; i < kQueues; ++i) {
    auto worker = Worker::start(
        client.queue(QueueName::parse("beat" + std::to_string(i)).value()),
        [&done](Job&) {
          ++done;
          return Done();
        },
        options);
    ASSERT_TRUE(worker) << worker.error().message();
    workers.push_back(*std::move(worker));
  }
  std::this_thread::sleep_for(300ms);
  // One for each node, one for all subscriptions, and the parked ones.
  EXPECT_LE(client.stats().connections, 3U + 1U + client::WakeHubs::kMostParked);
  for (std::size_t i = 0; i < kQueues; ++i)
    ASSERT_TRUE(client.queue(QueueName::parse("beat" + std::to_string(i)).value()).enqueue("x").get());
  EXPECT_TRUE(eventually([&] { return done == kQueues; }, 10s)) << done;
}

TEST_F(ClusterTest, SubscriptionsHearEveryNodeAndMoveWhenTheirsGoes) {
  start_cluster({.arguments = {"--cluster-require-full-coverage", "no"}});
  const Client client = open({.heartbeat = 500ms});
  const Client other = open({.node_lease = NodeLease::never});
  for (std::size_t node = 0; node < 3; ++node)
    ASSERT_TRUE(client.command("GET", name_on(node)).get());  // connected to all
  std::mutex mutex;
  std::vector<std::string> heard;
  std::atomic<int> gaps{0};
  SubscriptionHandlers handlers;
  handlers.on_message = [&](std::string_view, std::string_view message) {
    const std::lock_guard lock(mutex);
    heard.emplace_back(message);
  };
  handlers.on_gap = [&] { ++gaps; };
  const auto subscription = client.subscribe("news", handlers).get();
  ASSERT_TRUE(subscription) << subscription.error().message();
  const auto hears = [&](const std::string& message) {
    return eventually([&] {
      const std::lock_guard lock(mutex);
      return std::find(heard.begin(), heard.end(), message) != heard.end();
    });
  };
  for (std::size_t node = 0; node < 3; ++node) {
    const std::string message = "from " + std::to_string(node);
    (void)asked(node, {"PUBLISH", "news", message});
    EXPECT_TRUE(hears(message)) << message;
  }
  // A publication of another client counts the subscriber: both use the same node while it is well.
  EXPECT_EQ(text(other.command("PUBLISH", "news", "counted").get()), "1");

  std::size_t home = 3;
  for (std::size_t node = 0; node < 3; ++node) {
    if (asked(node, {"CLIENT", "LIST", "TYPE", "pubsub"}).find("echomq:subscriptions") != std::string::npos)
      home = node;
  }
  ASSERT_LT(home, 3U);
  // Only the connection is cut: it comes back where it was.
  EXPECT_EQ(asked(home, {"CLIENT", "KILL", "TYPE", "pubsub"}), "1");
  EXPECT_TRUE(eventually([&] { return subscription->live() && gaps == 1; }));
  EXPECT_NE(asked(home, {"CLIENT", "LIST", "TYPE", "pubsub"}).find("echomq:subscriptions"), std::string::npos);
  // The node goes.
  cluster_->node(home).kill();
  EXPECT_TRUE(eventually([&] { return subscription->live() && gaps == 2; }));
  EXPECT_EQ(subscription->gaps(), 2U);
  (void)asked((home + 1) % 3, {"PUBLISH", "news", "after"});
  EXPECT_TRUE(hears("after"));
}

TEST_F(ClusterTest, ANodeThatStopsTakesOnlyItsOwnCallsWithIt) {
  start_cluster({.append_only = testing::AppendOnly::always, .arguments = {"--cluster-require-full-coverage", "no"}});
  const Client client = open({.deadline = 2s, .heartbeat = 500ms});
  const std::size_t home = cluster_->owner_of(slot("{emq}:version"));
  const std::size_t lost = (home + 1) % 3;
  const std::size_t well = (home + 2) % 3;
  const auto queue_on = [&](std::size_t node) { return client.queue(QueueName::parse(name_on(node)).value()); };
  for (std::size_t node = 0; node < 3; ++node)
    ASSERT_TRUE(queue_on(node).enqueue("before").get());

  cluster_->node(lost).kill();
  for (int i = 0; i < 20; ++i) {
    const auto admitted = queue_on(well).enqueue("meanwhile").get();
    ASSERT_TRUE(admitted) << admitted.error().message();
  }
  const auto late = queue_on(lost).enqueue("lost").get();
  ASSERT_FALSE(late);
  EXPECT_TRUE(late.error().is(Errc::unreachable) || late.error().is(Errc::cluster_down)) << late.error().message();
  EXPECT_EQ(late.error().repeat, Repeat::safe);

  // What is safe to repeat waits for the node to come back.
  auto waiting = queue_on(lost).enqueue("waits", {.deadline = 20s});
  ASSERT_TRUE(cluster_->node(lost).restart());
  ASSERT_TRUE(cluster_->wait_ready());
  const auto admitted = waiting.get();
  EXPECT_TRUE(admitted) << admitted.error().message();
  EXPECT_TRUE(eventually([&] { return queue_on(lost).enqueue("after").get().has_value(); }));
  EXPECT_EQ(queue_on(lost).counts().get()->pending, 3);
  EXPECT_EQ(queue_on(well).counts().get()->pending, 21);
}

TEST_F(ClusterTest, OpensFromAnySeedAndSaysWhyNot) {
  const std::string good = "127.0.0.1:" + std::to_string(cluster_->node(2).port());
  const ClientOptions quick{.connect_timeout = 5s};
  // A seed that is down, and one under another name than the cluster uses.
  Client client = open("valkey+cluster://127.0.0.1:1," + good, quick);
  EXPECT_EQ(text(client.command("SET", name_on(0), "1").get()), "OK");
  Client by_name = open("valkey+cluster://localhost:" + std::to_string(cluster_->node(1).port()), quick);
  EXPECT_EQ(text(by_name.command("GET", name_on(0)).get()), "1");
  EXPECT_LE(by_name.stats().connections, 3U);

  const auto error_of = [&](const std::string& url, ClientOptions options = {}) {
    options.connect_timeout = 5s;
    auto opened = Client::open(url, std::move(options));
    return opened ? Error() : opened.error();
  };
  EXPECT_TRUE(error_of("valkey+cluster://127.0.0.1:1,127.0.0.1:2").is(Errc::unreachable));
  EXPECT_TRUE(error_of(cluster_->url() + "/1").is(Errc::invalid_url));
  EXPECT_TRUE(error_of(cluster_->url(), {.database = 1}).is(Errc::invalid_argument));
  EXPECT_TRUE(error_of(cluster_->url(), {.user = "nobody", .password = "wrong"}).is(Errc::auth_refused));
  auto alone = testing::PrivateServer::start({});
  ASSERT_TRUE(alone);
  const Error no_cluster = error_of("valkey+cluster://127.0.0.1:" + std::to_string(alone->port()));
  EXPECT_TRUE(no_cluster.is(Errc::boot_refused)) << no_cluster.message();
  // One node as if it were a single server: refused by the node that has not the version key.
  const std::size_t home = cluster_->owner_of(slot("{emq}:version"));
  const Error single = error_of(cluster_->node((home + 1) % 3).tcp_url());
  EXPECT_TRUE(single.is(Errc::moved)) << single.message();
}

TEST_F(ClusterTest, HoldsTheVersionFence) {
  const std::size_t home = cluster_->owner_of(slot("{emq}:version"));
  ASSERT_EQ(asked(home, {"SET", "{emq}:version", "echomq:9.0.0"}), "OK");
  for (std::size_t seed = 0; seed < 3; ++seed) {
    const auto opened = Client::open("valkey+cluster://127.0.0.1:" + std::to_string(cluster_->node(seed).port()));
    ASSERT_FALSE(opened);
    EXPECT_TRUE(opened.error().is(Errc::version_mismatch)) << opened.error().message();
  }
  ASSERT_EQ(asked(home, {"DEL", "{emq}:version"}), "1");
  const Client client = open();
  EXPECT_EQ(asked(home, {"GET", "{emq}:version"}), "echomq:3.0.0");
}

TEST_F(ClusterTest, SaysWhatTheClusterRefuses) {
  const Client client = open();
  const std::string tag = name_on(0);
  const std::string key = "{" + tag + "}a";
  // A slot that one node gives away and the other does not take: they do not agree.
  const std::string to = asked(1, {"CLUSTER", "MYID"});
  ASSERT_EQ(asked(0, {"CLUSTER", "SETSLOT", std::to_string(slot(tag)), "MIGRATING", to}), "OK");
  const auto ask = client.command("GET", key).get();
  ASSERT_FALSE(ask);
  EXPECT_TRUE(ask.error().is(Errc::moved)) << ask.error().message();
  EXPECT_EQ(ask.error().repeat, Repeat::safe);
  ASSERT_EQ(asked(0, {"CLUSTER", "SETSLOT", std::to_string(slot(tag)), "STABLE"}), "OK");
  EXPECT_EQ(text(client.command("GET", key).get()), "(null)");
  // A slot that nobody serves takes the cluster down.
  for (std::size_t node = 0; node < 3; ++node)
    ASSERT_EQ(asked(node, {"CLUSTER", "DELSLOTS", std::to_string(slot(tag))}), "OK");
  Error down;
  EXPECT_TRUE(eventually([&] {
    const auto refused = client.command("GET", key).get();
    down = refused ? Error() : refused.error();
    return !refused;
  }));
  EXPECT_TRUE(down.is(Errc::cluster_down)) << down.message();
}

TEST_F(ClusterTest, AsksEveryNodeWhatConcernsItsWholeKeyspace) {
  const Client client = open({.node_lease = NodeLease::never});
  for (std::size_t node = 0; node < 3; ++node)
    ASSERT_EQ(text(client.command("SET", name_on(node), "1").get()), "OK");
  const client::Nodes nodes(client);
  ASSERT_EQ(nodes.size(), 3U);
  const std::array<std::string_view, 1> size = {"DBSIZE"};
  std::int64_t sum = 0;
  for (std::size_t node = 0; node < nodes.size(); ++node)
    sum += nodes.command(node, size).get().value().as_integer().value();
  EXPECT_EQ(sum, 4);
}

TEST(PrivateClusterTest, EndsWithItsObject) {
  std::vector<pid_t> pids;
  std::vector<std::string> folders;
  {
    const auto begun = std::chrono::steady_clock::now();
    auto cluster = PrivateCluster::start({});
    ASSERT_TRUE(cluster) << cluster.error().message();
    EXPECT_LT(test::since(begun), test::bound(15s));
    EXPECT_EQ(cluster->size(), 3U);
    EXPECT_EQ(cluster->owner_of(0), 0U);
    EXPECT_EQ(cluster->owner_of(16383), 2U);
    for (std::size_t node = 0; node < 3; ++node) {
      pids.push_back(cluster->node(node).pid());
      folders.push_back(cluster->node(node).folder());
    }
  }
  for (const pid_t pid : pids)
    EXPECT_NE(::kill(pid, 0), 0);
  for (const std::string& folder : folders)
    EXPECT_NE(::access(folder.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace echomq
