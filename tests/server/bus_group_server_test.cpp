// Consumer groups: the single commands, and the consumer's loop with what the canonical one gets wrong.
#include <atomic>
#include <map>
#include <set>

#include "server/bus_fixture.hpp"
#include "support/proxy.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class BusGroup : public BusServerTest {
 protected:
  [[nodiscard]] StreamGroup group() { return stream().group("g").value(); }
  [[nodiscard]] std::int64_t pending() { return raw("XPENDING", kKey, "g")[0].as_integer().value(); }

  /// Collects what a consumer is given.
  struct Seen {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::pair<std::string, std::uint64_t>> messages;  // field k, attempts; guarded by mutex
    std::map<std::string, int> poison;                            // values that fail so often; guarded by mutex

    [[nodiscard]] StreamHandler handler() {
      return [this](const StreamMessage& message) {
        const std::lock_guard lock(mutex);
        const std::string value = *message.record.find("k");
        messages.emplace_back(value, message.attempts);
        changed.notify_all();
        const auto fails = poison.find(value);
        if (fails == poison.end() || fails->second == 0)
          return Handled::done;
        --fails->second;
        return Handled::failed;
      };
    }
    [[nodiscard]] bool wait(std::size_t count, std::chrono::milliseconds within = 10s) {
      std::unique_lock lock(mutex);
      return changed.wait_for(lock, within, [&] { return messages.size() >= count; });
    }
    [[nodiscard]] std::vector<std::string> values() {
      const std::lock_guard lock(mutex);
      std::vector<std::string> out;
      for (const auto& [value, attempts] : messages)
        out.push_back(value);
      return out;
    }
  };

  [[nodiscard]] GroupConsumer start(std::string_view name, Seen& seen, GroupConsumerOptions options = {}) {
    auto consumer = GroupConsumer::start(group(), name, seen.handler(), std::move(options));
    EXPECT_TRUE(consumer) << consumer.error().message();
    return *std::move(consumer);
  }
};

TEST_F(BusGroup, TheCommands) {
  EXPECT_TRUE(group().create(GroupStart::head).get().value());
  EXPECT_FALSE(group().create(GroupStart::latest).get().value()) << "it keeps its position";
  append("1");
  const EventId second = append("2");
  EXPECT_THAT(group().read_new("c1", {.count = 1}).get().value(), SizeIs(1));
  const auto rest = group().read_new("c1").get().value();
  ASSERT_THAT(rest, SizeIs(1));
  EXPECT_EQ(rest[0].record->id, second);
  EXPECT_THAT(group().read_new("c1").get().value(), IsEmpty());

  const auto own = group().read_own("c1").get().value();
  ASSERT_THAT(own, SizeIs(2));
  EXPECT_THAT(group().read_own("c1", own[0].entry).get().value(), SizeIs(1));
  EXPECT_THAT(group().read_own("c2").get().value(), IsEmpty());

  const std::string_view one[] = {own[0].entry};
  EXPECT_EQ(group().acknowledge(one).get().value(), 1U);
  EXPECT_EQ(group().acknowledge(one).get().value(), 0U);
  EXPECT_EQ(group().acknowledge({}).get().value(), 0U);

  std::this_thread::sleep_for(5ms);
  EXPECT_THAT(group().claim_idle("c2", 1h).get().value().entries, IsEmpty());
  const IdleClaim claim = group().claim_idle("c2", 2ms).get().value();
  ASSERT_THAT(claim.entries, SizeIs(1));
  EXPECT_EQ(claim.entries[0].record->id, second);
  EXPECT_EQ(claim.next, "0-0");

  const auto rows = group().pending().get().value();
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_EQ(rows[0].consumer, "c2");
  EXPECT_EQ(rows[0].deliveries, 4U);
  EXPECT_THAT(group().pending({.consumer = "c1"}).get().value(), IsEmpty());
  EXPECT_THAT(group().pending({.min_idle = 1h}).get().value(), IsEmpty());

  std::this_thread::sleep_for(20ms);
  const std::string_view held[] = {rows[0].entry};
  const auto refreshed = std::chrono::steady_clock::now();
  EXPECT_THAT(group().refresh("c2", held).get().value(), ElementsAre(rows[0].entry));
  const auto fresh = group().pending().get().value();
  EXPECT_LE(fresh[0].idle, std::chrono::ceil<Milliseconds>(std::chrono::steady_clock::now() - refreshed) + 1ms)
      << "it was 20 ms and more before";
  EXPECT_EQ(fresh[0].deliveries, 4U) << "a refresh is no delivery";
}

