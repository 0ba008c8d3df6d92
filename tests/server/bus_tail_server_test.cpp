// `Tail`: records as they come, over few connections, through lost connections and broken keys.
#include "echomq/tail.hpp"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <mutex>

#include "bus_fixture.hpp"
#include "support/bounds.hpp"
#include "support/proxy.hpp"

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
  [[nodiscard]] std::int64_t calls_of(const std::string& command) {
    const std::string info(raw("INFO", "commandstats").as_text().value_or(""));
    const std::string before = "cmdstat_" + command + ":calls=";
    const auto at = info.find(before);
    return at == std::string::npos ? 0 : std::stoll(info.substr(at + before.size()));
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

// Where the others are cannot be reached by reading any more: the records up to there have gone.
TEST_F(BusTail, AReaderThatBeginsInTrimmedHistoryWaitsForWhatComes) {
  append("1");
  append("trimmed");
  Seen first;
  auto running = Tail::start(stream(), first.handler());
  ASSERT_TRUE(running);
  ASSERT_TRUE(stream().trim_to(0).get());
  Seen late;
  auto behind = Tail::start(stream(), late.handler(), "0");
  ASSERT_TRUE(behind);
  const std::int64_t before = calls_of("xrange");
  std::this_thread::sleep_for(1s);
  EXPECT_LT(calls_of("xrange") - before, 5) << "it asks again and again";
  append("2");
  EXPECT_THAT(first.wait(1), ElementsAre("2"));
  EXPECT_THAT(late.wait(1), ElementsAre("2"));
  // The newest alone is gone: what is before it is read.
  const EventId newest = append("deleted");
  ASSERT_EQ(first.wait(2).size(), 2U);
  raw("XDEL", kKey, newest.entry_id().text());
  Seen later;
  auto third = Tail::start(stream(), later.handler(), "0");
  ASSERT_TRUE(third);
  EXPECT_THAT(later.wait(1), ElementsAre("2"));
  const std::int64_t again = calls_of("xrange");
  std::this_thread::sleep_for(1s);
  EXPECT_LT(calls_of("xrange") - again, 5);
  append("3");
  EXPECT_THAT(later.wait(2), ElementsAre("2", "3"));
}

// One that was told to begin in the future keeps nothing from one that reads what comes now.
TEST_F(BusTail, AReaderIsNotTakenWhereTheStreamHasNotCome) {
  const EventId first = append("1");
  Seen future;
  auto waits = Tail::start(stream(), future.handler(), *position_before(first.minted_at() + 1h));
  ASSERT_TRUE(waits);
  Seen now;
  auto reads = Tail::start(stream(), now.handler(), "0");
  ASSERT_TRUE(reads);
  EXPECT_THAT(now.wait(1), ElementsAre("1"));
  append("2");
  EXPECT_THAT(now.wait(2), ElementsAre("1", "2"));
  const std::int64_t before = calls_of("xrange");
  std::this_thread::sleep_for(1s);
  EXPECT_LE(calls_of("xrange") - before, 5) << "it looks twice a second";
  EXPECT_TRUE(future.wait(0).empty());
}

TEST_F(BusTail, ABusyServerIsNoBrokenStream) {
  raw("CONFIG", "SET", "busy-reply-threshold", "20");
  Client other = open({.name = "other"});  // its answers wait for no handler
  const Stream same = other.stream("q", "s");
  Seen seen;
  const TailHandler keep = seen.handler();
  std::promise<void> heard;
  std::promise<void> busy;
  std::atomic<int> errors = 0;
  TailOptions options;
  options.on_error = [&](const Stream&, const Error&) { ++errors; };
  auto tail = Tail::start(
      stream(),
      [&, first = true](const TailMessage& message) mutable {
        keep(message);
        if (std::exchange(first, false)) {
          heard.set_value();
          busy.get_future().wait();
        }
      },
      {}, std::move(options));
  ASSERT_TRUE(tail);
  append(same, "1");
  // The next read is sent when the handler returns: the server has nothing but the script then.
  ASSERT_EQ(heard.get_future().wait_for(10s), std::future_status::ready);
  Client busy_one = open({.name = "busy"});
  auto script = busy_one.command("EVAL", "while true do end", "0");
  const auto until = std::chrono::steady_clock::now() + 10s;
  for (bool refused = false; !refused;) {
    ASSERT_LT(std::chrono::steady_clock::now(), until);
    const auto answer = other.command("PING").get();
    refused = !answer && answer.error().text.starts_with("BUSY");
  }
  busy.set_value();
  std::this_thread::sleep_for(700ms);
  EXPECT_TRUE(other.command("SCRIPT", "KILL").get());
  EXPECT_FALSE(script.get());
  append(same, "2");
  EXPECT_THAT(seen.wait(2), ElementsAre("1", "2"));
  EXPECT_EQ(errors, 0);
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

/// What a tail was told of gaps.
class Gaps {
 public:
  [[nodiscard]] TailOptions options() {
    TailOptions out;
    out.on_gap = [this](const Stream& stream, const TailGap& gap) {
      EXPECT_EQ(stream.name(), "s");
      const std::lock_guard lock(mutex_);
      gaps_.push_back(gap);
      changed_.notify_all();
    };
    return out;
  }
  [[nodiscard]] std::vector<TailGap> wait(std::size_t count, std::chrono::milliseconds limit = 10s) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, limit, [&] { return gaps_.size() >= count; });
    return gaps_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TailGap> gaps_;  // guarded by mutex_
};

TEST_F(BusTail, WhatWasTrimmedWhileItsHandlerWasSlowIsTold) {
  Gaps gaps;
  Seen seen;
  std::mutex busy;
  auto tail = Tail::start(
      stream(),
      [&, next = seen.handler()](const TailMessage& message) {
        next(message);
        const std::lock_guard lock(busy);
      },
      {}, gaps.options());
  ASSERT_TRUE(tail);
  std::string oldest;
  {
    const std::lock_guard lock(busy);
    append("0");
    ASSERT_EQ(seen.wait(1).size(), 1U);
    for (int i = 1; i <= 100; ++i)
      append(std::to_string(i));
    raw("XTRIM", kKey, "MAXLEN", "40");
    oldest = stream().info().get().value().first;
  }
  EXPECT_EQ(seen.wait(41).size(), 41U);
  const auto told = gaps.wait(1);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].missed, 60U);
  EXPECT_FALSE(told[0].begun_anew);
  EXPECT_EQ(told[0].until, oldest);
  EXPECT_EQ(tail->stats().gaps, 1U);
  EXPECT_EQ(tail->stats().missed, 60U);
  EXPECT_TRUE(soon([&] { return tail->stats().records == 41; }))  // counted when its handler has returned
      << tail->stats().records;
}

