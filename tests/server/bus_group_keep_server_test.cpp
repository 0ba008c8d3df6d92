// Entries in hand: what a consumer refreshes is what is still its own, however late the refresh reaches the server.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "bus/group_claims.hpp"
#include "script/registry.hpp"
#include "server/bus_fixture.hpp"
#include "support/proxy.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

class BusGroupKeep : public BusServerTest {
 protected:
  [[nodiscard]] StreamGroup group() { return stream().group("g").value(); }
  /// Owner of each pending entry.
  [[nodiscard]] std::map<std::string, std::string> owners() {
    std::map<std::string, std::string> out;
    const auto pending = group().pending({.count = 1000}).get().value();
    for (const PendingEntry& row : pending)
      out[row.entry] = row.consumer;
    return out;
  }
  [[nodiscard]] static bool eventually(const std::function<bool()>& holds) {
    for (int i = 0; i < 2000; ++i) {
      if (holds())
        return true;
      std::this_thread::sleep_for(5ms);
    }
    return false;
  }

  /// A consumer `a` behind a link that stands still while `b` takes over what `a` has in hand: `0`, which runs or waits for its delay,
  /// and `1`, which waits behind it. What `a` has sent meanwhile reaches the server afterwards.
  void late_refresh(GroupConsumerOptions options, Handled first) {
    Proxy proxy(server().url());
    Client slow = Client::open(proxy.url(), {.deadline = 30s}).value();
    ASSERT_TRUE(group().create(GroupStart::head).get().value());
    append("0");
    append("1");
    std::atomic<int> runs{0};
    std::atomic<bool> over{false};
    auto a = GroupConsumer::start(
        slow.stream(QueueName{"q"}, StreamName{"s"}).group("g").value(), "a",
        [&](const StreamMessage& message) {
          const bool last = *message.record.find("k") == "1" || first == Handled::done;
          if (++runs == 1 && !last)
            return first;
          while (!over)
            std::this_thread::sleep_for(5ms);
          return Handled::done;
        },
        std::move(options));
    ASSERT_TRUE(a);
    const int before = first == Handled::done ? 1 : 2;
    ASSERT_TRUE(eventually([&] { return runs == before; }));
    proxy.hold(Direction::to_server);
    std::vector<Delivery> taken;
    ASSERT_TRUE(eventually([&] {
      auto idle = group().claim_idle("b", 900ms).get().value();
      for (Delivery& one : idle.entries)
        taken.push_back(std::move(one));
      return taken.size() == 2;
    })) << "what is held back refreshes nothing";
    const auto refreshed = [&] { return proxy.counters().bytes_to_server; };
    const std::uint64_t then = refreshed();
    proxy.release();
    EXPECT_TRUE(eventually([&] { return a->stats().lost == 2; })) << a->stats().lost;
    EXPECT_GT(refreshed(), then) << "nothing was on its way";
    const auto now = owners();
    ASSERT_THAT(now, SizeIs(2));
    for (const auto& [entry, owner] : now)
      EXPECT_EQ(owner, "b") << entry;
    over = true;
    a->stop();
    EXPECT_EQ(runs, before) << "what others have was handled once more";
  }

  /// `a` has `0` and `1` of an earlier life. While it hands `1` out again its link stands still, and `b` takes over.
  void late_hand_out(GroupConsumerOptions options) {
    Proxy proxy(server().url());
    Client slow = Client::open(proxy.url(), {.deadline = 30s}).value();
    ASSERT_TRUE(group().create(GroupStart::head).get().value());
    append("0");
    append("1");
    const auto read = group().read_new("a").get().value();
    ASSERT_THAT(read, SizeIs(2));
    std::atomic<int> runs{0};
    auto a = GroupConsumer::start(
        slow.stream(QueueName{"q"}, StreamName{"s"}).group("g").value(), "a",
        [&](const StreamMessage&) {
          if (++runs == 1)
            proxy.hold(Direction::to_server);
          return Handled::done;
        },
        std::move(options));
    ASSERT_TRUE(a);
    std::vector<Delivery> taken;
    ASSERT_TRUE(eventually([&] {
      auto idle = group().claim_idle("b", 900ms).get().value();
      for (Delivery& one : idle.entries)
        taken.push_back(std::move(one));
      return taken.size() == 2;
    }));
    proxy.release();
    EXPECT_TRUE(eventually([&] { return a->stats().lost >= 1; }));
    EXPECT_TRUE(eventually([&] { return owners().size() == 1; })) << "the first one was done";
    EXPECT_EQ(owners(), (std::map<std::string, std::string>{{read[1].entry, "b"}}));
    std::this_thread::sleep_for(100ms);
    a->stop();
    EXPECT_EQ(runs, 1) << "what another has was handled once more";
  }
};