TEST_F(BusGroup, WithoutAGroupTheErrorIsTyped) {
  for (const Error& error : {group().read_new("c").get().error(), group().read_own("c").get().error(),
                             group().claim_idle("c", 1ms).get().error(), group().pending().get().error()}) {
    EXPECT_TRUE(error.is(Errc::no_group)) << error.message();
  }
}

TEST_F(BusGroup, RemovedEntriesAreToldFromOthers) {
  EXPECT_TRUE(group().create(GroupStart::head).get().value());
  const EventId first = append("1");
  append("2");
  EXPECT_THAT(group().read_new("c1").get().value(), SizeIs(2));
  EXPECT_EQ(stream().trim_to(1).get().value(), 1U);
  const auto own = group().read_own("c1").get().value();
  ASSERT_THAT(own, SizeIs(2));
  EXPECT_FALSE(own[0].record);
  EXPECT_EQ(own[0].entry, first.entry_id().text());
  EXPECT_TRUE(own[1].record);
  const IdleClaim claim = group().claim_idle("c2", 0ms).get().value();
  EXPECT_THAT(claim.entries, SizeIs(1));
  EXPECT_THAT(claim.deleted, ElementsAre(std::string(first.entry_id().text())));
}

TEST_F(BusGroup, AConsumerGetsNewRecordsAtOnceAndAcknowledges) {
  Seen seen;
  GroupConsumer consumer = start("c1", seen, {.beat = 20s});
  const auto begin = std::chrono::steady_clock::now();
  append("1");
  ASSERT_TRUE(seen.wait(1));
  append("2");
  ASSERT_TRUE(seen.wait(2));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s) << "it waits on the server, not for a beat";
  consumer.stop();
  EXPECT_EQ(pending(), 0);
  EXPECT_EQ(consumer.stats().handled, 2U);
}

TEST_F(BusGroup, StoppingDoesNotWaitForABeat) {
  Seen seen;
  GroupConsumer consumer = start("c1", seen, {.beat = 60s});
  std::this_thread::sleep_for(30ms);
  const auto begin = std::chrono::steady_clock::now();
  consumer.stop();
  consumer.stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
}

TEST_F(BusGroup, AFailingBacklogEntryDoesNotKeepItFromNewOnes) {
  // The canonical consumer reads its history from 0 again and again, and never comes to what is new.
  EXPECT_TRUE(group().create(GroupStart::head).get().value());
  append("poison");
  append("trimmed");
  EXPECT_THAT(group().read_new("c1").get().value(), SizeIs(2));
  raw("XDEL", kKey, stream().info().get().value().top);
  append("new");
  Seen seen;
  seen.poison["poison"] = 1000;
  GroupConsumer consumer = start("c1", seen, {.min_idle = 60s});
  ASSERT_TRUE(seen.wait(2));
  consumer.stop();
  EXPECT_THAT(seen.values(), ElementsAre("poison", "new"));
  EXPECT_EQ(pending(), 1);
  EXPECT_EQ(consumer.stats().deleted, 1U);
}

