// Tables of a cluster's clients: messages count and reach all of them; tracking is told by the node that serves the table.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "echomq/cache.hpp"
#include "echomq/client.hpp"
#include "echomq/testing/private_cluster.hpp"
#include "keyspace/slot.hpp"
#include "support/played_node.hpp"
#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

using namespace std::chrono_literals;

constexpr BrandedId kUser{"USR0NgWEfAE00A"};

class CacheCluster : public ::testing::Test {
 protected:
  void start(std::vector<std::string> arguments = {}) {
    auto started = testing::PrivateCluster::start({.arguments = std::move(arguments)});
    ASSERT_TRUE(started) << started.error().message();
    cluster_.emplace(*std::move(started));
  }
  [[nodiscard]] Client open(ClientOptions options = {}) const {
    auto opened = Client::open(cluster_->url(), std::move(options));
    if (!opened)
      throw std::runtime_error(opened.error().message());
    return *std::move(opened);
  }
  [[nodiscard]] static ByteCache table(const Client& on, const std::string& name, Coherence coherence) {
    auto opened = ByteCache::open(
        on, {.table = CacheName::parse(name).value(), .kind = "USR", .ttl = 60s, .coherence = coherence}, {});
    if (!opened)
      throw std::runtime_error(opened.error().message());
    return *std::move(opened);
  }
  [[nodiscard]] static std::uint16_t slot_of(const std::string& name) { return keyspace::slot("{" + name + "}"); }
  [[nodiscard]] std::string name_on(std::size_t node) const {
    for (int i = 0;; ++i) {
      std::string name = "t" + std::to_string(i);
      if (cluster_->owner_of(slot_of(name)) == node)
        return name;
    }
  }
  [[nodiscard]] std::string asked(std::size_t node, const std::vector<std::string>& words) const {
    auto answer = cluster_->ask(node, words);
    return answer ? *answer : "error: " + answer.error().message();
  }
  [[nodiscard]] static std::string key(const std::string& name) {
    return "ecc:{" + name + "}:" + std::string(kUser.text());
  }
  [[nodiscard]] static BrandedId version(std::uint64_t number) { return BrandedId::encode("EVT", number).value(); }
  [[nodiscard]] static std::string got(const ByteCache& cache) {
    const auto answer = cache.get(kUser).get();
    if (!answer)
      return answer.error().message();
    return answer->value.value_or("(absent)") + "/" + std::string(to_string(answer->from));
  }
  [[nodiscard]] static bool holds(const ByteCache& cache) {
    CachedBytes into;
    return cache.peek(kUser, into);
  }
  /// How many connections that hear for tables the node has.
  [[nodiscard]] int listeners(std::size_t node, const std::string& role) const {
    const std::string list = asked(node, {"CLIENT", "LIST"});
    int count = 0;
    for (std::size_t at = list.find("name=echomq" + role); at != std::string::npos;
         at = list.find("name=echomq" + role, at + 1))
      ++count;
    return count;
  }

  /// The slot of a table of the first node is on its way to the second.
  void depart(const std::string& name) const {
    const std::string slot = std::to_string(slot_of(name));
    ASSERT_EQ(asked(1, {"CLUSTER", "SETSLOT", slot, "IMPORTING", asked(0, {"CLUSTER", "MYID"})}), "OK");
    ASSERT_EQ(asked(0, {"CLUSTER", "SETSLOT", slot, "MIGRATING", asked(1, {"CLUSTER", "MYID"})}), "OK");
  }

  std::optional<testing::PrivateCluster> cluster_;
};

