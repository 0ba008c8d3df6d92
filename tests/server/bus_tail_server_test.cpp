// `Tail`: records as they come, over few connections, through lost connections and broken keys.
#include "echomq/tail.hpp"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>

#include "bus_fixture.hpp"
#include "support/bounds.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;

/// What a tail has seen.
class Seen {
 public:
  [[nodiscard]] TailHandler handler() {
    return [this](const TailMessage& message) {
      const std::lock_guard lock(mutex_);
      values_.push_back(*message.record.find("k"));
      changed_.notify_all();
    };
  }
  [[nodiscard]] std::vector<std::string> wait(std::size_t count, std::chrono::milliseconds limit = 10s) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, limit, [&] { return values_.size() >= count; });
    return values_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> values_;  // guarded by mutex_
};

class BusTail : public BusServerTest {
 protected:
  /// Connections of clients, those of the test's own looks included.
  [[nodiscard]] std::int64_t connections() {
    const std::string info(raw("INFO", "clients").as_text().value_or(""));
    const auto at = info.find("connected_clients:");
    return std::stoll(info.substr(at + 18));
  }
  [[nodiscard]] std::int64_t commands() {
    const std::string info(raw("INFO", "stats").as_text().value_or(""));
    const auto at = info.find("total_commands_processed:");
    return std::stoll(info.substr(at + 25));
  }
  [[nodiscard]] static bool soon(const std::function<bool()>& condition) {
    for (const auto until = std::chrono::steady_clock::now() + 10s; std::chrono::steady_clock::now() < until;) {
      if (condition())
        return true;
      std::this_thread::sleep_for(2ms);
    }
    return condition();
  }
  [[nodiscard]] Stream named(int number) {
    return client().stream("q", *StreamName::parse("s" + std::to_string(number)));
  }
};

TEST_F(BusTail, BeginsWhereItIsTold) {
  append("old 1");
  std::this_thread::sleep_for(20ms);  // ids of records close together may be of one millisecond
  const EventId second = append("old 2");
  Seen latest;
  Seen head;
  Seen behind;
  Seen since;
  auto a = Tail::start(stream(), latest.handler());
  auto b = Tail::start(stream(), head.handler(), "0");
  auto c = Tail::start(stream(), behind.handler(), std::string(second.entry_id().text()));
  auto d = Tail::start(stream(), since.handler(), *position_before(second.minted_at()));
  ASSERT_TRUE(a && b && c && d);
  append("new");
  EXPECT_THAT(latest.wait(1), ElementsAre("new"));
  EXPECT_THAT(head.wait(3), ElementsAre("old 1", "old 2", "new"));
  EXPECT_THAT(behind.wait(1), ElementsAre("new"));
  EXPECT_THAT(since.wait(2), ElementsAre("old 2", "new"));
  // Told after the handler has returned.
  const std::string top = stream().info().get().value().top;
  EXPECT_TRUE(soon([&] { return a->position() == top && b->position() == top && c->position() == top; }));
  EXPECT_EQ(a->stats().records, 1U);
  EXPECT_TRUE(Tail::start(stream(), {}).error().is(Errc::invalid_argument));
  EXPECT_FALSE(Tail::start(stream(), head.handler(), "soon"));
}

TEST_F(BusTail, AStreamThatDoesNotExistYet) {
  Seen seen;
  auto tail = Tail::start(stream(), seen.handler());
  ASSERT_TRUE(tail);
  append("first");
  EXPECT_THAT(seen.wait(1), ElementsAre("first"));
}

TEST_F(BusTail, AReaderThatIsBehindCatchesUpWithTheOthers) {
  Seen live;
  auto running = Tail::start(stream(), live.handler());
  ASSERT_TRUE(running);
  std::vector<Reply<EventId>> sent;
  const auto write = [&](int from, int to) {
    for (int i = from; i < to; ++i) {
      const One one(std::to_string(i));
      sent.push_back(stream().append(one.fields()));
    }
  };
  write(0, 3000);
  ASSERT_EQ(live.wait(3000).size(), 3000U);
  Seen late;
  std::thread writer([&] { write(3000, 9000); });
  auto behind = Tail::start(stream(), late.handler(), "0");
  ASSERT_TRUE(behind);
  writer.join();
  const auto values = late.wait(9000);
  ASSERT_EQ(values.size(), 9000U);
  for (int i = 0; i < 9000; ++i)
    ASSERT_EQ(values[static_cast<std::size_t>(i)], std::to_string(i));
  EXPECT_EQ(live.wait(9000), values);
  for (auto& one : sent)
    ASSERT_TRUE(one.get());
}