TEST_F(BusGroup, AFailedEntryComesBackWithItsCountWhenItWasIdle) {
  Seen seen;
  seen.poison["bad"] = 2;
  GroupConsumer consumer = start("c1", seen, {.start = GroupStart::head, .min_idle = 30ms, .beat = 10ms});
  append("bad");
  ASSERT_TRUE(seen.wait(3));
  consumer.stop();
  EXPECT_EQ(pending(), 0);
  ASSERT_GE(seen.messages.size(), 3U);
  EXPECT_EQ(seen.messages[0].second, 1U);
  EXPECT_EQ(seen.messages[1].second, 2U);
  EXPECT_EQ(seen.messages[2].second, 3U);
}

TEST_F(BusGroup, AHandlerThatThrowsFailsThatRecordOnly) {
  std::atomic<int> calls{0};
  auto consumer = GroupConsumer::start(group(), "c1",
                                       [&](const StreamMessage& message) -> Handled {
                                         ++calls;
                                         if (*message.record.find("k") == "bad")
                                           throw std::runtime_error("no");
                                         return Handled::done;
                                       },
                                       {.start = GroupStart::head});
  ASSERT_TRUE(consumer);
  append("bad");
  append("good");
  for (int i = 0; i < 2000 && calls < 2; ++i)
    std::this_thread::sleep_for(10ms);
  consumer->stop();
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(pending(), 1);
}

TEST_F(BusGroup, IdleEntriesBehindAThousandBusyOnesAreTakenOver) {
  // The canonical consumer always begins at 0, and XAUTOCLAIM looks through ten times COUNT.
  EXPECT_TRUE(group().create(GroupStart::head).get().value());
  std::vector<NewRecord> records(2000);
  const auto results = stream().append_many(records).get().value();
  for (const auto& result : results)
    ASSERT_TRUE(result);
  EXPECT_THAT(group().read_new("busy", {.count = 2000}).get().value(), SizeIs(2000));
  append("behind");
  const auto behind = group().read_new("dead").get().value();
  ASSERT_THAT(behind, SizeIs(1));
  raw("XCLAIM", kKey, "g", "dead", "0", behind[0].entry, "IDLE", "90000", "JUSTID");
  Seen seen;
  GroupConsumer consumer = start("c1", seen, {.min_idle = 60s});
  ASSERT_TRUE(seen.wait(1));
  consumer.stop();
  EXPECT_THAT(seen.values(), ElementsAre("behind"));
  EXPECT_EQ(consumer.stats().taken_over, 1U);
}

TEST_F(BusGroup, ALostGroupIsMadeAgainAndNothingIsPassedOver) {
  append("old");
  Seen seen;
  GroupConsumer consumer = start("c1", seen, {.start = GroupStart::latest, .beat = 20ms});
  append("1");
  ASSERT_TRUE(seen.wait(1));
  raw("XGROUP", "DESTROY", kKey, "g");
  append("2");
  for (int i = 0; i < 2000; ++i) {
    const auto now = seen.values();
    if (std::find(now.begin(), now.end(), "2") != now.end())
      break;
    std::this_thread::sleep_for(10ms);
  }
  raw("DEL", kKey);
  append("3");
  for (int i = 0; i < 2000; ++i) {
    const auto now = seen.values();
    if (std::find(now.begin(), now.end(), "3") != now.end())
      break;
    std::this_thread::sleep_for(10ms);
  }
  consumer.stop();
  const auto got = seen.values();
  EXPECT_THAT(got, ::testing::Contains("2"));
  EXPECT_THAT(got, ::testing::Contains("3"));
  EXPECT_THAT(got, ::testing::Not(::testing::Contains("old")));
  EXPECT_GE(consumer.stats().groups_made, 2U);
  EXPECT_LT(consumer.stats().errors, 20U) << "it does not spin";
}