TEST_F(CacheCluster, AMessageCountsAndReachesEveryTable) {
  start({"--cluster-require-full-coverage", "no"});
  const std::size_t home = cluster_->owner_of(keyspace::slot("{emq}:version"));
  const std::string name = name_on((home + 1) % 3);
  const Client one = open({.heartbeat = 500ms});
  const Client two = open({.heartbeat = 500ms});
  for (const Client* client : {&one, &two}) {
    for (std::size_t node = 0; node < 3; ++node)
      ASSERT_TRUE(client->command("GET", name_on(node)).get());  // connected to all
  }
  ByteCache writer = table(one, name, Coherence::broadcast);
  ByteCache reader = table(two, name, Coherence::broadcast);
  const CacheWriter says(one, writer.options().table);
  std::uint64_t number = 1;
  const auto write = [&](const std::string& value) {
    EXPECT_EQ(writer.put(kUser, value, version(++number)).get().value(), CachePut::stored);
    return says.broadcast(kUser, version(number)).get().value();
  };
  EXPECT_EQ(write("one"), 2);
  EXPECT_EQ(got(reader), "one/l2");
  EXPECT_EQ(got(reader), "one/hit");
  EXPECT_EQ(write("two"), 2);
  EXPECT_TRUE(eventually([&] { return !holds(reader); }));
  EXPECT_EQ(got(reader), "two/l2");
  EXPECT_EQ(got(writer), "two/hit");

  // The node on which they hear goes: they hear on another, and nothing of before is served.
  EXPECT_EQ(listeners(home, ":cache"), 2);
  cluster_->node(home).kill();
  // Each in its own time: one may hear again before the other has noticed.
  bool reader_stopped = false;
  bool writer_stopped = false;
  EXPECT_TRUE(eventually([&] {
    // Or has stopped and goes on: on a loaded machine nobody may have looked in between.
    reader_stopped = reader_stopped || !reader.serving() || reader.stats().flushes > 0;
    writer_stopped = writer_stopped || !writer.serving() || writer.stats().flushes > 0;
    return reader_stopped && writer_stopped;
  }));
  EXPECT_TRUE(eventually([&] { return reader.serving() && writer.serving(); }));
  EXPECT_EQ(got(reader), "two/l2");
  EXPECT_EQ(got(reader), "two/hit");
  (void)write("three");
  EXPECT_TRUE(eventually([&] { return !holds(reader); }));
  EXPECT_EQ(got(reader), "three/l2");
}

/// The connection went to whichever node the URL named first: of writes to the others' slots it heard nothing.
TEST_F(CacheCluster, TrackingHearsOfATableOnAnyNode) {
  start();
  const Client one = open();
  const Client other = open({.node_lease = NodeLease::never});
  for (std::size_t node = 0; node < 3; ++node) {
    SCOPED_TRACE(node);
    const std::string name = name_on(node);
    ByteCache cache = table(one, name, Coherence::tracking);
    EXPECT_EQ(listeners(node, ":tracking"), 1);
    const auto write = [&](const std::string& bytes) { ASSERT_TRUE(other.command("SET", key(name), bytes).get()); };
    write(std::string(version(1).text()) + "one");
    EXPECT_EQ(got(cache), "one/l2");
    EXPECT_EQ(got(cache), "one/hit");
    write(std::string(version(2).text()) + "two");
    EXPECT_TRUE(eventually([&] { return !holds(cache); }));
    EXPECT_EQ(got(cache), "two/l2");
    EXPECT_EQ(got(cache), "two/hit");
  }
}

