// Records that are appended once, by a key of their caller's.
#include <atomic>
#include <set>

#include "bus_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class BusOnce : public BusServerTest {
 protected:
  EventId once(std::string_view key, std::string_view value, OnceWindow window = {}) {
    AppendOptions options;
    options.once = key;
    options.window = window;
    return append(value, options);
  }
};

TEST_F(BusOnce, ARepeatedKeyAnswersTheFirstIdAndWritesNothing) {
  const EventId first = once("request 1", "a");
  const EventId other = once("request 2", "b");
  EXPECT_NE(first, other);
  EXPECT_EQ(once("request 1", "again"), first);
  Client elsewhere = open();
  AppendOptions options;
  options.once = "request 2";
  EXPECT_EQ(append(elsewhere.stream("q", "s"), "again", options), other);
  EXPECT_THAT(values(), ElementsAre("a", "b"));
  // Of this stream only.
  const EventId third = append(client().stream("q", "t"), "c", options);
  EXPECT_NE(third, other);
  // A record that was trimmed stays appended.
  ASSERT_TRUE(stream().trim_to(0).get());
  EXPECT_EQ(once("request 1", "again"), first);
  EXPECT_THAT(values(), ElementsAre());
}

TEST_F(BusOnce, KeysGoByNumberAndByAge) {
  const OnceWindow three{.most = 3, .age = 0ms};
  const EventId first = once("1", "1", three);
  once("2", "2", three);
  once("3", "3", three);
  EXPECT_EQ(once("1", "again", three), first);
  once("4", "4", three);
  EXPECT_NE(once("1", "anew", three), first) << "it was the oldest";
  EXPECT_EQ(raw("HLEN", "emq:{q}:once:s").as_integer(), 3);
  EXPECT_EQ(raw("ZCARD", "emq:{q}:once-ages:s").as_integer(), 3);
  EXPECT_EQ(raw("PTTL", "emq:{q}:once:s").as_integer(), -1);
  const OnceWindow brief{.most = 100, .age = 1s};
  const EventId aged = once("a", "a", brief);
  EXPECT_EQ(once("a", "again", brief), aged);
  std::this_thread::sleep_for(1100ms);
  EXPECT_NE(once("a", "anew", brief), aged);
  std::this_thread::sleep_for(1100ms);
  EXPECT_EQ(raw("EXISTS", "emq:{q}:once:s", "emq:{q}:once-ages:s").as_integer(), 0) << "both expire";
}

TEST_F(BusOnce, ManyAtOnceFromTwoClientsStandOnceEachInOrder) {
  constexpr int kRecords = 2000;
  Client other = open();
  const Stream mine = stream();
  const Stream theirs = other.stream("q", "s");
  std::vector<std::vector<EventId>> receipts(2);
  const auto write = [&](const Stream& to, std::vector<EventId>& ids) {
    std::vector<Reply<EventId>> sent;
    for (int i = 0; i < kRecords; ++i) {
      const One one(std::to_string(i));
      AppendOptions options;
      options.once = one.value;
      sent.push_back(to.append(one.fields(), options));
    }
    for (auto& reply : sent) {
      const auto id = reply.get();
      ASSERT_TRUE(id) << id.error().message();
      ids.push_back(*id);
    }
  };
  std::thread second([&] { write(theirs, receipts[1]); });
  write(mine, receipts[0]);
  second.join();
  EXPECT_EQ(receipts[0], receipts[1]);
  const auto records = all();
  ASSERT_EQ(records.size(), std::size_t{kRecords});
  std::set<std::string> seen;
  for (const Record& record : records)
    EXPECT_TRUE(seen.insert(*record.find("k")).second);
}

TEST_F(BusOnce, BesideOtherAppendsOfOneThreadTheOrderStays) {
  std::vector<Reply<EventId>> sent;
  std::vector<std::string> expected;
  for (int i = 0; i < 1000; ++i) {
    const One one(std::to_string(i));
    AppendOptions options;
    if (i % 7 == 0)
      options.once = one.value;
    sent.push_back(stream().append(one.fields(), options));
    expected.push_back(one.value);
  }
  for (auto& reply : sent)
    ASSERT_TRUE(reply.get());
  EXPECT_EQ(values(), expected);
}

