// Appending: order, receipts, several hosts, refusals.
#include <atomic>
#include <map>
#include <set>

#include "server/bus_fixture.hpp"
#include "support/proxy.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using BusAppend = BusServerTest;

/// Every receipt is an entry and every entry a receipt; entry ids follow from record ids and rise.
void expect_receipts_are_entries(const std::vector<Record>& records, std::set<EventId> receipts) {
  EventId before;
  for (const Record& record : records) {
    ASSERT_TRUE(record.id) << record.entry;
    EXPECT_EQ(record.id->entry_id().text(), record.entry);
    EXPECT_LT(before, *record.id);
    before = *record.id;
    EXPECT_EQ(receipts.erase(*record.id), 1U) << record.entry;
  }
  EXPECT_THAT(receipts, IsEmpty()) << "receipts without a record";
}

TEST_F(BusAppend, WritesTheIdFirstAndTheFieldsInOrder) {
  const Field fields[] = {{"type", "paid"}, {"amount", "12"}, {"type", "again"}};
  const EventId id = stream().append(fields).get().value();
  const Value entries = raw("XRANGE", kKey, "-", "+");
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0][0].as_text(), id.entry_id().text());
  EXPECT_EQ(entries[0][1].to_string(),
            R"(["id", ")" + std::string(id.text()) + R"(", "type", "paid", "amount", "12", "type", "again"])");
}

TEST_F(BusAppend, EightThreadsNeverRefuseEachOther) {
  constexpr int kThreads = 8;
  constexpr int kEach = 4000;
  std::mutex mutex;
  std::set<EventId> receipts;
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      // A handle of its own: the order is the stream's, not the handle's.
      const Stream mine = client().stream(QueueName{"q"}, StreamName{"s"});
      std::vector<Reply<EventId>> replies;
      for (int i = 0; i < kEach; ++i) {
        const One one(std::to_string(t) + ":" + std::to_string(i));
        replies.push_back(mine.append(one.fields()));
      }
      std::vector<EventId> ids;
      for (auto& reply : replies) {
        auto id = reply.get();
        if (id) {
          ids.push_back(*id);
        } else {
          ++refused;
          ADD_FAILURE() << id.error().message();
        }
      }
      EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end())) << "receipts in call order";
      const std::lock_guard lock(mutex);
      receipts.insert(ids.begin(), ids.end());
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(refused, 0);
  const std::vector<Record> records = all();
  ASSERT_EQ(records.size(), std::size_t{kThreads} * kEach);
  expect_receipts_are_entries(records, receipts);
  std::map<std::string, int> next;
  for (const Record& record : records) {
    const std::string& value = *record.find("k");
    const std::string thread = value.substr(0, value.find(':'));
    EXPECT_EQ(value, thread + ":" + std::to_string(next[thread]++))
        << "the records of a thread stand in its call order";
  }
}

TEST_F(BusAppend, WhatIsWaitedForOneByOneStandsInOrderToo) {
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 300; ++i) {
        const One one("v");
        failed += stream().append(one.fields()).get() ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(stream().length().get().value(), 2400U);
}