/// The position of a group says nothing of what it has handed out and nobody has acknowledged.
TEST_F(BusGroup, WhatWasPendingInALostGroupComesAgain) {
  EXPECT_TRUE(group().create(GroupStart::head).get().value());
  append("done");
  const auto done = group().read_new("other").get().value();
  ASSERT_THAT(done, SizeIs(1));
  const std::string_view entries[] = {done[0].entry};
  EXPECT_EQ(group().acknowledge(entries).get().value(), 1U);
  append("pending");
  append("pending too");
  EXPECT_THAT(group().read_new("other").get().value(), SizeIs(2));
  Seen seen;
  GroupConsumer consumer = start("c1", seen, {.start = GroupStart::latest, .min_idle = 60s, .beat = 20ms});
  append("new");
  ASSERT_TRUE(seen.wait(1));
  raw("XGROUP", "DESTROY", kKey, "g");
  append("newer");
  ASSERT_TRUE(seen.wait(5));
  consumer.stop();
  EXPECT_THAT(seen.values(), ElementsAre("new", "pending", "pending too", "new", "newer"));
  EXPECT_EQ(pending(), 0);
}

TEST_F(BusGroup, AnIdleConsumerIsQuiet) {
  Seen seen;
  GroupConsumer consumer = start("c1", seen);
  std::this_thread::sleep_for(200ms);
  const auto processed = [&] {
    const std::string text(raw("INFO", "stats").as_text().value());
    return std::stoull(text.substr(text.find("total_commands_processed:") + 25));
  };
  const auto before = processed();
  std::this_thread::sleep_for(3s);
  // Its own are two a beat of a second; the look at it and a heartbeat are the test's.
  EXPECT_LT(processed() - before, 3 * 3 + 3U);
  consumer.stop();
}

TEST_F(BusGroup, TwoConsumersShareAndTheDeadOnesShareIsTakenOver) {
  constexpr int kRecords = 2000;
  EXPECT_TRUE(group().create(GroupStart::head).get().value());
  std::vector<Reply<EventId>> replies;
  for (int i = 0; i < kRecords; ++i) {
    const One one(std::to_string(i));
    replies.push_back(stream().append(one.fields()));
  }
  for (auto& reply : replies)
    ASSERT_TRUE(reply.get());
  EXPECT_THAT(group().read_new("dead", {.count = 300}).get().value(), SizeIs(300));
  Seen seen;
  {
    GroupConsumer a = start("a", seen, {.min_idle = 100ms, .beat = 20ms});
    GroupConsumer b = start("b", seen, {.min_idle = 100ms, .beat = 20ms});
    ASSERT_TRUE(seen.wait(kRecords, 30s));
    for (int i = 0; i < 2000 && pending() > 0; ++i)
      std::this_thread::sleep_for(10ms);
    a.stop();
    b.stop();
  }
  EXPECT_EQ(pending(), 0);
  const auto values = seen.values();
  EXPECT_EQ(std::set<std::string>(values.begin(), values.end()).size(), std::size_t{kRecords});
}

TEST_F(BusGroup, WhatWaitsBehindASlowHandlerIsNotTakenOver) {
  EXPECT_TRUE(group().create(GroupStart::head).get().value());
  for (int i = 0; i < 10; ++i)
    append(std::to_string(i));
  std::mutex mutex;
  std::map<std::string, int> runs;  // guarded by mutex
  std::atomic<int> total{0};
  const auto slow = [&](const StreamMessage& message) {
    std::this_thread::sleep_for(200ms);
    const std::lock_guard lock(mutex);
    ++runs[*message.record.find("k")];
    ++total;
    return Handled::done;
  };
  auto a = GroupConsumer::start(group(), "a", slow, {.min_idle = 1s, .beat = 20ms});
  ASSERT_TRUE(a);
  std::this_thread::sleep_for(100ms);
  auto b = GroupConsumer::start(group(), "b", slow, {.min_idle = 1s, .beat = 20ms});
  ASSERT_TRUE(b);
  for (int i = 0; i < 2000 && total < 10; ++i)
    std::this_thread::sleep_for(10ms);
  a->stop();
  b->stop();
  EXPECT_EQ(total, 10);
  EXPECT_THAT(runs, SizeIs(10));
  EXPECT_EQ(b->stats().taken_over, 0U);
}

