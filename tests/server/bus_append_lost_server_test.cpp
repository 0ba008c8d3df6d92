// Appends whose answers are lost, while of what was sent together some was refused and later records stand.
#include <algorithm>
#include <set>

#include "server/bus_fixture.hpp"
#include "support/proxy.hpp"

namespace echomq::test {
namespace {

using ::testing::HasSubstr;

/// Runs of records are on the stream and their answers have not come. Then the stream is made to be what it would be if somebody had
/// appended under the ids of some of them before they came: these were refused.
class BusAppendLost : public BusServerTest {
 protected:
  void SetUp() override {
    BusServerTest::SetUp();
    proxy_.emplace(server().url());
    mine_ = Client::open(proxy_->url(), {.deadline = 30s}).value();
    mine_stream_ = mine_->stream(QueueName{"q"}, StreamName{"s"});
  }

  struct Sent {
    std::vector<std::string> entries;                          // by record
    std::vector<Reply<std::vector<Result<EventId>>>> replies;  // by call
    std::optional<Reply<EventId>> brief;
    std::vector<Result<EventId>> results() {
      std::vector<Result<EventId>> out;
      for (auto& reply : replies) {
        auto some = reply.get().value();
        std::move(some.begin(), some.end(), std::back_inserter(out));
      }
      return out;
    }
  };

  /// Calls of so many records, whose values are their numbers and then `bytes` bytes, ten times as many in the last call; and
  /// one more with a deadline of its own.
  [[nodiscard]] Sent send(const std::vector<std::size_t>& calls, std::size_t bytes,
                          std::optional<Milliseconds> brief = {}) {
    // Made before, for there are few milliseconds between one call and the next.
    std::vector<std::unique_ptr<One>> ones;
    std::vector<std::vector<NewRecord>> batches;
    for (const std::size_t& records : calls) {
      std::vector<NewRecord>& batch = batches.emplace_back();
      const std::size_t more = &records == &calls.back() ? 10 * bytes : bytes;
      for (std::size_t i = 0; i < records; ++i) {
        ones.push_back(std::make_unique<One>(std::to_string(ones.size()) + std::string(more, '.')));
        batch.push_back(ones.back()->record);
      }
    }
    // On a busy machine, or under a sanitizer, few attempts come to anything.
    for (const auto end = std::chrono::steady_clock::now() + 60s; std::chrono::steady_clock::now() < end;) {
      proxy_->release();
      // After a burst ids are minted far enough ahead for all of it.
      const std::vector<NewRecord> burst(300);
      const auto appended = mine_stream_->append_many(burst).get().value();
      for (const auto& result : appended)
        EXPECT_TRUE(result);
      raw("DEL", kKey);
      append(*mine_stream_, "first");
      proxy_->hold(Direction::to_client);
      Sent sent;
      std::size_t number = ones.size();
      for (const auto& batch : batches)
        sent.replies.push_back(mine_stream_->append_many(batch));
      if (brief) {
        const One one(std::to_string(number++));
        sent.brief = mine_stream_->append(one.fields(), {.deadline = brief});
      }
      std::int64_t length = 0;
      for (auto until = std::chrono::steady_clock::now() + 200ms; std::cmp_not_equal(length, number + 1);) {
        if (std::chrono::steady_clock::now() > until)
          break;
        std::this_thread::sleep_for(1ms);
        if (const std::int64_t now = raw("XLEN", kKey).as_integer().value(); now != std::exchange(length, now))
          until = std::chrono::steady_clock::now() + 200ms;
      }
      const std::vector<Record> there = all();
      if (there.size() == number + 1) {
        for (std::size_t i = 0; i < number; ++i)
          sent.entries.push_back(there[i + 1].entry);
        return sent;
      }
      // The clock has moved on between two of them, and they were not sent together.
      proxy_->release();
      for (auto& reply : sent.replies)
        (void)reply.get();
      if (brief)
        (void)sent.brief->get();
    }
    throw std::runtime_error("they were never on their way together");
  }

  void refuse(const Sent& sent, const std::set<std::size_t>& gone) {
    const Value entries = raw("XRANGE", kKey, "-", "+");
    raw("DEL", kKey);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const auto id = std::string(entries[i][0].as_text().value());
      if (i > 0 && gone.contains(i - 1)) {
        raw("XADD", kKey, id, "k", "foreign");
      } else {
        raw("XADD", kKey, id, "id", entries[i][1][1].as_text().value(), "k", entries[i][1][3].as_text().value());
      }
    }
    ASSERT_EQ(entries.size(), sent.entries.size() + 1);
  }
  void cut() {
    proxy_->cut();
    proxy_->release();
  }