TEST_F(BusGroupKeep, OnlyWhatIsStillTheConsumersIsClaimedAgain) {
  EXPECT_TRUE(group().create(GroupStart::head).get().value());
  for (int i = 0; i < 250; ++i)
    append(std::to_string(i));
  const auto read = group().read_new("a", {.count = 250}).get().value();
  ASSERT_THAT(read, SizeIs(250));
  append("not handed out");
  std::vector<std::string_view> entries;
  for (const Delivery& one : read)
    entries.push_back(one.entry);
  raw("XCLAIM", kKey, "g", "b", "0", entries[0], entries[120], "IDLE", "5000", "JUSTID");
  raw("XACK", kKey, "g", entries[1]);
  raw("XDEL", kKey, entries[2], entries[249]);
  raw("XCLAIM", kKey, "g", "a", "0", entries[3], "IDLE", "7000", "JUSTID");

  const auto kept = bus::keep_entries(group(), "a", entries).value();
  EXPECT_THAT(kept.lost, ElementsAre(entries[0], entries[1], entries[120]));
  EXPECT_THAT(kept.gone, ElementsAre(entries[2], entries[249]));
  std::map<std::string, PendingEntry> rows;
  auto pending = group().pending({.count = 1000}).get().value();
  for (PendingEntry& row : pending)
    rows.emplace(row.entry, row);
  EXPECT_THAT(rows, SizeIs(247));
  EXPECT_EQ(rows.at(read[0].entry).consumer, "b");
  EXPECT_GE(rows.at(read[0].entry).idle, 5000ms) << "another's is not touched";
  EXPECT_LT(rows.at(read[3].entry).idle, 7000ms);
  EXPECT_EQ(rows.at(read[3].entry).deliveries, 1U) << "that is no delivery";

  const auto again = bus::keep_entries(group(), "a", entries, 60s).value();
  EXPECT_THAT(again.lost, ElementsAre(entries[0], entries[1], entries[120]));
  EXPECT_THAT(again.gone, IsEmpty()) << "pending for nobody, and not there: nobody else has handled it";
  const auto left = group().pending({.count = 1000}).get().value();
  for (const PendingEntry& row : left)
    EXPECT_EQ(row.idle >= 60s, row.consumer == "a") << row.entry;
  EXPECT_THAT(group().claim_idle("c", 60s, "0-0", {.count = 1000}).get().value().entries, SizeIs(245));
}

TEST_F(BusGroupKeep, WhatCannotBeKeptIsTold) {
  append("0");
  const std::string_view entries[] = {"1-1"};
  const auto lost = bus::keep_entries(group(), "a", entries);
  ASSERT_FALSE(lost);
  EXPECT_TRUE(lost.error().is(Errc::no_group)) << lost.error().message();
  const auto none =
      bus::keep_entries(client().stream(QueueName{"q"}, StreamName{"none"}).group("g").value(), "a", entries);
  ASSERT_FALSE(none);
  EXPECT_TRUE(none.error().is(Errc::no_group)) << none.error().message();
  raw("SET", "emq:{q}:stream:text", "x");
  const auto text =
      bus::keep_entries(client().stream(QueueName{"q"}, StreamName{"text"}).group("g").value(), "a", entries);
  ASSERT_FALSE(text);
  EXPECT_THAT(text.error().text, StartsWith("WRONGTYPE"));

  EXPECT_TRUE(group().create(GroupStart::head).get().value());
  const auto read = group().read_new("a").get().value();
  ASSERT_THAT(read, SizeIs(1));
  const std::string source(script::find_script("stream_group_keep")->source);
  const auto refused = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string_view> words = {"EVAL", source, "1", kKey};
    words.insert(words.end(), arguments.begin(), arguments.end());
    const auto reply = client().command(CommandParts(words)).get();
    return reply ? std::string("accepted") : reply.error().text;
  };
  const std::string malformed = "ERR what is to be kept is malformed";
  EXPECT_EQ(refused({"g", "a", "9000"}), malformed);
  EXPECT_EQ(refused({"", "a", "9000", read[0].entry}), malformed);
  EXPECT_EQ(refused({"g", "", "9000", read[0].entry}), malformed);
  EXPECT_EQ(refused({"g", "a", "-1", read[0].entry}), malformed);
  EXPECT_EQ(refused({"g", "a", "9000", read[0].entry, "+"}), malformed);
  std::vector<std::string> many(104, read[0].entry);
  many[0] = "g", many[1] = "a", many[2] = "9000";
  EXPECT_EQ(refused(many), malformed);
  many.pop_back();
  EXPECT_EQ(refused(many), "accepted");
}

/// A refresh that was on its way while another consumer took over took the entries back.
TEST_F(BusGroupKeep, ALateRefreshTakesNothingBack) { late_refresh({.min_idle = 900ms, .beat = 20ms}, Handled::done); }