/// Neither the record that runs, nor those before it whose acknowledgements have not left, nor those behind it.
TEST_F(BusGroup, AHandlerThatLastsLongerThanMinIdleIsNotOvertaken) {
  EXPECT_TRUE(group().create(GroupStart::head).get().value());
  for (const char* value : {"0", "1", "slow", "3", "4"})
    append(value);
  std::mutex mutex;
  std::map<std::string, int> runs;  // guarded by mutex
  std::atomic<bool> running{false};
  std::atomic<int> total{0};
  const auto handler = [&](const StreamMessage& message) {
    const std::string value = *message.record.find("k");
    if (value == "slow") {
      running = true;
      std::this_thread::sleep_for(7s);
    }
    const std::lock_guard lock(mutex);
    ++runs[value];
    ++total;
    return message.attempts == 1 ? Handled::done : Handled::failed;
  };
  auto a = GroupConsumer::start(group(), "a", handler, {.min_idle = 2s, .beat = 20ms});
  ASSERT_TRUE(a);
  for (int i = 0; i < 2000 && !running; ++i)
    std::this_thread::sleep_for(5ms);
  ASSERT_TRUE(running);
  auto b = GroupConsumer::start(group(), "b", handler, {.min_idle = 2s, .beat = 20ms});
  ASSERT_TRUE(b);
  std::this_thread::sleep_for(4s);
  const auto rows = group().pending().get().value();
  EXPECT_THAT(rows, SizeIs(3)) << "what was done is acknowledged";
  for (const PendingEntry& row : rows) {
    EXPECT_EQ(row.consumer, "a");
    EXPECT_EQ(row.deliveries, 1U) << "a refresh is no delivery";
  }
  for (int i = 0; i < 2000 && total < 5; ++i)
    std::this_thread::sleep_for(10ms);
  a->stop();
  b->stop();
  EXPECT_EQ(total, 5);
  EXPECT_THAT(runs, SizeIs(5));
  EXPECT_EQ(b->stats().taken_over, 0U);
  EXPECT_EQ(pending(), 0);
}

/// One that failed waits for its delay while the handler of another takes longer than `min_idle`: it stays where it is.
TEST_F(BusGroup, WhatWaitsForItsDelayIsKeptWhileAHandlerRuns) {
  EXPECT_TRUE(group().create(GroupStart::head).get().value());
  append("fails");
  append("slow");
  std::atomic<bool> running{false};
  auto a = GroupConsumer::start(group(), "a",
                                [&](const StreamMessage& message) {
                                  if (*message.record.find("k") == "fails")
                                    return Handled::failed;
                                  running = true;
                                  std::this_thread::sleep_for(6s);
                                  return Handled::done;
                                },
                                {.min_idle = 2s, .beat = 20ms, .retry_delay = 60s, .retry_delay_max = 60s});
  ASSERT_TRUE(a) << a.error().message();
  for (int i = 0; i < 2000 && !running; ++i)
    std::this_thread::sleep_for(5ms);
  ASSERT_TRUE(running);
  Seen seen;
  GroupConsumer b = start("b", seen, {.min_idle = 2s, .beat = 20ms});
  std::this_thread::sleep_for(5s);
  EXPECT_THAT(seen.values(), ::testing::IsEmpty());
  a->stop();
  b.stop();
}

/// The server is away for a while; handlers go on, and what they have done is on its way in more batches than may be open.
TEST_F(BusGroup, APageIsKeptWhileItsAcknowledgementsWait) {
  EXPECT_TRUE(group().create(GroupStart::head).get().value());
  for (int i = 0; i < 200; ++i)
    append(std::to_string(i));
  std::atomic<int> runs{0};
  auto a = GroupConsumer::start(group(), "a",
                                [&](const StreamMessage& message) {
                                  ++runs;
                                  std::this_thread::sleep_for(15ms);
                                  return message.attempts == 1 ? Handled::done : Handled::failed;
                                },
                                {.min_idle = 6s, .count = 200});
  ASSERT_TRUE(a);
  for (int i = 0; i < 2000 && runs < 20; ++i)
    std::this_thread::sleep_for(5ms);
  server().pause();
  std::this_thread::sleep_for(3s);
  server().resume();
  for (int i = 0; i < 2000 && runs < 200; ++i)
    std::this_thread::sleep_for(10ms);
  a->stop();
  EXPECT_EQ(runs, 200);
  EXPECT_EQ(a->stats().failed, 0U);
  EXPECT_EQ(pending(), 0);
}

