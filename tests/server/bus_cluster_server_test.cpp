// Streams and the log of a queue in a cluster: who waits on the server goes where the slot is, and hears at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/core.hpp"
#include "echomq/client.hpp"
#include "echomq/event_log.hpp"
#include "echomq/group_consumer.hpp"
#include "echomq/queue.hpp"
#include "echomq/stream.hpp"
#include "echomq/tail.hpp"
#include "echomq/testing/private_cluster.hpp"
#include "keyspace/slot.hpp"
#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

using Clock = std::chrono::steady_clock;
using testing::PrivateCluster;

const std::string kStreamKey = "emq:{q}:stream:s";
constexpr std::uint16_t kSlot = keyspace::slot("emq:{q}:stream:s");

/// Values that were handled, and how often.
class Sink {
 public:
  [[nodiscard]] StreamHandler handler() {
    return [this](const StreamMessage& message) {
      const std::lock_guard lock(mutex_);
      const std::string* value = message.record.find("k");
      ++times_[value != nullptr ? *value : "(none)"];
      return Handled::done;
    };
  }
  [[nodiscard]] std::map<std::string, int> times() const {
    const std::lock_guard lock(mutex_);
    return times_;
  }
  [[nodiscard]] std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return times_.size();
  }
  [[nodiscard]] bool has(const std::string& value) const {
    const std::lock_guard lock(mutex_);
    return times_.contains(value);
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, int> times_;
};

class BusCluster : public ::testing::Test {
 protected:
  void start_cluster(testing::PrivateClusterOptions options = {}) {
    auto started = PrivateCluster::start(std::move(options));
    ASSERT_TRUE(started) << started.error().message();
    cluster_.emplace(*std::move(started));
    owner_ = cluster_->owner_of(kSlot);
    auto opened = Client::open(cluster_->url());
    ASSERT_TRUE(opened) << opened.error().message();
    client_.emplace(*std::move(opened));
  }
  [[nodiscard]] Stream stream() { return client_->stream(QueueName{"q"}, StreamName{"s"}); }
  [[nodiscard]] GroupConsumer consume(Sink& handled, const std::string& name, GroupConsumerOptions options = {}) {
    options.start = GroupStart::head;
    auto group = stream().group("g").value();
    auto consumer = GroupConsumer::start(group, name, handled.handler(), std::move(options));
    EXPECT_TRUE(consumer) << consumer.error().message();
    return *std::move(consumer);
  }
  /// Until it stands.
  void append(const std::string& value, const Stream& to) {
    const Field field{"k", value};
    const auto until = Clock::now() + 20s;
    Result<EventId> appended = fail(Errc::timeout, "not tried");
    while (!(appended = to.append({&field, 1}).get()) && Clock::now() < until)
      std::this_thread::sleep_for(20ms);
    EXPECT_TRUE(appended) << appended.error().message();
  }
  void append(const std::string& value) { append(value, stream()); }

  /// Gives the slot with what is in it to another node; `on_the_way` runs when the keys have gone, and not the slot.
  void migrate(std::size_t to, const std::function<void()>& on_the_way = {}) {
    const auto ask = [&](std::size_t node, const std::vector<std::string>& words) {
      const auto answer = cluster_->ask(node, words);
      EXPECT_TRUE(answer) << words[0] << ' ' << words[1] << ": " << answer.error().message();
      return answer ? *answer : std::string();
    };
    const std::string from_id = ask(owner_, {"CLUSTER", "MYID"}), to_id = ask(to, {"CLUSTER", "MYID"});
    const std::string slot = std::to_string(kSlot);
    ask(to, {"CLUSTER", "SETSLOT", slot, "IMPORTING", from_id});
    ask(owner_, {"CLUSTER", "SETSLOT", slot, "MIGRATING", to_id});
    for (const char* suffix : {"stream:s", "stream:s:dead", "log", "logging", "meta"})
      ask(owner_, {"MIGRATE", "127.0.0.1", std::to_string(cluster_->node(to).port()), "emq:{q}:" + std::string(suffix),
                   "0", "5000"});
    if (on_the_way)
      on_the_way();
    const auto moved = cluster_->move_slot(kSlot, to);
    ASSERT_TRUE(moved) << moved.error().message();
    owner_ = to;
  }
  /// Beside calls whose keys are divided, which hold up what comes behind them, or without.
  void append_while_it_goes(bool divided);
  [[nodiscard]] std::int64_t commands_of(std::size_t node) {
    const std::string stats = cluster_->ask(node, {"INFO", "stats"}).value();
    return std::stoll(stats.substr(stats.find("total_commands_processed:") + 25));
  }
  /// Connections that wait on a node.
  [[nodiscard]] std::int64_t blocked_on(std::size_t node) {
    const std::string info = cluster_->ask(node, {"INFO", "clients"}).value();
    return std::stoll(info.substr(info.find("blocked_clients:") + 16));
  }