TEST_F(BusTail, OneThatStopsHearsNothingMore) {
  Seen kept;
  std::atomic<int> heard = 0;
  auto keeps = Tail::start(stream(), kept.handler());
  auto stops = Tail::start(stream(), [&](const TailMessage&) { ++heard; });
  ASSERT_TRUE(keeps && stops);
  append("1");
  ASSERT_EQ(kept.wait(1).size(), 1U);
  stops->stop();
  const int before = heard;
  append("2");
  ASSERT_EQ(kept.wait(2).size(), 2U);
  EXPECT_EQ(heard, before);
  // From its own handler, and destroyed there.
  std::optional<Tail> own;
  std::atomic<int> last = 0;
  std::mutex mutex;
  {
    const std::lock_guard lock(mutex);
    auto started = Tail::start(stream(), [&](const TailMessage&) {
      const std::lock_guard inner(mutex);
      ++last;
      own.reset();
    });
    ASSERT_TRUE(started);
    own.emplace(*std::move(started));
  }
  append("3");
  append("4");
  ASSERT_EQ(kept.wait(4).size(), 4U);
  // Its turn may come after that of the others.
  for (int i = 0; i < 3000 && last == 0; ++i)
    std::this_thread::sleep_for(5ms);
  append("5");
  ASSERT_EQ(kept.wait(5).size(), 5U);
  EXPECT_EQ(last, 1);
}