/// A consumer that stood still for longer takes nothing back from who has it by now.
TEST_F(BusGroup, WhatWasTakenOverWhileTheServerWasAwayIsNotTakenBack) {
  Proxy proxy(server().url());
  Client slow = Client::open(proxy.url(), {.deadline = 30s}).value();
  EXPECT_TRUE(group().create(GroupStart::head).get().value());
  for (const char* value : {"0", "1", "2"})
    append(value);
  std::atomic<bool> running{false};
  std::atomic<bool> over{false};
  std::atomic<int> late{0};
  auto a = GroupConsumer::start(slow.stream(QueueName{"q"}, StreamName{"s"}).group("g").value(), "a",
                                [&](const StreamMessage&) {
                                  late += over ? 1 : 0;
                                  running = true;
                                  while (!over)
                                    std::this_thread::sleep_for(5ms);
                                  return Handled::done;
                                },
                                {.min_idle = 600ms, .beat = 20ms});
  ASSERT_TRUE(a);
  for (int i = 0; i < 2000 && !running; ++i)
    std::this_thread::sleep_for(5ms);
  ASSERT_TRUE(running);
  proxy.hold();
  Seen seen;
  GroupConsumer b = start("b", seen, {.min_idle = 600ms, .beat = 20ms});
  ASSERT_TRUE(seen.wait(3)) << "nobody refreshes them";
  proxy.release();
  std::this_thread::sleep_for(500ms);
  over = true;
  std::this_thread::sleep_for(500ms);
  a->stop();
  b.stop();
  EXPECT_EQ(late, 0) << "what others have was handled once more";
  EXPECT_THAT(seen.values(), ElementsAre("0", "1", "2"));
  EXPECT_EQ(pending(), 0);
}

TEST_F(BusGroup, ABadStartIsRefusedByName) {
  const auto handler = [](const StreamMessage&) { return Handled::done; };
  const auto refused = [&](std::string_view consumer, StreamHandler with, GroupConsumerOptions options) {
    auto started = GroupConsumer::start(group(), consumer, std::move(with), std::move(options));
    EXPECT_FALSE(started);
    return started ? Error() : started.error();
  };
  EXPECT_THAT(refused("", handler, {}).text, ::testing::HasSubstr("consumer"));
  EXPECT_THAT(refused("c", handler, {.min_idle = 0ms}).text, ::testing::HasSubstr("min_idle"));
  // What the scripts that keep entries take.
  EXPECT_THAT(refused("c", handler, {.min_idle = 1'000'000'000'000ms}).text,
              ::testing::HasSubstr("min_idle must be 1ms to 999999999999ms, got 1000000000000ms"));
  EXPECT_THAT(refused("c", handler, {.min_idle = Milliseconds::max()}).text, ::testing::HasSubstr("min_idle"));
  EXPECT_THAT(refused("c", handler, {.beat = 0ms}).text, ::testing::HasSubstr("beat"));
  EXPECT_THAT(refused("c", handler, {.count = 0}).text, ::testing::HasSubstr("count"));
  EXPECT_THAT(refused("c", {}, {}).text, ::testing::HasSubstr("handler"));
  EXPECT_EQ(raw("EXISTS", kKey).as_integer(), 0);
  raw("SET", kKey, "x");
  EXPECT_THAT(refused("c", handler, {}).text, ::testing::HasSubstr("WRONGTYPE"));
}