/// Nobody reads while the connection is lost, and nothing is left of what was written then.
TEST_F(BusTail, WhatCameAndWentWhileTheConnectionWasLostIsTold) {
  Gaps gaps;
  Seen seen;
  Client follower = open();
  auto tail = Tail::start(follower.stream("q", "s"), seen.handler(), {}, gaps.options());
  ASSERT_TRUE(tail);
  append("0");
  ASSERT_EQ(seen.wait(1).size(), 1U);
  ASSERT_TRUE(soon([&] {
    return raw("INFO", "clients").as_text().value_or("").find("blocked_clients:1\r") != std::string_view::npos;
  })) << "it does not wait";
  // All in one step of the server, so that nothing is left to be read.
  raw("EVAL",
      "for i = 1, 7 do redis.call('XADD', KEYS[1], '*', 'k', i) end return redis.call('XTRIM', KEYS[1], 'MAXLEN', 0)",
      "1", kKey);
  raw("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
  const auto told = gaps.wait(1);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].missed, 7U);
  append("1");
  EXPECT_THAT(seen.wait(2), ElementsAre("0", "1"));
  std::this_thread::sleep_for(1200ms);
  append("2");
  EXPECT_EQ(seen.wait(3).size(), 3U);
  EXPECT_EQ(tail->stats().gaps, 1U) << "told once";
}

/// The connection is lost while nothing waits on it, and what came meanwhile has gone: no read fails and none finds anything.
TEST_F(BusTail, WhatCameAndWentWhileTheConnectionWasLostBetweenTwoReadsIsTold) {
  Proxy proxy(server().url());
  Gaps gaps;
  Seen seen;
  Client follower = Client::open(proxy.url()).value();
  std::promise<void> looked;
  std::promise<void> go_on;
  const std::shared_future<void> may_go_on = go_on.get_future().share();
  auto tail = Tail::start(
      follower.stream("q", "s"),
      [&, next = seen.handler(), first = true](const TailMessage& message) mutable {
        next(message);
        if (!std::exchange(first, false))
          return;
        // Its answer comes before that of the look which follows the handler, and keeps the next read back.
        follower.command("PING").then([&](const Result<Value>&) {
          looked.set_value();
          may_go_on.wait();
        });
      },
      {}, gaps.options());
  ASSERT_TRUE(tail);
  ASSERT_TRUE(soon([&] {
    return raw("INFO", "clients").as_text().value_or("").find("blocked_clients:1\r") != std::string_view::npos;
  })) << "it does not wait";
  const std::int64_t looks = calls_of("xinfo|stream");
  append("0");
  ASSERT_EQ(looked.get_future().wait_for(10s), std::future_status::ready);
  ASSERT_TRUE(soon([&] { return calls_of("xinfo|stream") > looks; })) << "it does not look";
  std::this_thread::sleep_for(50ms);  // its answer is there, and waits for its turn
  proxy.refuse_new(true);
  ASSERT_GE(proxy.cut(), 2U);
  raw("EVAL",
      "for i = 1, 7 do redis.call('XADD', KEYS[1], '*', 'k', i) end return redis.call('XTRIM', KEYS[1], 'MAXLEN', 0)",
      "1", kKey);
  proxy.refuse_new(false);
  ASSERT_TRUE(soon([&] { return proxy.counters().open >= 2; })) << "it does not connect again";
  go_on.set_value();
  const auto told = gaps.wait(1, bound(3s));
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].missed, 7U);
  append("1");
  EXPECT_THAT(seen.wait(2), ElementsAre("0", "1"));
  std::this_thread::sleep_for(1200ms);
  append("2");
  EXPECT_EQ(seen.wait(3).size(), 3U);
  EXPECT_EQ(tail->stats().gaps, 1U) << "told once";
}