  /// The records that are not somebody else's, by number.
  [[nodiscard]] std::vector<std::size_t> numbers() {
    std::vector<std::size_t> out;
    for (const std::string& value : values()) {
      if (value != "first" && value != "foreign")
        out.push_back(std::stoul(value));
    }
    return out;
  }

  /// What stands before `last` was refused or stands still, what is behind it was minted again.
  void expect(const Sent& sent, const std::vector<Result<EventId>>& results, const std::set<std::size_t>& gone,
              std::size_t last) {
    std::vector<std::size_t> expected;
    std::vector<std::size_t> again;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!gone.contains(i)) {
        ASSERT_TRUE(results[i]) << i << ": " << results[i].error().message();
        EXPECT_EQ(results[i]->entry_id().text(), sent.entries[i]) << i;
        expected.push_back(i);
      } else if (i < last) {
        ASSERT_FALSE(results[i]) << i;
        EXPECT_TRUE(results[i].error().is(Errc::nonmonotonic)) << i << ": " << results[i].error().message();
        EXPECT_THAT(results[i].error().text, HasSubstr("later ones of its appender were not"));
      } else {
        ASSERT_TRUE(results[i]) << i << ": " << results[i].error().message();
        EXPECT_NE(results[i]->entry_id().text(), sent.entries[i]) << i;
        again.push_back(i);
      }
    }
    expected.insert(expected.end(), again.begin(), again.end());
    EXPECT_EQ(numbers(), expected) << "each once, in the order of the calls";
  }

  std::optional<Proxy> proxy_;
  std::optional<Client> mine_;
  std::optional<Stream> mine_stream_;
};

TEST_F(BusAppendLost, ARunThatWasRefusedIsNotMintedBehindTheOneThatStands) {
  const std::set<std::size_t> gone = {0, 1, 2, 3};
  Sent sent = send({4, 4, 2}, 0);
  refuse(sent, gone);
  cut();
  expect(sent, sent.results(), gone, 9);
  append(*mine_stream_, "10");
  EXPECT_EQ(numbers().back(), 10U);
}

TEST_F(BusAppendLost, HolesInARunStayAndWhatIsBehindAllOfItIsMintedAgain) {
  const std::set<std::size_t> gone = {1, 2, 5, 8, 9};
  Sent sent = send({4, 4, 2}, 0);
  refuse(sent, gone);
  cut();
  expect(sent, sent.results(), gone, 7);
}

TEST_F(BusAppendLost, RunsThatWereRefusedAltogetherAreMintedAgain) {
  const std::set<std::size_t> gone = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  Sent sent = send({4, 4, 2}, 0);
  refuse(sent, gone);
  cut();
  expect(sent, sent.results(), gone, 0);
}

/// What is sent again does not fit into one call of the script: that goes as far as 9, and 10 stands.
TEST_F(BusAppendLost, WhatStandsBehindTheCallIsSeenToo) {
  const std::set<std::size_t> gone = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  Sent sent = send({4, 4, 3}, 20'000);
  refuse(sent, gone);
  cut();
  expect(sent, sent.results(), gone, 10);
}

/// One that nobody waits for any more may stand all the same.
TEST_F(BusAppendLost, WhatWasGivenUpAndStandsIsNotPassedEither) {
  const std::set<std::size_t> gone = {0, 1, 2, 3, 4, 5, 6, 7};
  Sent sent = send({4, 4}, 0, 300ms);
  const auto brief = sent.brief->get();
  ASSERT_FALSE(brief);
  EXPECT_TRUE(brief.error().is(Errc::outcome_unknown)) << brief.error().message();
  refuse(sent, gone);
  cut();
  const auto results = sent.results();
  for (const auto& result : results) {
    ASSERT_FALSE(result);
    EXPECT_TRUE(result.error().is(Errc::nonmonotonic)) << result.error().message();
  }
  append(*mine_stream_, "9");
  EXPECT_EQ(numbers(), (std::vector<std::size_t>{8, 9}));
}

}  // namespace
}  // namespace echomq::test