TEST_F(BusGroup, ADroppedClientEndsTheLoop) {
  Client mine = open();
  const StreamGroup of_mine = mine.stream(QueueName{"q"}, StreamName{"s"}).group("g").value();
  Seen seen;
  auto consumer = GroupConsumer::start(of_mine, "c1", seen.handler(), {});
  ASSERT_TRUE(consumer);
  mine.close();
  consumer->stop();
}

TEST_F(BusGroup, APoisonedEntryGoesToTheDeadStreamAtItsLimit) {
  Seen seen;
  seen.poison["bad"] = 1000;
  const EventId bad = append("bad");
  append("good");
  GroupConsumerOptions options{.start = GroupStart::head, .min_idle = 60ms, .beat = 20ms};
  options.max_attempts = 3;
  GroupConsumer consumer = start("c", seen, options);
  ASSERT_TRUE(seen.wait(4));
  for (int i = 0; i < 2000 && consumer.stats().buried == 0; ++i)
    std::this_thread::sleep_for(10ms);
  std::this_thread::sleep_for(300ms);
  consumer.stop();
  EXPECT_THAT(seen.values(), ::testing::UnorderedElementsAre("bad", "good", "bad", "bad"));
  EXPECT_EQ(pending(), 0);
  const auto dead = client().stream(QueueName{"q"}, StreamName{"s:dead"}).read().get().value().records;
  ASSERT_THAT(dead, SizeIs(1));
  EXPECT_EQ(*dead[0].find("origin"), bad.entry_id().text());
  EXPECT_EQ(*dead[0].find("origin_id"), bad.text());
  EXPECT_EQ(*dead[0].find("group"), "g");
  EXPECT_EQ(*dead[0].find("attempts"), "3");
  EXPECT_EQ(*dead[0].find("k"), "bad");
}

TEST_F(BusGroup, AnEntryThatItsConsumersDiedOfIsNotHandledAgain) {
  append("bad");
  ASSERT_TRUE(group().create(GroupStart::head).get());
  for (const std::string_view name : {"a", "b"}) {
    ASSERT_TRUE(group().read_new(name).get());
    ASSERT_TRUE(group().claim_idle(name, 0ms).get());
  }
  Seen seen;
  GroupConsumerOptions options{.min_idle = 20ms, .beat = 20ms};
  options.max_attempts = 2;
  options.dead_stream = StreamName{"graves"};
  GroupConsumer consumer = start("c", seen, options);
  for (int i = 0; i < 2000 && consumer.stats().buried == 0; ++i)
    std::this_thread::sleep_for(10ms);
  consumer.stop();
  EXPECT_THAT(seen.values(), IsEmpty());
  EXPECT_EQ(pending(), 0);
  EXPECT_EQ(client().stream(QueueName{"q"}, StreamName{"graves"}).length().get().value(), 1U);
}

TEST_F(BusGroup, IdleConsumersAskTheServerLessThanThreeTimesASecond) {
  Seen seen;
  append("v");
  std::vector<GroupConsumer> consumers;
  for (int i = 0; i < 4; ++i)
    consumers.push_back(start("c" + std::to_string(i), seen, {.start = GroupStart::head}));
  ASSERT_TRUE(seen.wait(1));
  std::this_thread::sleep_for(500ms);
  const auto commands = [&] {
    const std::string stats(raw("INFO", "stats").as_text().value());
    return std::stoll(stats.substr(stats.find("total_commands_processed:") + 25));
  };
  const std::int64_t before = commands();
  std::this_thread::sleep_for(5s);
  const double rate = static_cast<double>(commands() - before - 1) / 5 / 4;
  std::printf("%.2f commands/s a consumer\n", rate);
  EXPECT_LT(rate, 3);
  EXPECT_GT(rate, 0.5) << "they do look for what others left";
}

class BusGroupLongList : public BusGroup {
 protected:
  /// That many entries that a consumer has just been given.
  void give(std::string_view consumer, std::size_t count) {
    const std::vector<NewRecord> records(count);
    const auto appended = stream().append_many(records).get().value();
    for (const auto& result : appended)
      ASSERT_TRUE(result);
    ASSERT_THAT(group().read_new(consumer, {.count = static_cast<std::uint32_t>(count)}).get().value(), SizeIs(count));
  }
  [[nodiscard]] std::int64_t commands() {
    const std::string stats(raw("INFO", "stats").as_text().value());
    return std::stoll(stats.substr(stats.find("total_commands_processed:") + 25));
  }
};