TEST_F(BusAppend, HostsWithClocksApartAppendAboveEachOther) {
  // Three hosts, one 50 ms ahead of the others, appending at once in bursts.
  const std::int64_t skews[] = {0, 50, 0};
  std::vector<Client> clients;
  for (int i = 0; i < 3; ++i)
    clients.push_back(open());
  std::mutex mutex;
  std::set<EventId> receipts;
  std::vector<std::thread> threads;
  constexpr int kEach = 3000;
  for (std::size_t host = 0; host < 3; ++host) {
    threads.emplace_back([&, host] {
      const Stream mine = skewed_stream(clients[host], Milliseconds(skews[host]));
      std::vector<Reply<EventId>> replies;
      for (int i = 0; i < kEach; ++i) {
        const One one(std::to_string(host) + ":" + std::to_string(i));
        replies.push_back(mine.append(one.fields()));
        if (i % 100 == 99)
          std::this_thread::sleep_for(1ms);
      }
      for (auto& reply : replies) {
        const auto id = reply.get();
        ASSERT_TRUE(id) << "host " << host << ": " << id.error().message();
        const std::lock_guard lock(mutex);
        receipts.insert(*id);
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  const std::vector<Record> records = all();
  ASSERT_EQ(records.size(), std::size_t{3} * kEach);
  expect_receipts_are_entries(records, receipts);
  std::map<std::string, int> next;
  for (const Record& record : records) {
    const std::string& value = *record.find("k");
    const std::string host = value.substr(0, value.find(':'));
    ASSERT_EQ(value, host + ":" + std::to_string(next[host]++)) << "the records of a host stand in its call order";
  }
}

TEST_F(BusAppend, TwoHostsThatTakeTurnsAreBothHeard) {
  Client other = open();
  const Stream ahead = skewed_stream(other, 200ms);
  for (int i = 0; i < 50; ++i) {
    append(ahead, "a" + std::to_string(i));
    append("b" + std::to_string(i));
  }
  std::vector<std::string> expected;
  for (int i = 0; i < 50; ++i) {
    expected.push_back("a" + std::to_string(i));
    expected.push_back("b" + std::to_string(i));
  }
  EXPECT_EQ(values(), expected);
}

TEST_F(BusAppend, HostsThatTakeTurnsDoNotRunAwayFromTheClock) {
  // Each turn costs a millisecond of the stream's time: without a brake four hosts would use up `max_skew` in a second.
  const std::int64_t skews[] = {0, 50, 0, 0};
  std::vector<Client> clients;
  for (int i = 0; i < 4; ++i)
    clients.push_back(open());
  std::atomic<int> appended{0};
  std::vector<std::thread> threads;
  const auto until = std::chrono::steady_clock::now() + 2s;
  for (std::size_t host = 0; host < 4; ++host) {
    threads.emplace_back([&, host] {
      const Stream mine = skewed_stream(clients[host], Milliseconds(skews[host]));
      while (std::chrono::steady_clock::now() < until) {
        const auto id = mine.append({}).get();
        ASSERT_TRUE(id) << "host " << host << ": " << id.error().message();
        ++appended;
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(stream().length().get().value(), static_cast<std::uint64_t>(appended));
  const auto top = EventId::from_entry_id(stream().info().get().value().top).value().minted_at();
  const auto now = std::chrono::time_point_cast<Milliseconds>(std::chrono::system_clock::now());
  EXPECT_LT(top - now, 1000ms) << appended << " records";
  RecordProperty("records", appended.load());
  RecordProperty("ahead_ms", static_cast<int>((top - now).count()));
  std::printf("%d records, %lld ms ahead\n", appended.load(), static_cast<long long>((top - now).count()));
}

TEST_F(BusAppend, ATopTooFarAheadIsATypedErrorThatSaysByHowMuch) {
  const auto hour = std::chrono::time_point_cast<Milliseconds>(std::chrono::system_clock::now()) + 1h;
  const EventId future = EventId::smallest_for(hour).value();
  append("future", {.id = future});

  const One one("now");
  const auto refused = stream().append(one.fields()).get();
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(Errc::nonmonotonic));
  EXPECT_THAT(refused.error().text, HasSubstr(future.entry_id().text()));
  EXPECT_THAT(refused.error().text, ::testing::ContainsRegex("is 3(59[0-9]|600)[0-9][0-9][0-9]ms ahead"));

  const NewRecord records[] = {one.record, one.record, one.record};
  const auto results = stream().append_many(records).get().value();
  ASSERT_EQ(results.size(), 3U);
  for (const auto& result : results)
    EXPECT_TRUE(!result && result.error().is(Errc::nonmonotonic));
  EXPECT_EQ(values(), std::vector<std::string>{"future"});

  // Whoever accepts it may go past it; and nothing else of this client was pushed ahead before.
  EXPECT_LT(client().mint("JOB").value().minted_at(), future.minted_at());
  EXPECT_GT(append("later", {.max_skew = 2h}), future);
}

TEST_F(BusAppend, AnIdOfTheCallersIsSentAsItIs) {
  const EventId newer{"EVT0NgV51Ulioi"};
  const EventId older{"EVT0NgV51UU7ge"};
  EXPECT_EQ(append("newer", {.id = newer}), newer);
  const One one("older");
  for (const EventId& id : {older, newer}) {
    const auto refused = stream().append(one.fields(), {.id = id}).get();
    ASSERT_FALSE(refused);
    EXPECT_TRUE(refused.error().is(Errc::nonmonotonic));
  }
  EXPECT_THAT(values(), ElementsAre("newer"));
}

TEST_F(BusAppend, ManyGiveOneResultEach) {
  std::vector<std::unique_ptr<One>> ones;
  std::vector<NewRecord> records;
  for (int i = 0; i < 2500; ++i) {
    ones.push_back(std::make_unique<One>(std::to_string(i)));
    records.push_back(ones.back()->record);
  }
  const auto results = stream().append_many(records).get().value();
  ASSERT_EQ(results.size(), records.size());
  std::set<EventId> receipts;
  for (const auto& result : results) {
    ASSERT_TRUE(result) << result.error().message();
    receipts.insert(*result);
  }
  const std::vector<Record> all_of_it = all();
  expect_receipts_are_entries(all_of_it, receipts);
  for (std::size_t i = 0; i < all_of_it.size(); ++i)
    EXPECT_EQ(*all_of_it[i].find("k"), std::to_string(i));
}

TEST_F(BusAppend, AWrongTypeGivesErrorsAndNoReceipts) {
  raw("SET", kKey, "x");
  const One one("v");
  const auto single = stream().append(one.fields()).get();
  ASSERT_FALSE(single);
  EXPECT_TRUE(single.error().is(Errc::server_error));
  EXPECT_THAT(single.error().text, HasSubstr("WRONGTYPE"));
  const NewRecord records[] = {one.record, one.record};
  const auto results = stream().append_many(records).get().value();
  for (const auto& result : results) {
    ASSERT_FALSE(result);
    EXPECT_THAT(result.error().text, HasSubstr("WRONGTYPE"));
  }
  EXPECT_EQ(raw("GET", kKey).as_text(), "x");
}

TEST_F(BusAppend, AFullServerRefusesEachRecordAndWritesNothing) {
  append("before");
  raw("CONFIG", "SET", "maxmemory", "1");
  const One one("v");
  const NewRecord records[] = {one.record, one.record};
  const auto single = stream().append(one.fields()).get();
  const auto results = stream().append_many(records).get().value();
  raw("CONFIG", "SET", "maxmemory", "0");
  EXPECT_TRUE(!single && single.error().is(Errc::out_of_memory));
  for (const auto& result : results)
    EXPECT_TRUE(!result && result.error().is(Errc::out_of_memory)) << result.error().message();
  append("after");
  EXPECT_THAT(values(), ElementsAre("before", "after"));
}

TEST_F(BusAppend, ATrimmedTopStillCounts) {
  // The top of a stream that was trimmed to nothing is not among its entries.
  Client other = open();
  append(skewed_stream(other, 300ms), "ahead");
  EXPECT_EQ(stream().trim_to(0).get().value(), 1U);
  append("next");
  EXPECT_THAT(values(), ElementsAre("next"));
}

TEST_F(BusAppend, RecordsOfAnySizeAndBytes) {
  std::string bytes;
  for (int i = 0; i < 256; ++i)
    bytes += static_cast<char>(i);
  const std::string huge(3 << 20, '\0');
  std::vector<std::string> names;
  for (int i = 0; i < 800; ++i)
    names.push_back("f" + std::to_string(i));
  std::vector<Field> wide;
  for (const std::string& name : names)
    wide.emplace_back(name, bytes);
  const Field binary[] = {{bytes, bytes}, {"", ""}, {"huge", huge}};
  // All at once, so that each form of sending meets the others: alone, in a script, too wide for one.
  std::vector<Reply<EventId>> replies;
  for (int round = 0; round < 3; ++round) {
    replies.push_back(stream().append(binary));
    replies.push_back(stream().append(wide));
    replies.push_back(stream().append({}));
  }
  std::set<EventId> receipts;
  for (auto& reply : replies) {
    auto id = reply.get();
    ASSERT_TRUE(id) << id.error().message();
    receipts.insert(*id);
  }
  const std::vector<Record> records = all();
  ASSERT_EQ(records.size(), 9U);
  expect_receipts_are_entries(records, receipts);
  for (std::size_t i = 0; i < 9; i += 3) {
    EXPECT_EQ(*records[i].find(bytes), bytes);
    EXPECT_EQ(*records[i].find("huge"), huge);
    EXPECT_EQ(*records[i].find(""), "");
    ASSERT_EQ(records[i + 1].fields.size(), 800U);
    EXPECT_EQ(records[i + 1].fields[799].first, "f799");
    EXPECT_THAT(records[i + 2].fields, IsEmpty());
  }
}

TEST_F(BusAppend, AWideRecordBehindAnotherHostIsMintedAgainToo) {
  Client other = open();
  append(skewed_stream(other, 300ms), "ahead");
  std::vector<std::string> names;
  for (int i = 0; i < 600; ++i)
    names.push_back("f" + std::to_string(i));
  std::vector<Field> wide;
  for (const std::string& name : names)
    wide.emplace_back(name, "v");
  Reply<EventId> first = stream().append(wide);
  Reply<EventId> second = stream().append({});
  const auto a = first.get();
  const auto b = second.get();
  ASSERT_TRUE(a && b);
  EXPECT_LT(*a, *b);
  EXPECT_EQ(all().size(), 3U);
}

TEST_F(BusAppend, AtTheBoundARecordIsRefusedOrWaits) {
  Client small = open({.max_in_flight = 8, .overflow = Overflow::refuse});
  const Stream narrow = small.stream(QueueName{"q"}, StreamName{"s"});
  std::vector<Reply<EventId>> replies;
  const One one("v");
  for (int i = 0; i < 2000; ++i)
    replies.push_back(narrow.append(one.fields()));
  std::size_t done = 0;
  for (auto& reply : replies) {
    const auto id = reply.get();
    done += id ? 1 : 0;
    EXPECT_TRUE(id || id.error().is(Errc::overloaded)) << id.error().message();
  }
  EXPECT_EQ(stream().length().get().value(), done);

  Client patient = open({.max_in_flight = 8});
  const Stream waits = patient.stream(QueueName{"q"}, StreamName{"w"});
  replies.clear();
  for (int i = 0; i < 2000; ++i)
    replies.push_back(waits.append(one.fields()));
  for (auto& reply : replies)
    EXPECT_TRUE(reply.get());
  EXPECT_EQ(waits.length().get().value(), 2000U);
}

TEST_F(BusAppend, AClosedClientAnswersEveryRecord) {
  Client mine = open();
  const Stream to = mine.stream(QueueName{"q"}, StreamName{"s"});
  std::vector<Reply<EventId>> replies;
  const One one("v");
  for (int i = 0; i < 5000; ++i)
    replies.push_back(to.append(one.fields()));
  mine.close();
  std::size_t done = 0;
  for (auto& reply : replies) {
    auto id = reply.get_for(5s);
    ASSERT_TRUE(id.has_value()) << "a record was left without an answer";
    done += *id ? 1 : 0;
  }
  EXPECT_GE(stream().length().get().value(), done);
  EXPECT_TRUE(to.append(one.fields()).get().error().is(Errc::client_closed));
}

TEST_F(BusAppend, ALostConnectionLeavesEachRecordOnceAndInOrder) {
  Client mine = open({.name = "cut"});
  const Stream to = mine.stream(QueueName{"q"}, StreamName{"s"});
  std::atomic<bool> over{false};
  std::thread killer([&] {
    while (!over) {
      // The line of that name: `id=<n> addr=... name=cut ...`.
      const std::string list(raw("CLIENT", "LIST").as_text().value());
      if (const std::size_t name = list.find(" name=cut "); name != std::string::npos) {
        const std::size_t newline = list.rfind('\n', name);
        const std::size_t begin = (newline == std::string::npos ? 0 : newline + 1) + 3;
        (void)client().command("CLIENT", "KILL", "ID", list.substr(begin, list.find(' ', begin) - begin)).get();
      }
      std::this_thread::sleep_for(15ms);
    }
  });
  std::vector<Reply<EventId>> replies;
  std::vector<std::unique_ptr<One>> ones;
  for (int i = 0; i < 6000; ++i) {
    ones.push_back(std::make_unique<One>(std::to_string(i)));
    replies.push_back(to.append(ones.back()->fields()));
    if (i % 20 == 0)
      std::this_thread::sleep_for(1ms);
  }
  std::set<EventId> receipts;
  for (auto& reply : replies) {
    const auto id = reply.get();
    ASSERT_TRUE(id) << id.error().message();
    receipts.insert(*id);
  }
  over = true;
  killer.join();
  EXPECT_GT(mine.stats().reconnects, 2U);
  const std::vector<Record> records = all();
  ASSERT_EQ(records.size(), 6000U);
  expect_receipts_are_entries(records, receipts);
  for (std::size_t i = 0; i < records.size(); ++i)
    ASSERT_EQ(*records[i].find("k"), std::to_string(i));
}

/// One append is on the stream and its answer has not come: what happens then is said by the test.
class BusAppendUnanswered : public BusServerTest {
 protected:
  void SetUp() override {
    BusServerTest::SetUp();
    proxy_.emplace(server().url());
    mine_ = Client::open(proxy_->url(), {.deadline = 3s}).value();
    append(mine_->stream(QueueName{"q"}, StreamName{"s"}), "first");
    proxy_->hold(Direction::to_client);
  }
  /// With an id of the caller's or without.
  [[nodiscard]] Reply<EventId> send(AppendOptions options = {}) {
    const One one("unanswered");
    auto reply = mine_->stream(QueueName{"q"}, StreamName{"s"}).append(one.fields(), options);
    for (const auto until = std::chrono::steady_clock::now() + 10s;
         raw("XLEN", kKey).as_integer() != 2 && std::chrono::steady_clock::now() < until;)
      std::this_thread::sleep_for(1ms);
    EXPECT_EQ(raw("XLEN", kKey).as_integer(), 2);
    return reply;
  }
  void cut() {
    proxy_->cut();
    proxy_->release();
  }

  std::optional<Proxy> proxy_;
  std::optional<Client> mine_;
};

TEST_F(BusAppendUnanswered, StandsOnceWhenTheServerIsBack) {
  auto reply = send();
  cut();
  const auto id = reply.get();
  ASSERT_TRUE(id) << id.error().message();
  const auto records = all();
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[1].id, *id);
}

TEST_F(BusAppendUnanswered, IsNotSafeToRepeatWhenTheServerStaysAway) {
  auto reply = send();
  proxy_->refuse_new(true);
  cut();
  const auto id = reply.get();
  ASSERT_FALSE(id);
  EXPECT_TRUE(id.error().is(Errc::outcome_unknown)) << id.error().message();
  EXPECT_EQ(id.error().repeat, Repeat::unsafe);
}

TEST_F(BusAppendUnanswered, IsNotSafeToRepeatWhenTheServerIsFullMeanwhile) {
  for (const bool own : {false, true}) {
    auto reply = own ? send({.id = EventId::parse("EVT0zzzzzzzzzz").value()}) : send();
    raw("CONFIG", "SET", "maxmemory", "1");
    cut();
    const auto id = reply.get();
    raw("CONFIG", "SET", "maxmemory", "0");
    ASSERT_FALSE(id) << own;
    EXPECT_TRUE(id.error().is(Errc::outcome_unknown)) << own << ": " << id.error().message();
    EXPECT_EQ(id.error().repeat, Repeat::unsafe);
    raw("XTRIM", kKey, "MAXLEN", "1");
    proxy_->hold(Direction::to_client);
  }
}

/// XTRIM does not move max-deleted-entry-id: the record was taken for one that had never been there, and stood again.
TEST_F(BusAppendUnanswered, IsNotAppendedAgainWhenItWasTrimmedMeanwhile) {
  for (const char* keeps : {"0", "1"}) {
    auto reply = send();
    if (*keeps == '1')
      append("later");
    raw("XTRIM", kKey, "MAXLEN", keeps);
    cut();
    const auto id = reply.get();
    ASSERT_FALSE(id) << keeps;
    EXPECT_TRUE(id.error().is(Errc::outcome_unknown)) << id.error().message();
    for (const Record& record : all())
      EXPECT_NE(*record.find("k"), "unanswered");
    raw("DEL", kKey);
    append("first");
    proxy_->hold(Direction::to_client);
  }
}

// Runs: while nobody else writes, records travel as plain XADDs; what was refused or lost is looked up by the script.

TEST_F(BusAppend, ALoneWriterNeedsNoScript) {
  const One one("v");
  append("first");
  raw("CONFIG", "RESETSTAT");
  std::vector<Reply<EventId>> replies;
  for (int i = 0; i < 5000; ++i)
    replies.push_back(stream().append(one.fields()));
  for (auto& reply : replies)
    ASSERT_TRUE(reply.get());
  const std::string stats(raw("INFO", "commandstats").as_text().value());
  EXPECT_NE(stats.find("cmdstat_xadd:calls=5000,"), std::string::npos) << stats;
  EXPECT_EQ(stats.find("cmdstat_evalsha:"), std::string::npos) << stats;
}

TEST_F(BusAppend, IdsThatNobodyMintedMayRefuseARecordButNotChangeTheOrder) {
  // XADD `*` gives the id behind the newest one while the clock stands, which is the id of the next record of a run.
  std::atomic<bool> over{false};
  std::thread foreign([&] {
    Client other = open();
    while (!over)
      ASSERT_TRUE(other.command("XADD", kKey, "*", "f", "v").get());
  });
  std::vector<Reply<EventId>> replies;
  const auto until = std::chrono::steady_clock::now() + 3s;
  std::map<int, EventId> stood;
  int sent = 0;
  while (std::chrono::steady_clock::now() < until) {
    const int first = sent;
    for (; sent < first + 500; ++sent)
      replies.push_back(stream().append(One(std::to_string(sent)).fields()));
    for (int i = first; i < sent; ++i) {
      const auto id = replies[static_cast<std::size_t>(i)].get();
      if (id) {
        stood.emplace(i, *id);
      } else {
        EXPECT_TRUE(id.error().is(Errc::nonmonotonic)) << id.error().message();
      }
    }
  }
  over = true;
  foreign.join();
  auto next = stood.begin();
  for (const Record& record : all()) {
    if (!record.id)
      continue;
    ASSERT_NE(next, stood.end());
    EXPECT_EQ(*record.find("k"), std::to_string(next->first));
    EXPECT_EQ(*record.id, next->second);
    ++next;
  }
  EXPECT_EQ(next, stood.end());
  EXPECT_GT(stood.size(), static_cast<std::size_t>(sent) * 99 / 100);
}

TEST_F(BusAppend, AConnectionLostInTheMiddleOfBurstsLeavesEachRecordOnceAndInOrder) {
  Client mine = open({.name = "cut"});
  const Stream to = mine.stream(QueueName{"q"}, StreamName{"s"});
  std::atomic<bool> over{false};
  std::thread killer([&] {
    while (!over) {
      std::this_thread::sleep_for(7ms);
      const std::string list(raw("CLIENT", "LIST").as_text().value());
      if (const std::size_t name = list.find(" name=cut "); name != std::string::npos) {
        const std::size_t newline = list.rfind('\n', name);
        const std::size_t begin = (newline == std::string::npos ? 0 : newline + 1) + 3;
        (void)client().command("CLIENT", "KILL", "ID", list.substr(begin, list.find(' ', begin) - begin)).get();
      }
    }
  });
  constexpr std::size_t kRecords = 60'000;
  std::vector<Reply<EventId>> replies;
  std::set<EventId> receipts;
  const auto take = [&](Reply<EventId>& reply) {
    const auto id = reply.get();
    ASSERT_TRUE(id) << id.error().message();
    EXPECT_TRUE(receipts.empty() || *receipts.rbegin() < *id);
    receipts.insert(*id);
  };
  for (std::size_t i = 0; i < kRecords; ++i) {
    replies.push_back(to.append(One(std::to_string(i)).fields()));
    if (i >= 2000) {
      ASSERT_NO_FATAL_FAILURE(take(replies[i - 2000]));
    }
  }
  for (std::size_t i = kRecords - 2000; i < kRecords; ++i)
    ASSERT_NO_FATAL_FAILURE(take(replies[i]));
  over = true;
  killer.join();
  EXPECT_GT(mine.stats().reconnects, 2U);
  const std::vector<Record> records = all();
  ASSERT_EQ(records.size(), kRecords);
  expect_receipts_are_entries(records, receipts);
  for (std::size_t i = 0; i < records.size(); ++i)
    ASSERT_EQ(*records[i].find("k"), std::to_string(i));
}

}  // namespace
}  // namespace echomq::test