  std::optional<PrivateCluster> cluster_;
  std::optional<Client> client_;
  std::size_t owner_ = 0;
};

TEST_F(BusCluster, AConsumerWaitsOnTheServer) {
  start_cluster();
  Sink handled;
  append("first");
  std::vector<GroupConsumer> consumers;
  for (int i = 0; i < 4; ++i)
    consumers.push_back(consume(handled, "c" + std::to_string(i)));
  ASSERT_TRUE(eventually([&] { return handled.size() == 1 && blocked_on(owner_) == 4; }));
  const std::int64_t before = commands_of(owner_);
  std::this_thread::sleep_for(5s);
  const double rate = static_cast<double>(commands_of(owner_) - before - 1) / 5 / 4;
  std::printf("%.2f commands/s a consumer\n", rate);
  EXPECT_LT(rate, 3);
  // What comes is there long before the next look.
  std::vector<Milliseconds> waits;
  for (int i = 0; i < 20; ++i) {
    const std::string value = "v" + std::to_string(i);
    const auto sent = Clock::now();
    append(value);
    ASSERT_TRUE(eventually([&] { return handled.has(value); }));
    waits.push_back(std::chrono::duration_cast<Milliseconds>(Clock::now() - sent));
  }
  std::sort(waits.begin(), waits.end());
  std::printf("picked up after %lld ms (median), %lld (longest)\n", static_cast<long long>(waits[10].count()),
              static_cast<long long>(waits.back().count()));
  EXPECT_LT(waits[10], bound(50ms));
}

// Each time all that was appended is handled, and a consumer that waits is there within two seconds of the move.
TEST_F(BusCluster, AConsumerFollowsASlotThatMovesWhileItReads) {
  start_cluster();
  Sink handled;
  append("first");
  GroupConsumer consumer = consume(handled, "c", {.min_idle = 3s});
  ASSERT_TRUE(eventually([&] { return handled.size() == 1; }));
  std::atomic<bool> stop{false};
  std::atomic<int> appended{0};
  std::thread writer([&] {
    while (!stop) {
      append("v" + std::to_string(appended.load()));
      appended.fetch_add(1);
      std::this_thread::sleep_for(2ms);
    }
  });
  for (int round = 0; round < 6; ++round) {
    std::this_thread::sleep_for(200ms);
    migrate((owner_ + 1) % cluster_->size());
  }
  std::this_thread::sleep_for(200ms);
  stop = true;
  writer.join();
  const int all = appended.load();
  EXPECT_TRUE(eventually([&] { return handled.size() == static_cast<std::size_t>(all) + 1; }, 30s))
      << handled.size() << " of " << all;
  std::printf("%d records over 6 moves, %llu errors of the loop\n", all,
              static_cast<unsigned long long>(consumer.stats().errors));

  // One that waits is told by the node that gives the slot away; it goes on at the other.
  ASSERT_TRUE(eventually([&] { return blocked_on(owner_) == 1; }));
  migrate((owner_ + 1) % cluster_->size());
  EXPECT_TRUE(eventually([&] { return blocked_on(owner_) == 1; }, 2s));
  const auto sent = Clock::now();
  append("last");
  EXPECT_TRUE(eventually([&] { return handled.has("last"); }, 2s));
  std::printf("first record after a move: %lld ms\n", static_cast<long long>(since(sent).count()));
  EXPECT_EQ(consumer.stats().groups_made, 1U);
}