TEST_F(BusGroupLongList, AnIdleConsumerBesideOneAsksLessThanThreeTimesASecond) {
  EXPECT_TRUE(group().create(GroupStart::head).get().value());
  give("busy", 20'000);
  append("behind");
  const auto behind = group().read_new("dead").get().value();
  ASSERT_THAT(behind, SizeIs(1));
  Seen seen;
  std::vector<GroupConsumer> consumers;
  for (int i = 0; i < 4; ++i)
    consumers.push_back(start("c" + std::to_string(i), seen, {.min_idle = 10min}));
  std::this_thread::sleep_for(1500ms);
  const std::int64_t before = commands();
  std::this_thread::sleep_for(5s);
  const double rate = static_cast<double>(commands() - before - 1) / 5 / 4;
  std::printf("%.2f commands/s a consumer\n", rate);
  EXPECT_LT(rate, 3);
  EXPECT_GT(rate, 0.5) << "they do look for what others left";
  raw("XCLAIM", kKey, "g", "dead", "0", behind[0].entry, "IDLE", "900000", "JUSTID");
  ASSERT_TRUE(seen.wait(1, 15s)) << "it goes through the list";
  for (GroupConsumer& consumer : consumers)
    consumer.stop();
  EXPECT_EQ(seen.messages.front(), (std::pair<std::string, std::uint64_t>("behind", 2))) << "looking is no delivery";
}

/// A wide look takes over more than a page: the rest is for the others too.
TEST_F(BusGroupLongList, WhatOneLookFindsIsShared) {
  EXPECT_TRUE(group().create(GroupStart::head).get().value());
  give("busy", 3000);
  std::vector<std::unique_ptr<One>> ones;
  std::vector<NewRecord> records;
  for (int i = 0; i < 700; ++i) {
    ones.push_back(std::make_unique<One>(std::to_string(i)));
    records.push_back(ones.back()->record);
  }
  const auto appended = stream().append_many(records).get().value();
  for (const auto& result : appended)
    ASSERT_TRUE(result);
  const auto dead = group().read_new("dead", {.count = 1000}).get().value();
  ASSERT_THAT(dead, SizeIs(700));
  std::vector<std::string_view> words = {"XCLAIM", kKey, "g", "dead", "0"};
  for (const Delivery& one : dead)
    words.push_back(one.entry);
  for (const std::string_view word : {"IDLE", "900000", "JUSTID"})
    words.push_back(word);
  ASSERT_TRUE(client().command(std::span<const std::string_view>(words)).get());
  Seen seen;
  const StreamHandler quick = seen.handler();
  const auto slow = [&](const StreamMessage& message) {
    std::this_thread::sleep_for(2ms);
    return quick(message);
  };
  auto a = GroupConsumer::start(group(), "a", slow, {.min_idle = 10min, .beat = 20ms, .count = 10});
  auto b = GroupConsumer::start(group(), "b", slow, {.min_idle = 10min, .beat = 20ms, .count = 10});
  ASSERT_TRUE(a && b);
  ASSERT_TRUE(seen.wait(700, 30s));
  a->stop();
  b->stop();
  std::set<std::string> values;
  for (const auto& [value, attempts] : seen.messages) {
    values.insert(value);
    EXPECT_EQ(attempts, 2U);
  }
  EXPECT_THAT(values, SizeIs(700));
  EXPECT_THAT(seen.messages, SizeIs(700));
  EXPECT_GE(a->stats().taken_over, 50U);
  EXPECT_GE(b->stats().taken_over, 50U);
  EXPECT_EQ(pending(), 3000);
}

}  // namespace
}  // namespace echomq::test