/// The same of what the threads of a consumer have in hand.
TEST_F(BusGroupKeep, ALateRefreshOfSeveralAtOnceTakesNothingBack) {
  late_refresh({.min_idle = 900ms, .beat = 20ms, .concurrency = 2, .order_key = [](const Record&) { return "one"; }},
               Handled::done);
}

/// The same of what has failed and waits for its delay.
TEST_F(BusGroupKeep, ALateRefreshOfWhatWaitsForItsDelayTakesNothingBack) {
  late_refresh({.min_idle = 900ms, .beat = 20ms, .retry_delay = 30s}, Handled::failed);
}

/// An entry that was handed out again while another consumer took it over was taken back, and handled.
TEST_F(BusGroupKeep, WhatIsHandedOutLateIsNotTaken) { late_hand_out({.min_idle = 900ms, .beat = 20ms}); }

TEST_F(BusGroupKeep, WhatIsHandedOutLateByAThreadIsNotTaken) {
  late_hand_out({.min_idle = 900ms, .beat = 20ms, .concurrency = 2, .order_key = [](const Record&) { return "one"; }});
}

/// What was trimmed after it was handed out is nobody else's: it is handled.
TEST_F(BusGroupKeep, WhatIsTrimmedInHandIsHandled) {
  EXPECT_TRUE(group().create(GroupStart::head).get().value());
  for (int i = 0; i < 5; ++i)
    append(std::to_string(i));
  std::atomic<int> runs{0};
  auto a = GroupConsumer::start(group(), "a",
                                [&](const StreamMessage&) {
                                  if (++runs == 1)
                                    std::this_thread::sleep_for(1s);
                                  return Handled::done;
                                },
                                {.min_idle = 150ms, .beat = 20ms});
  ASSERT_TRUE(a);
  ASSERT_TRUE(eventually([&] { return runs == 1; }));
  EXPECT_EQ(stream().trim_to(0).get().value(), 5U);
  ASSERT_TRUE(eventually([&] { return runs == 5; })) << runs;
  a->stop();
  EXPECT_EQ(a->stats().lost, 0U);
}

/// The thread that refreshes what is in hand looked six times a `min_idle` whether there was anything.
TEST_F(BusGroupKeep, NobodyLooksWhenNothingIsInHand) {
  const auto switches = [] {
    std::uint64_t sum = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream status(task.path() / "status");
      for (std::string word; status >> word;) {
        std::uint64_t count = 0;
        if (word == "voluntary_ctxt_switches:" && status >> count)
          sum += count;
      }
    }
    return sum;
  };
  auto a = GroupConsumer::start(group(), "a", [](const StreamMessage&) { return Handled::done; }, {.min_idle = 6ms});
  ASSERT_TRUE(a);
  append("0");
  ASSERT_TRUE(eventually([&] { return a->stats().handled == 1; }));
  const std::uint64_t before = switches();
  std::this_thread::sleep_for(1s);
  EXPECT_LT(switches() - before, 300U) << "a look a millisecond was 1,000";
  a->stop();
}

// Pages that a quick consumer had read before their turn lay untouched while a handler took its time: another one took them over, and
// each of their records had one attempt less.
TEST_F(BusGroupKeep, WhatWasReadAheadIsKeptWhileAHandlerRuns) {
  constexpr int kRecords = 60;
  ASSERT_TRUE(group().create(GroupStart::head).get().value());
  for (int i = 0; i < kRecords; ++i)
    append(std::to_string(i));
  std::mutex mutex;
  std::map<std::string, int> runs;  // guarded by mutex
  std::atomic<int> again{0};
  std::atomic<int> total{0};
  std::atomic<bool> running{false};
  const auto handler = [&](const StreamMessage& message) {
    const std::string& value = *message.record.find("k");
    if (value == "15" && !running.exchange(true))
      std::this_thread::sleep_for(3s);
    again += message.attempts == 1 ? 0 : 1;
    const std::lock_guard lock(mutex);
    ++runs[value];
    ++total;
    return Handled::done;
  };
  const GroupConsumerOptions options{.min_idle = 900ms, .beat = 20ms, .count = 10};
  auto a = GroupConsumer::start(group(), "a", handler, options);
  ASSERT_TRUE(a);
  ASSERT_TRUE(eventually([&] { return running.load(); }));
  auto b = GroupConsumer::start(group(), "b", handler, options);
  ASSERT_TRUE(b);
  ASSERT_TRUE(eventually([&] { return total >= kRecords; }));
  a->stop();
  b->stop();
  EXPECT_EQ(total, kRecords);
  EXPECT_THAT(runs, SizeIs(kRecords));
  EXPECT_EQ(again, 0) << "none was handed out twice";
  EXPECT_EQ(b->stats().taken_over, 0U);
  EXPECT_EQ(a->stats().lost, 0U);
  EXPECT_THAT(owners(), IsEmpty());
}

}  // namespace
}  // namespace echomq::test