TEST_F(BusTail, TrimsBehindTheReaderAreNoGap) {
  Gaps gaps;
  Seen seen;
  auto tail = Tail::start(stream(), seen.handler(), {}, gaps.options());
  Seen past;
  append("0");
  auto other = Tail::start(stream(), past.handler(), "0", gaps.options());
  ASSERT_TRUE(tail && other);
  const auto until = std::chrono::steady_clock::now() + 3s;
  std::size_t sent = 1;
  while (std::chrono::steady_clock::now() < until) {
    append(std::to_string(sent++));
    ASSERT_EQ(seen.wait(sent).size(), sent);
    ASSERT_EQ(past.wait(sent).size(), sent);
    raw("XTRIM", kKey, "MAXLEN", std::to_string(sent % 3));
  }
  EXPECT_EQ(tail->stats().gaps, 0U);
  EXPECT_EQ(other->stats().gaps, 0U);
}

/// It began behind an entry that is not there any more: whether something is missing cannot be known, unless nothing was ever removed.
TEST_F(BusTail, ATailOfThePastIsToldWhenItsPlaceIsGone) {
  std::vector<std::string> entries;
  for (int i = 0; i < 2000; ++i) {
    entries.emplace_back(append(std::to_string(i)).entry_id().text());
    if (i == 0)
      std::this_thread::sleep_for(2ms);
  }
  const auto start = [&](Seen& seen, Gaps& gaps, const std::string& behind) {
    auto tail = Tail::start(stream(), seen.handler(), behind, gaps.options());
    EXPECT_TRUE(tail);
    return *std::move(tail);
  };
  Gaps none;
  Seen all;
  Seen later;
  Tail whole = start(all, none, "0");
  Tail before = start(later, none, "1-1");
  EXPECT_EQ(all.wait(2000).size(), 2000U);
  EXPECT_EQ(later.wait(2000).size(), 2000U);
  raw("XTRIM", kKey, "MAXLEN", "1000");
  Gaps gone;
  Seen half;
  Tail behind = start(half, gone, entries[499]);
  EXPECT_EQ(half.wait(1000).size(), 1000U);
  const auto told = gone.wait(1);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_FALSE(told[0].missed);
  EXPECT_EQ(told[0].from, entries[499]);
  EXPECT_EQ(behind.stats().gaps, 1U);
  EXPECT_EQ(behind.stats().missed, 0U);
  // One that is there, the last one, and the beginning: nothing can be missing.
  Seen some;
  Seen last;
  Seen again;
  Tail there = start(some, none, entries[1000]);
  Tail at_end = start(last, none, entries[1999]);
  Tail beginning = start(again, none, "0");
  EXPECT_EQ(some.wait(999).size(), 999U);
  EXPECT_EQ(again.wait(1000).size(), 1000U);
  append("new");
  EXPECT_EQ(last.wait(1).size(), 1U);
  std::this_thread::sleep_for(1200ms);
  for (const Tail* one : {&whole, &before, &there, &at_end, &beginning})
    EXPECT_EQ(one->stats().gaps, 0U);
}

TEST_F(BusTail, AStreamThatWasDeletedAndBegunAnewIsTold) {
  Gaps gaps;
  Seen seen;
  auto tail = Tail::start(stream(), seen.handler(), {}, gaps.options());
  ASSERT_TRUE(tail);
  for (int i = 0; i < 10; ++i)
    append(std::to_string(i));
  ASSERT_EQ(seen.wait(10).size(), 10U);
  std::this_thread::sleep_for(1100ms);
  raw("DEL", kKey);
  append("10");
  ASSERT_EQ(seen.wait(11).size(), 11U);
  std::this_thread::sleep_for(1100ms);
  append("11");
  const auto told = gaps.wait(1);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_TRUE(told[0].begun_anew);
  EXPECT_FALSE(told[0].missed);
  EXPECT_EQ(seen.wait(12).size(), 12U);
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
  // Idle: the server has next to nothing to do for them. What was read last is looked behind up to a second later.
  std::this_thread::sleep_for(1500ms);
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