TEST_F(BusTail, ALostConnectionLosesNothing) {
  Seen seen;
  auto tail = Tail::start(stream(), seen.handler());
  ASSERT_TRUE(tail);
  constexpr int kRecords = 600;
  std::thread writer([&] {
    for (int i = 0; i < kRecords; ++i) {
      append(std::to_string(i));
      std::this_thread::sleep_for(1ms);
    }
  });
  Client other = open({.name = "killer"});
  for (int i = 0; i < 10; ++i) {
    std::this_thread::sleep_for(50ms);
    ASSERT_TRUE(other.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").get());
  }
  writer.join();
  const auto values = seen.wait(kRecords);
  ASSERT_EQ(values.size(), std::size_t{kRecords});
  for (int i = 0; i < kRecords; ++i)
    ASSERT_EQ(values[static_cast<std::size_t>(i)], std::to_string(i));
}

TEST_F(BusTail, AKeyThatIsNoStreamAnyMoreDoesNotHoldTheOthersUp) {
  Seen good;
  Seen bad;
  std::atomic<int> errors = 0;
  const Stream other = client().stream("q", "other");
  TailOptions options;
  options.on_error = [&](const Stream& stream, const Error& why) {
    EXPECT_EQ(stream.name(), "other");
    EXPECT_TRUE(why.is(Errc::server_error));
    ++errors;
  };
  auto follows = Tail::start(stream(), good.handler());
  auto breaks = Tail::start(other, bad.handler(), "0", std::move(options));
  ASSERT_TRUE(follows && breaks);
  append(other, "1");
  ASSERT_EQ(bad.wait(1).size(), 1U);
  raw("DEL", "emq:{q}:stream:other");
  raw("SET", "emq:{q}:stream:other", "no stream");
  append("1");
  EXPECT_THAT(good.wait(1), ElementsAre("1"));
  append("2");
  EXPECT_THAT(good.wait(2), ElementsAre("1", "2"));
  for (int i = 0; i < 2000 && errors == 0; ++i)
    std::this_thread::sleep_for(10ms);
  EXPECT_EQ(errors, 1);
  raw("DEL", "emq:{q}:stream:other");
  append(other, "2");
  EXPECT_THAT(bad.wait(2), ElementsAre("1", "2"));
  EXPECT_EQ(errors, 1);
  // From the start it is refused.
  raw("DEL", "emq:{q}:stream:other");
  raw("SET", "emq:{q}:stream:other", "no stream");
  EXPECT_TRUE(Tail::start(other, bad.handler()).error().is(Errc::server_error));
}

TEST_F(BusTail, AnExceptionIsCountedAndAClosedClientIsTold) {
  Client closing = open();
  std::atomic<int> calls = 0;
  std::atomic<int> told = 0;
  TailOptions options;
  options.on_error = [&](const Stream&, const Error& why) { told += why.is(Errc::client_closed) ? 1 : 0; };
  auto tail = Tail::start(
      closing.stream("q", "s"),
      [&](const TailMessage&) {
        ++calls;
        throw std::runtime_error("no");
      },
      {}, std::move(options));
  ASSERT_TRUE(tail);
  append("1");
  append("2");
  const auto until = std::chrono::steady_clock::now() + 10s;
  while (calls < 2 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(1ms);
  // A handler's exception is counted once it has left it.
  EXPECT_TRUE(soon([&] { return tail->stats().handler_errors == 2; })) << tail->stats().handler_errors;
  closing.close();
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(soon([&] { return told == 1; })) << told;
}

TEST_F(BusTail, AClientThatMayNotUnblockFollowsAllTheSame) {
  raw("ACL", "SETUSER", "default", "-client|unblock");
  Seen first;
  Seen second;
  auto a = Tail::start(stream(), first.handler());
  ASSERT_TRUE(a);
  std::this_thread::sleep_for(50ms);
  auto b = Tail::start(client().stream("q", "other"), second.handler());
  ASSERT_TRUE(b);
  append(client().stream("q", "other"), "1");
  EXPECT_THAT(second.wait(1), ElementsAre("1"));
  auto c = Tail::start(client().stream("q", "third"), first.handler());
  ASSERT_TRUE(c);
  const auto begin = std::chrono::steady_clock::now();
  append(client().stream("q", "third"), "2");
  EXPECT_THAT(first.wait(1), ElementsAre("2"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, bound(2s));
}

// 10,000 readers of one process: each has each record once and in order, over two connections; and what was written while all
// connections were cut.
TEST_F(BusTail, TenThousandReadersShareAConnection) {
  constexpr int kStreams = 500;
  constexpr int kReaders = 20;  // of each
  constexpr int kRounds = 6;
  struct Reader {
    std::atomic<int> next = 0;
    std::atomic<int> wrong = 0;
  };
  std::vector<Reader> readers(std::size_t{kStreams} * kReaders);
  Client process = open({.name = "readers"});
  std::atomic<std::int64_t> total = 0;
  std::vector<Tail> tails;
  tails.reserve(readers.size());
  const std::int64_t before = connections();
  for (std::size_t i = 0; i < readers.size(); ++i) {
    auto* const reader = &readers[i];
    auto tail = Tail::start(process.stream("q", *StreamName::parse("s" + std::to_string(i % kStreams))),
                            [reader, &total](const TailMessage& message) {
                              const int value = std::stoi(*message.record.find("k"));
                              reader->wrong += value == reader->next ? 0 : 1;
                              reader->next = value + 1;
                              ++total;
                            });
    ASSERT_TRUE(tail) << tail.error().message();
    tails.push_back(*std::move(tail));
  }
  const auto all_have = [&](int rounds) {
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (total < std::int64_t{rounds} * kStreams * kReaders && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(2ms);
    return total == std::int64_t{rounds} * kStreams * kReaders;
  };
  const auto write_round = [&](int round) {
    std::vector<Reply<EventId>> sent;
    for (int i = 0; i < kStreams; ++i) {
      const One one(std::to_string(round));
      sent.push_back(named(i).append(one.fields()));
    }
    for (auto& one : sent)
      ASSERT_TRUE(one.get());
  };
  for (int round = 0; round < kRounds / 2; ++round)
    write_round(round);
  EXPECT_TRUE(all_have(kRounds / 2)) << total;
  EXPECT_LE(connections() - before, 1) << "the readers share one";
  // Idle: the server has next to nothing to do for them.
  const std::int64_t commands_before = commands();
  std::this_thread::sleep_for(3s);
  EXPECT_LE(commands() - commands_before, 12);
  RecordProperty("idle_commands_in_3s", static_cast<int>(commands() - commands_before));
  raw("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
  for (int round = kRounds / 2; round < kRounds; ++round)
    write_round(round);
  EXPECT_TRUE(all_have(kRounds)) << total;
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(total, std::int64_t{kRounds} * kStreams * kReaders);
  for (const Reader& reader : readers) {
    ASSERT_EQ(reader.next, kRounds);
    ASSERT_EQ(reader.wrong, 0);
  }
}

}  // namespace
}  // namespace echomq::test