// The answer is lost with the connection: what was sent again stands once, under the first receipt.
TEST_F(BusOnce, ALostConnectionAppendsNothingTwice) {
  constexpr int kRecords = 300;
  std::atomic<bool> done = false;
  Client cut = open({.name = "cut", .backoff_initial = 1ms, .backoff_max = 4ms});
  const Stream to = cut.stream("q", "s");
  Client killer = open({.name = "killer"});
  std::thread cuts([&] {
    while (!done) {
      (void)killer.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").get();
      std::this_thread::sleep_for(8ms);
    }
  });
  std::vector<EventId> receipts;
  for (int i = 0; i < kRecords; ++i) {
    const One one(std::to_string(i));
    AppendOptions options;
    options.once = one.value;
    // A caller that does not know goes on until it does.
    for (int attempt = 0; attempt < 100; ++attempt) {
      const auto id = to.append(one.fields(), options).get();
      if (id) {
        receipts.push_back(*id);
        break;
      }
    }
  }
  done = true;
  cuts.join();
  ASSERT_EQ(receipts.size(), std::size_t{kRecords});
  const auto records = all();
  ASSERT_EQ(records.size(), std::size_t{kRecords});
  for (std::size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].id, receipts[i]);
    EXPECT_EQ(*records[i].find("k"), std::to_string(i));
  }
}

TEST_F(BusOnce, AStreamWhoseTopIsAheadGetsThemAboveIt) {
  Client ahead = open();
  append(skewed_stream(ahead, 1000ms), "ahead");
  const EventId id = once("1", "behind");
  EXPECT_EQ(once("1", "again"), id);
  EXPECT_THAT(values(), ElementsAre("ahead", "behind"));
  append(skewed_stream(ahead, 60'000ms), "far ahead");
  const One one("late");
  AppendOptions options;
  options.once = "2";
  const auto refused = stream().append(one.fields(), options).get();
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(Errc::nonmonotonic));
  EXPECT_THAT(refused.error().message(), HasSubstr("ahead of this client's clock"));
  EXPECT_EQ(once("1", "again"), id) << "known ones are answered all the same";
}

TEST_F(BusOnce, InABatchAndWhatIsRefused) {
  const One a("a");
  const One b("b");
  const NewRecord records[] = {{a.fields(), "k1"}, {b.fields(), "k2"}, {a.fields(), "k1"}, {b.fields(), {}}};
  const auto results = stream().append_many(records).get();
  ASSERT_TRUE(results) << results.error().message();
  ASSERT_EQ(results->size(), 4U);
  EXPECT_EQ(*(*results)[0], *(*results)[2]);
  EXPECT_THAT(values(), ElementsAre("a", "b", "b"));
  AppendOptions options;
  options.once = std::string_view("key");
  options.id = *(*results)[0];
  EXPECT_TRUE(stream().append(a.fields(), options).get().error().is(Errc::invalid_argument));
  options.id.reset();
  options.window.most = 0;
  EXPECT_TRUE(stream().append(a.fields(), options).get().error().is(Errc::invalid_argument));
  options.window = {.most = 10, .age = -1ms};
  EXPECT_TRUE(stream().append(a.fields(), options).get().error().is(Errc::invalid_argument));
  const std::string long_key(513, 'x');
  options.window = {};
  options.once = long_key;
  EXPECT_TRUE(stream().append(a.fields(), options).get().error().is(Errc::invalid_argument));
  raw("SET", "emq:{q}:once:t", "text");
  options.once = "key";
  EXPECT_TRUE(client().stream("q", "t").append(a.fields(), options).get().error().is(Errc::server_error));
  EXPECT_EQ(raw("EXISTS", "emq:{q}:stream:t").as_integer(), 0) << "nothing is written before all is looked at";
}

}  // namespace
}  // namespace echomq::test