TEST_F(CacheCluster, TrackingFollowsTheSlotOfItsTable) {
  start();
  const Client one = open();
  const Client other = open({.node_lease = NodeLease::never});
  const std::string name = name_on(0);
  const std::string slot = std::to_string(slot_of(name));
  ByteCache cache = table(one, name, Coherence::tracking);
  std::uint64_t number = 0;
  const auto row = [&] {
    ++number;
    return std::string(version(number).text()) + "v" + std::to_string(number);
  };
  const auto newest = [&] { return "v" + std::to_string(number); };
  ASSERT_TRUE(other.command("SET", key(name), row()).get());
  EXPECT_EQ(got(cache), newest() + "/l2");
  for (const std::size_t to : {1U, 2U, 0U, 1U}) {
    SCOPED_TRACE(to);
    const std::size_t from = cluster_->owner_of(slot_of(name));
    EXPECT_EQ(got(cache), newest() + "/hit");
    // The row moves along, as resharding does it.
    const std::string to_id = asked(to, {"CLUSTER", "MYID"});
    const std::string from_id = asked(from, {"CLUSTER", "MYID"});
    ASSERT_EQ(asked(to, {"CLUSTER", "SETSLOT", slot, "IMPORTING", from_id}), "OK");
    ASSERT_EQ(asked(from, {"CLUSTER", "SETSLOT", slot, "MIGRATING", to_id}), "OK");
    ASSERT_EQ(asked(from, {"MIGRATE", "127.0.0.1", std::to_string(cluster_->node(to).port()), key(name), "0", "5000"}),
              "OK");
    ASSERT_TRUE(cluster_->move_slot(slot_of(name), to));
    // Nobody of ours has sent anything since: the row was dropped by what the old node told as it went.
    EXPECT_TRUE(eventually([&] { return !holds(cache); }));
    // Changed where this table does not hear yet.
    ASSERT_EQ(asked(to, {"SET", key(name), row()}), "OK");
    EXPECT_EQ(got(cache), newest() + "/l2");
    EXPECT_TRUE(eventually([&] { return cache.serving() && listeners(to, ":tracking") == 1; }));
    EXPECT_EQ(listeners(from, ":tracking"), 0);
    // And it hears there.
    EXPECT_EQ(got(cache), newest() + "/l2");
    EXPECT_EQ(got(cache), newest() + "/hit");
    ASSERT_EQ(asked(to, {"SET", key(name), row()}), "OK");
    EXPECT_TRUE(eventually([&] { return !holds(cache); }));
    EXPECT_EQ(got(cache), newest() + "/l2");
  }
  EXPECT_EQ(cache.stats().outages, 0U);
}

/// Of a read of several rows one in the middle that is elsewhere is refused: it ended as an error, and the loader was not asked.
TEST_F(CacheCluster, OfSeveralRowsEachIsReadWhereItIs) {
  start();
  const Client one = open();
  const std::string name = name_on(0);
  const std::string slot = std::to_string(slot_of(name));
  const BrandedId here{"USR0NgWEfAE00B"};
  const BrandedId gone{"USR0NgWEfAE00C"};
  const auto key_of = [&](const BrandedId& id) { return "ecc:{" + name + "}:" + std::string(id.text()); };
  for (const BrandedId& id : {here, gone})
    ASSERT_EQ(asked(0, {"SET", key_of(id), std::string(version(1).text()) + "row"}), "OK");
  ASSERT_EQ(asked(1, {"CLUSTER", "SETSLOT", slot, "IMPORTING", asked(0, {"CLUSTER", "MYID"})}), "OK");
  ASSERT_EQ(asked(0, {"CLUSTER", "SETSLOT", slot, "MIGRATING", asked(1, {"CLUSTER", "MYID"})}), "OK");
  ASSERT_EQ(asked(0, {"MIGRATE", "127.0.0.1", std::to_string(cluster_->node(1).port()), key_of(gone), "0", "5000"}),
            "OK");
  for (const Coherence coherence : {Coherence::none, Coherence::broadcast}) {
    for (const bool loads : {false, true}) {
      SCOPED_TRACE(loads);
      LoadBytes load;
      if (loads) {
        load = [](const BrandedId&) -> Result<std::optional<Loaded<std::string>>> {
          return Loaded<std::string>{"loaded", std::nullopt};
        };
      }
      auto cache = ByteCache::open(
          one, {.table = CacheName::parse(name).value(), .kind = "USR", .ttl = 60s, .coherence = coherence}, load);
      ASSERT_TRUE(cache);
      const auto answers = cache->get_many(std::vector<BrandedId>{kUser, gone, here}).get();
      ASSERT_TRUE(answers) << answers.error().message();
      std::vector<std::string> said;
      for (const auto& answer : *answers) {
        said.push_back(answer ? answer->value.value_or("(absent)") + "/" + std::string(to_string(answer->from))
                              : answer.error().message());
      }
      EXPECT_EQ(said, (std::vector<std::string>{loads ? "loaded/fill" : "(absent)/l2", "row/l2", "row/l2"}));
      EXPECT_EQ(cache->stats().outages, 0U);
      EXPECT_EQ(cache->stats().l2_write_errors, 0U);
      (void)asked(1, {"FLUSHALL"});
      ASSERT_TRUE(one.command("SET", key_of(gone), std::string(version(1).text()) + "row").get());
    }
  }
}