// A tail has each record once and in order, and no gap, over moves of its slot while it is written, with the keys at the other node
// for a while before the slot is.
TEST_F(BusCluster, ATailFollowsASlotThatMovesWhileItIsWritten) {
  start_cluster();
  append("first");
  std::mutex mutex;
  std::vector<int> heard;
  auto tail = Tail::start(stream(), [&](const TailMessage& message) {
    const std::lock_guard lock(mutex);
    heard.push_back(std::stoi(*message.record.find("k")));
  });
  ASSERT_TRUE(tail) << tail.error().message();
  const auto heard_of = [&] {
    const std::lock_guard lock(mutex);
    return heard.size();
  };
  std::atomic<bool> stop{false};
  std::atomic<std::size_t> sent{0};
  std::thread writer([&] {
    while (!stop) {
      append(std::to_string(sent.load()));
      sent.fetch_add(1);
      std::this_thread::sleep_for(1ms);
    }
  });
  for (int round = 0; round < 6; ++round) {
    std::this_thread::sleep_for(200ms);
    migrate((owner_ + 1) % cluster_->size(), [] { std::this_thread::sleep_for(30ms); });
  }
  std::this_thread::sleep_for(200ms);
  stop = true;
  writer.join();
  EXPECT_TRUE(eventually([&] { return heard_of() >= sent; }, 20s)) << heard_of() << " of " << sent;
  const auto moved = Clock::now();
  append(std::to_string(sent.load()));
  EXPECT_TRUE(eventually([&] { return heard_of() > sent; }, 5s));
  std::printf("%zu records over 6 moves; the next one after %lld ms\n", sent.load(),
              static_cast<long long>(since(moved).count()));
  const std::lock_guard lock(mutex);
  ASSERT_EQ(heard.size(), sent + 1);
  for (std::size_t i = 0; i < heard.size(); ++i)
    ASSERT_EQ(heard[i], static_cast<int>(i));
  EXPECT_EQ(tail->stats().gaps, 0U);
}

// While the keys are at the other node and the slot is not: appends stand, and are read, at their first try.
TEST_F(BusCluster, RecordsAreAppendedAndReadWhileTheSlotIsOnItsWay) {
  start_cluster();
  Sink handled;
  append("first");
  GroupConsumer consumer = consume(handled, "c");
  std::mutex mutex;
  std::set<std::string> heard;
  auto tail = Tail::start(stream(), [&](const TailMessage& message) {
    const std::lock_guard lock(mutex);
    heard.insert(*message.record.find("k"));
  });
  ASSERT_TRUE(tail) << tail.error().message();
  const auto hears = [&](const std::string& value) {
    const std::lock_guard lock(mutex);
    return heard.contains(value);
  };
  ASSERT_TRUE(eventually([&] { return handled.has("first") && blocked_on(owner_) == 2; }));
  migrate((owner_ + 1) % cluster_->size(), [&] {
    for (int i = 0; i < 20; ++i) {
      const std::string value = "on its way " + std::to_string(i);
      const Field field{"k", value};
      const auto appended = stream().append({&field, 1}).get();
      ASSERT_TRUE(appended) << appended.error().message();
      EXPECT_TRUE(eventually([&] { return handled.has(value); }, 3s)) << value;
      EXPECT_TRUE(eventually([&] { return hears(value); }, 3s)) << value;
    }
  });
  append("last");
  EXPECT_TRUE(eventually([&] { return handled.has("last") && hears("last"); }, 3s));
  for (const auto& [value, times] : handled.times())
    EXPECT_EQ(times, 1) << value;
  EXPECT_EQ(consumer.stats().groups_made, 1U);
  EXPECT_EQ(tail->stats().gaps, 0U);
}

// One of them does not exist at first: the server counts it as gone, and would refuse to read it together with the other.
TEST_F(BusCluster, TailsOfSeveralStreamsReadOnWhileTheirSlotIsOnItsWay) {
  start_cluster();
  const Stream other = client_->stream(QueueName{"q"}, StreamName{"t"});
  append("first");
  std::mutex mutex;
  std::multiset<std::string> heard;
  const auto handler = [&](const TailMessage& message) {
    const std::lock_guard lock(mutex);
    heard.insert(*message.record.find("k"));
  };
  const auto hears = [&](const std::string& value) {
    const std::lock_guard lock(mutex);
    return heard.contains(value);
  };
  auto tail = Tail::start(stream(), handler);
  auto beside = Tail::start(other, handler);
  ASSERT_TRUE(tail && beside);
  ASSERT_TRUE(eventually([&] { return blocked_on(owner_) == 1; }));
  append("here");
  ASSERT_TRUE(eventually([&] { return hears("here"); }));
  migrate((owner_ + 1) % cluster_->size(), [&] {
    for (int i = 0; i < 5; ++i) {
      append("s" + std::to_string(i));
      EXPECT_TRUE(eventually([&] { return hears("s" + std::to_string(i)); }, 3s)) << i;
    }
    for (int i = 0; i < 5; ++i) {
      append("t" + std::to_string(i), other);
      EXPECT_TRUE(eventually([&] { return hears("t" + std::to_string(i)); }, 3s)) << i;
    }
    EXPECT_EQ(cluster_->ask(owner_, {"CLUSTER", "COUNTKEYSINSLOT", std::to_string(kSlot)}), "0");
  });
  append("last");
  append("last of t", other);
  EXPECT_TRUE(eventually([&] { return hears("last") && hears("last of t"); }, 3s));
  const std::lock_guard lock(mutex);
  EXPECT_EQ(heard.size(), 13U) << "each once";
  EXPECT_EQ(tail->stats().gaps + beside->stats().gaps, 0U);
}