/// A row that had gone before its slot was taken for the slot: L1 was emptied and the connection made anew at each such read.
TEST_F(CacheCluster, TrackingStaysWithTheNodeOfItsSlotWhileRowsGo) {
  start();
  const Client one = open();
  const std::string name = name_on(0);
  const std::string slot = std::to_string(slot_of(name));
  const BrandedId here{"USR0NgWEfAE00B"};
  const BrandedId nowhere{"USR0NgWEfAE00C"};
  const auto key_of = [&](const BrandedId& id) { return "ecc:{" + name + "}:" + std::string(id.text()); };
  for (const BrandedId& id : {kUser, here})
    ASSERT_EQ(asked(0, {"SET", key_of(id), std::string(version(1).text()) + "row"}), "OK");
  auto opened = ByteCache::open(
      one, {.table = CacheName::parse(name).value(), .kind = "USR", .ttl = 60s, .coherence = Coherence::tracking},
      [](const BrandedId&) -> Result<std::optional<Loaded<std::string>>> {
        return Loaded<std::string>{"loaded", std::nullopt};
      });
  ASSERT_TRUE(opened);
  const ByteCache& cache = *opened;
  const auto get = [&](const BrandedId& id) {
    const auto answer = cache.get(id).get();
    return answer ? answer->value.value_or("(absent)") + "/" + std::string(to_string(answer->from))
                  : answer.error().message();
  };
  EXPECT_EQ(get(here), "row/l2");
  EXPECT_EQ(get(kUser), "row/l2");
  ASSERT_EQ(asked(1, {"CLUSTER", "SETSLOT", slot, "IMPORTING", asked(0, {"CLUSTER", "MYID"})}), "OK");
  ASSERT_EQ(asked(0, {"CLUSTER", "SETSLOT", slot, "MIGRATING", asked(1, {"CLUSTER", "MYID"})}), "OK");
  ASSERT_EQ(asked(0, {"MIGRATE", "127.0.0.1", std::to_string(cluster_->node(1).port()), key(name), "0", "5000"}), "OK");
  EXPECT_TRUE(eventually([&] { return !holds(cache); })) << "the node it leaves tells of it";
  for (std::uint64_t i = 2; i < 7; ++i) {
    EXPECT_EQ(get(kUser), (i == 2 ? "row" : "v" + std::to_string(i - 1)) + "/l2") << "not kept, for nobody would tell";
    ASSERT_TRUE(one.command("SET", key(name), std::string(version(i).text()) + "v" + std::to_string(i)).get());
    EXPECT_EQ(get(here), "row/hit");
    std::this_thread::sleep_for(50ms);
  }
  EXPECT_EQ(get(nowhere), "loaded/fill");
  EXPECT_EQ(get(nowhere), "loaded/l2");
  const auto deleted = cache.invalidate(nowhere).get();
  EXPECT_TRUE(deleted) << deleted.error().message();
  EXPECT_EQ(get(nowhere), "loaded/fill");
  EXPECT_EQ(get(here), "row/hit");
  EXPECT_EQ(cache.stats().flushes, 0U);
  EXPECT_EQ(cache.stats().l2_write_errors, 0U);
  EXPECT_EQ(cache.stats().outages, 0U);
  EXPECT_EQ(listeners(0, ":tracking"), 1);
  ASSERT_EQ(asked(0, {"MIGRATE", "127.0.0.1", std::to_string(cluster_->node(1).port()), key_of(here), "0", "5000"}),
            "OK");
  const auto moved = cluster_->move_slot(slot_of(name), 1);
  ASSERT_TRUE(moved) << moved.error().message();
  EXPECT_EQ(get(kUser), "v6/l2");
  EXPECT_TRUE(eventually([&] { return cache.serving() && listeners(1, ":tracking") == 1; }));
  EXPECT_EQ(get(kUser), "v6/l2");
  EXPECT_EQ(get(kUser), "v6/hit");
}

/// Under tracking the deletion of a row that had gone before its slot ended as `moved`; with shared loads it waited for the call's deadline
/// wherever the row and the right to load it were not on one node.
TEST_F(CacheCluster, ARowThatHasGoneAheadIsInvalidated) {
  start();
  const Client one = open();
  const std::string name = name_on(0);
  depart(name);
  const std::string lease = "eccx:{" + name + "}:load:" + std::string(kUser.text());
  for (const Coherence coherence : {Coherence::none, Coherence::broadcast, Coherence::tracking}) {
    for (const auto load_lease : {0ms, 20'000ms}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(coherence) << ", lease of " << load_lease.count());
      auto cache = ByteCache::open(one, {.table = CacheName::parse(name).value(),
                                         .kind = "USR",
                                         .ttl = 60s,
                                         .coherence = coherence,
                                         .load_lease = load_lease});
      ASSERT_TRUE(cache) << cache.error().message();
      for (const bool leased : {false, true}) {
        ASSERT_TRUE(one.command("SET", key(name), std::string(version(1).text()) + "row").get());
        if (leased) {
          ASSERT_TRUE(one.command("SET", lease, "of another process").get());
        }
        EXPECT_EQ(got(*cache), "row/l2");
        const auto began = std::chrono::steady_clock::now();
        const auto outcome = cache->invalidate(kUser).get();
        EXPECT_TRUE(outcome) << outcome.error().message();
        EXPECT_LT(std::chrono::steady_clock::now() - began, 2s);
        EXPECT_TRUE(one.command("GET", key(name)).get().value().is_null());
        EXPECT_EQ(one.command("GET", lease).get().value().is_null(), !leased || load_lease != 0ms);
        EXPECT_EQ(got(*cache), "(absent)/l2");
        ASSERT_TRUE(one.command("DEL", lease).get());
      }
      EXPECT_EQ(cache->stats().flushes, 0U) << "the node of the slot still tells";
    }
  }
}

/// As before, when the slot itself has moved and the tracking connection has not noticed yet.
TEST_F(CacheCluster, ARowOfASlotThatHasMovedIsInvalidated) {
  start();
  const Client one = open();
  const std::string name = name_on(0);
  ByteCache cache = table(one, name, Coherence::tracking);
  EXPECT_EQ(got(cache), "(absent)/l2");
  ASSERT_TRUE(cluster_->move_slot(slot_of(name), 1));
  ASSERT_EQ(asked(1, {"SET", key(name), std::string(version(1).text()) + "row"}), "OK");
  const auto outcome = cache.invalidate(kUser).get();
  EXPECT_TRUE(outcome) << outcome.error().message();
  EXPECT_TRUE(one.command("GET", key(name)).get().value().is_null());
  EXPECT_TRUE(eventually([&] { return cache.serving() && listeners(1, ":tracking") == 1; }));
}

/// What a table wrote where its row had gone to stayed in its L1, and nobody told of the next change there.
TEST_F(CacheCluster, TrackingKeepsNothingThatWasWrittenWhereItDoesNotHear) {
  start();
  const Client one = open();
  const std::string name = name_on(0);
  std::atomic<int> loads{0};
  std::atomic<bool> held{true};
  auto opened = ByteCache::open(
      one, {.table = CacheName::parse(name).value(), .kind = "USR", .ttl = 60s, .coherence = Coherence::tracking},
      [&](const BrandedId&) -> Result<std::optional<Loaded<std::string>>> {
        ++loads;
        while (held)
          std::this_thread::sleep_for(1ms);
        return Loaded<std::string>{"loaded", version(1)};
      });
  ASSERT_TRUE(opened);
  const ByteCache& cache = *opened;
  auto loaded = cache.get(kUser);
  ASSERT_TRUE(eventually([&] { return loads == 1; }));
  depart(name);
  held = false;
  EXPECT_EQ(loaded.get()->value, "loaded");
  EXPECT_EQ(cache.stats().l2_write_errors, 0U);
  EXPECT_EQ(one.command("GET", key(name)).get().value().as_text(), std::string(version(1).text()) + "loaded");
  EXPECT_FALSE(holds(cache)) << "a fill";
  EXPECT_EQ(cache.put(kUser, "put", version(2)).get().value(), CachePut::stored);
  EXPECT_FALSE(holds(cache)) << "a put";
  EXPECT_EQ(got(cache), "put/l2");
  ASSERT_TRUE(one.command("SET", key(name), std::string(version(3).text()) + "another's").get());
  EXPECT_EQ(got(cache), "another's/l2");
  EXPECT_EQ(cache.stats().flushes, 0U);
  // A row that is where it was, or that comes to be there, is kept as ever once all is settled.
  ASSERT_TRUE(cluster_->move_slot(slot_of(name), 1));
  EXPECT_EQ(got(cache), "another's/l2");
  EXPECT_TRUE(eventually([&] { return cache.serving() && listeners(1, ":tracking") == 1; }));
  EXPECT_EQ(cache.put(kUser, "put", version(4)).get().value(), CachePut::stored);
  EXPECT_TRUE(eventually([&] { return got(cache) == "put/hit"; }));
}

TEST_F(CacheCluster, ALoadIsSharedOnAnyNode) {
  start();
  const Client one = open();
  const Client two = open();
  for (std::size_t node = 0; node < 3; ++node) {
    SCOPED_TRACE(node);
    std::atomic<int> loads{0};
    std::atomic<bool> held{true};
    const LoadBytes load = [&](const BrandedId&) -> Result<std::optional<Loaded<std::string>>> {
      ++loads;
      while (held)
        std::this_thread::sleep_for(1ms);
      return Loaded<std::string>{"one", std::nullopt};
    };
    const CacheOptions with = {
        .table = CacheName::parse(name_on(node)).value(), .kind = "USR", .ttl = 60s, .load_lease = 60s};
    auto first = ByteCache::open(one, with, load);
    auto second = ByteCache::open(two, with, load);
    ASSERT_TRUE(first && second);
    auto loaded = first->get(kUser);
    ASSERT_TRUE(eventually([&] { return loads == 1; }));
    auto waits = second->get(kUser);
    EXPECT_TRUE(eventually([&] { return second->stats().load_waits == 1; }));
    held = false;
    EXPECT_EQ(loaded.get()->value, "one");
    // Told across nodes, for nobody looks by himself within a lease of a minute.
    EXPECT_EQ(waits.get()->from, CacheFrom::l2);
    EXPECT_EQ(loads, 1);
  }
}

TEST_F(CacheCluster, ATagIsDroppedOnAnyNode) {
  start();
  const Client one = open();
  const Client two = open();
  for (const Coherence coherence : {Coherence::broadcast, Coherence::tracking}) {
    for (std::size_t node = 0; node < 3; ++node) {
      SCOPED_TRACE(node);
      const CacheOptions with = {.table = CacheName::parse(name_on(node)).value(),
                                 .kind = "USR",
                                 .ttl = 60s,
                                 .coherence = coherence,
                                 .tags = true};
      auto first = ByteCache::open(one, with);
      auto second = ByteCache::open(two, with);
      ASSERT_TRUE(first && second);
      ASSERT_EQ(first->put(kUser, "v", {.tags = {"red"}}).get().value(), CachePut::stored);
      EXPECT_TRUE(eventually([&] { return got(*second) == "v/hit"; }));
      EXPECT_EQ(first->invalidate_tag("red").get().value(), 1U);
      EXPECT_FALSE(holds(*first));
      EXPECT_TRUE(eventually([&] { return !holds(*second); }));
      EXPECT_EQ(got(*second), "(absent)/l2");
    }
  }
}

/// Two played nodes; the map gives the first all slots.
class CachePlayedNodes : public ::testing::Test {
 protected:
  using Words = PlayedNode::Words;

  CachePlayedNodes() {
    const auto map = [this] {
      return "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n" + bulk("127.0.0.1") + ":" + std::to_string(first_.port()) + "\r\n" +
             bulk("id");
    };
    const auto play = [this](const Words& words, const PlayedNode& other) -> std::optional<std::string> {
      if (words.size() < 2 || words[1] != kKey)
        return "+OK\r\n";
      ++asked_;
      if (disagree_)
        return "-MOVED " + std::to_string(keyspace::slot("t")) + " " + other.address() + "\r\n";
      const std::string version(BrandedId::encode("EVT", 1).value().text());
      if (words[0] == "GETRANGE")
        return bulk(version);
      return words[0] == "PTTL" ? ":60000\r\n" : bulk(version + "row");
    };
    first_.begin([this, play](const Words& words) { return play(words, second_); }, map);
    second_.begin([this, play](const Words& words) { return play(words, first_); }, map);
  }

  static constexpr const char* kKey = "ecc:{t}:USR0NgWEfAE00A";
  // Before the nodes, which use them to their end.
  std::atomic<bool> disagree_{true};
  std::atomic<int> asked_{0};
  PlayedNode first_;
  PlayedNode second_;
};

/// Nodes that send a read to each other: it ends with its deadline, as an outage, and the table is well when they agree.
TEST_F(CachePlayedNodes, ARowThatNoNodeServesIsAnOutage) {
  auto client =
      Client::open("valkey+cluster://" + first_.address() + "," + second_.address(), {.node_lease = NodeLease::never});
  ASSERT_TRUE(client) << client.error().message();
  for (const Coherence coherence : {Coherence::none, Coherence::tracking}) {
    for (const CacheOutage outage : {CacheOutage::load, CacheOutage::fail}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(coherence) << static_cast<int>(outage));
      disagree_ = true;
      asked_ = 0;
      std::atomic<int> loads{0};
      auto cache = ByteCache::open(
          *client,
          {.table = "t", .kind = "USR", .ttl = 60s, .coherence = coherence, .l2_deadline = 300ms, .outage = outage},
          [&](const BrandedId&) -> Result<std::optional<Loaded<std::string>>> {
            ++loads;
            return Loaded<std::string>{"loaded", BrandedId::encode("EVT", 2).value()};
          });
      ASSERT_TRUE(cache) << cache.error().message();
      const auto began = std::chrono::steady_clock::now();
      const auto answer = cache->get(kUser).get();
      EXPECT_LT(std::chrono::steady_clock::now() - began, 3s);
      if (outage == CacheOutage::load) {
        ASSERT_TRUE(answer) << answer.error().message();
        EXPECT_EQ(answer->value, "loaded");
        EXPECT_EQ(cache->stats().outages, 1U);
      } else {
        ASSERT_FALSE(answer);
        EXPECT_TRUE(answer.error().is(Errc::moved) || answer.error().is(Errc::timeout)) << answer.error().message();
      }
      EXPECT_EQ(loads, outage == CacheOutage::load ? 1 : 0);
      EXPECT_LT(asked_, 1000);
      disagree_ = false;
      cache->flush();
      EXPECT_TRUE(eventually([&] { return cache->serving(); }));
      // What was loaded is newer than the row, so with a loader that is not believed.
      const std::string newest = outage == CacheOutage::load ? "loaded" : "row";
      EXPECT_TRUE(eventually([&] {
        const auto later = cache->get(kUser).get();
        return later && later->value == newest;
      }));
    }
  }
}

}  // namespace
}  // namespace echomq::test