// Appends that are under way when their stream goes, and when its slot goes: all stand, once, in their order, at their first try.
void BusCluster::append_while_it_goes(bool divided) {
  start_cluster();
  append("first");
  ASSERT_TRUE(client_->command("MSET", "{q}1", "x", "{q}2", "x").get());
  std::atomic<bool> stop_reading{false};
  std::thread reader([&] {
    while (divided && !stop_reading) {
      const auto both = client_->command("MGET", "{q}1", "{q}2").get();
      EXPECT_TRUE(both) << both.error().message();
    }
  });
  std::vector<std::string> values;
  std::vector<Reply<EventId>> receipts;
  std::atomic<bool> stop{false};
  std::thread appender([&] {
    const Stream to = stream();
    while (!stop && values.size() < 200'000) {
      values.push_back(std::to_string(values.size()));
      const Field field{"k", values.back()};
      receipts.push_back(to.append({&field, 1}));
      if (values.size() % 100 == 0)
        std::this_thread::sleep_for(1ms);
    }
  });
  for (int round = 0; round < 6; ++round) {
    std::this_thread::sleep_for(30ms);
    const std::size_t to = (owner_ + 1) % cluster_->size();
    migrate(to, [&] {
      for (const char* key : {"{q}1", "{q}2"}) {
        std::this_thread::sleep_for(30ms);
        const auto gone = cluster_->ask(
            owner_, {"MIGRATE", "127.0.0.1", std::to_string(cluster_->node(to).port()), key, "0", "5000"});
        EXPECT_TRUE(gone) << gone.error().message();
        std::this_thread::sleep_for(30ms);
      }
    });
  }
  stop = true;
  appender.join();
  stop_reading = true;
  reader.join();
  std::vector<std::string> ids;
  std::size_t refused = 0;
  for (Reply<EventId>& receipt : receipts) {
    const auto id = receipt.get();
    if (!id && ++refused <= 3)
      ADD_FAILURE() << id.error().message() << " of " << ids.size();
    ids.emplace_back(id ? id->text() : std::string_view("refused"));
  }
  ASSERT_EQ(refused, 0U);
  std::vector<Record> records;
  for (auto page = stream().read("-", "+", {.count = 10'000}).get();;
       page = stream().read(page->rest->first, page->rest->second, {.count = 10'000}).get()) {
    ASSERT_TRUE(page) << page.error().message();
    std::move(page->records.begin(), page->records.end(), std::back_inserter(records));
    if (!page->rest)
      break;
  }
  ASSERT_EQ(records.size(), ids.size() + 1);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(records[i + 1].id->text(), ids[i]);
    ASSERT_EQ(*records[i + 1].find("k"), values[i]);
  }
  std::printf("%zu records, %llu calls redirected\n", ids.size(),
              static_cast<unsigned long long>(client_->stats().redirects));
}

TEST_F(BusCluster, AppendsFollowTheirStreamInOrder) { append_while_it_goes(false); }
TEST_F(BusCluster, AppendsKeepTheirOrderBesideCallsWhoseKeysAreDivided) { append_while_it_goes(true); }

// A promoted replica on request: nothing is lost. Then one that takes the place of a node that was killed.
TEST_F(BusCluster, AConsumerAndATailGoOnAfterAFailover) {
  start_cluster({.nodes = 3, .replicas = 1});
  const std::size_t replica = cluster_->replica_of(owner_);
  Sink handled;
  append("first");
  const EventLog log(*client_, QueueName{"q"});
  ASSERT_TRUE(log.turn_on().get());
  std::mutex mutex;
  std::set<std::string> told;
  std::atomic<int> gaps{0};
  LogTailOptions tailing;
  tailing.on_entry = [&](const LogEntry& entry, const LogCursor&) {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(told.insert(entry.id).second) << entry.id;
  };
  tailing.on_gap = [&](const LogGap&) { ++gaps; };
  auto tail = LogTail::start(log, std::move(tailing));
  ASSERT_TRUE(tail) << tail.error().message();
  GroupConsumer consumer = consume(handled, "c", {.min_idle = 2s});
  ASSERT_TRUE(eventually([&] { return handled.size() == 1 && blocked_on(owner_) == 2; }));
  const Queue queue = client_->queue("q");
  const auto enqueue = [&] {
    const auto until = Clock::now() + 20s;
    while (!queue.enqueue("x").get() && Clock::now() < until)
      std::this_thread::sleep_for(20ms);
  };
  const auto all_told = [&](std::size_t count) {
    const std::lock_guard lock(mutex);
    return told.size() == count;
  };

  enqueue();
  ASSERT_EQ(cluster_->ask(replica, {"CLUSTER", "FAILOVER"}).value_or("error"), "OK");
  ASSERT_TRUE(eventually([&] {
    const auto role = cluster_->ask(replica, {"INFO", "replication"});
    return role && role->find("role:master") != std::string::npos;
  }));
  auto moved = Clock::now();
  append("second");
  enqueue();
  EXPECT_TRUE(eventually([&] { return handled.has("second") && all_told(2); }, 20s));
  std::printf("after a failover on request: %lld ms\n", static_cast<long long>(since(moved).count()));
  EXPECT_TRUE(eventually([&] { return blocked_on(replica) == 2; }, 20s));

  // What the new primary has is with its replica before it dies.
  ASSERT_TRUE(eventually(
      [&] {
        const auto state = cluster_->ask(owner_, {"INFO", "replication"});
        return state && state->find("role:slave") != std::string::npos &&
               state->find("master_link_status:up") != std::string::npos;
      },
      20s));
  std::this_thread::sleep_for(1500ms);
  cluster_->node(replica).kill();
  moved = Clock::now();
  ASSERT_TRUE(eventually(
      [&] {
        const auto role = cluster_->ask(owner_, {"INFO", "replication"});
        return role && role->find("role:master") != std::string::npos;
      },
      30s));
  const auto elected = Clock::now();
  append("third");
  enqueue();
  EXPECT_TRUE(eventually([&] { return handled.has("third") && all_told(3); }, 20s));
  std::printf("after a killed primary: elected after %lld ms, at work %lld ms later\n",
              static_cast<long long>(std::chrono::duration_cast<Milliseconds>(elected - moved).count()),
              static_cast<long long>(since(elected).count()));
  EXPECT_TRUE(eventually([&] { return blocked_on(owner_) == 2; }, 20s));
  EXPECT_EQ(gaps.load(), 0);
  EXPECT_EQ(consumer.stats().groups_made, 1U);
}

// A client does not open connections without end.
TEST_F(BusCluster, LinesAreCountedAndGivenBack) {
  start_cluster();
  std::vector<std::unique_ptr<client::Line>> lines;
  for (std::size_t i = 0; i < client::Core::kMostLines; ++i)
    lines.push_back(client_->core()->line(static_cast<std::uint32_t>(i)));
  EXPECT_TRUE(lines.back());
  EXPECT_FALSE(client_->core()->line(0));
  // Whoever has none looks again and again, less and less often.
  Sink handled;
  append("first");
  GroupConsumer consumer = consume(handled, "c");
  ASSERT_TRUE(eventually([&] { return handled.size() == 1; }));
  std::this_thread::sleep_for(2s);
  const std::int64_t before = commands_of(owner_);
  std::this_thread::sleep_for(5s);
  const double rate = static_cast<double>(commands_of(owner_) - before - 1) / 5;
  std::printf("%.2f commands/s without a connection to wait on\n", rate);
  EXPECT_LT(rate, 3);
  append("second");
  EXPECT_TRUE(eventually([&] { return handled.has("second"); }, 3s));
  lines.pop_back();
  EXPECT_TRUE(client_->core()->line(0));
}

}  // namespace
}  // namespace echomq::test
