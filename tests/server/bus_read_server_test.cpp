// Reading, trimming, retention and the archive's watermark.
#include "server/bus_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class BusRead : public BusServerTest {
 protected:
  static constexpr std::int64_t kStart = 1780512000000;
  [[nodiscard]] static Instant at(std::int64_t offset) { return Instant(Milliseconds(kStart + offset)); }
  /// A record minted that many ms after the start, holding that number.
  EventId put(std::int64_t offset, std::uint64_t tail = 0) {
    const EventId id = EventId::from_value(EventId::smallest_for(at(offset)).value().value() + tail).value();
    return append(std::to_string(offset), {.id = id});
  }
  [[nodiscard]] static std::vector<std::string> of(const Result<Page>& page) {
    EXPECT_TRUE(page) << page.error().message();
    std::vector<std::string> out;
    if (page) {
      for (const Record& record : page->records)
        out.push_back(*record.find("k"));
    }
    return out;
  }
};

TEST_F(BusRead, WindowsAreClosedAndExactToTheMillisecond) {
  for (const std::int64_t offset : {-1, 0, 100, 250})
    put(offset, offset == 250 ? 0x3FFFFF : 0);
  put(251);
  EXPECT_THAT(of(stream().read_window(at(0), at(250)).get()), ElementsAre("0", "100", "250"));
  EXPECT_THAT(of(stream().read_window(at(0), at(0)).get()), ElementsAre("0"));
  EXPECT_THAT(of(stream().read_window(at(0), at(250), {.count = 2}).get()), ElementsAre("0", "100"));
  EXPECT_THAT(of(stream().read_window(at(0), at(250), {.direction = echomq::Direction::newest_first}).get()),
              ElementsAre("250", "100", "0"));
  EXPECT_THAT(of(stream().read_since(at(100)).get()), ElementsAre("100", "250", "251"));
  EXPECT_THAT(of(stream().read_since(at(1000)).get()), IsEmpty());
}

TEST_F(BusRead, PagesCoverEverythingOnceInBothDirections) {
  std::vector<std::string> expected;
  for (int i = 0; i < 25; ++i) {
    put(i);
    expected.push_back(std::to_string(i));
  }
  for (const echomq::Direction direction : {echomq::Direction::oldest_first, echomq::Direction::newest_first}) {
    std::vector<std::string> got;
    auto page = stream().read_window(at(0), at(24), {.count = 10, .direction = direction}).get();
    int pages = 0;
    for (;;) {
      const auto part = of(page);
      got.insert(got.end(), part.begin(), part.end());
      ++pages;
      if (!page->rest)
        break;
      page = stream().read(page->rest->first, page->rest->second, {.count = 10, .direction = direction}).get();
    }
    EXPECT_EQ(pages, 3);
    if (direction == echomq::Direction::newest_first)
      std::reverse(got.begin(), got.end());
    EXPECT_EQ(got, expected);
  }
}

TEST_F(BusRead, AfterARecordComesTheNext) {
  put(0);
  const EventId second = put(0, 1);
  put(1);
  EXPECT_THAT(of(stream().read_after(second).get()), ElementsAre("1"));
}

TEST_F(BusRead, ForeignEntriesAreShownAsTheyAre) {
  raw("XADD", kKey, "5-1", "field", "value");
  raw("XADD", kKey, "5-2", "id", "no record id", "k", "v");
  raw("XADD", kKey, "5-3", "a", "1", "id", "EVT0NgV51UU7ge", "id", "hidden");
  const Page page = stream().read().get().value();
  ASSERT_EQ(page.records.size(), 3U);
  EXPECT_FALSE(page.records[0].id);
  EXPECT_EQ(page.records[0].entry, "5-1");
  EXPECT_EQ(*page.records[0].find("field"), "value");
  EXPECT_FALSE(page.records[1].id);
  EXPECT_EQ(*page.records[1].find("id"), "no record id");
  EXPECT_EQ(page.records[2].id->text(), "EVT0NgV51UU7ge");
  EXPECT_EQ(page.records[2].fields.size(), 1U);
}

TEST_F(BusRead, InfoAndLengthOfAStreamAndOfNone) {
  EXPECT_FALSE(stream().info().get().value().exists);
  EXPECT_EQ(stream().length().get().value(), 0U);
  EXPECT_THAT(stream().groups().get().value(), IsEmpty());
  EXPECT_THAT(of(stream().read().get()), IsEmpty());
  put(0);
  const EventId last = put(1);
  EXPECT_TRUE(stream().group("g").value().create(GroupStart::head).get().value());
  EXPECT_EQ(stream().trim_to(1).get().value(), 1U);
  const StreamInfo info = stream().info().get().value();
  EXPECT_TRUE(info.exists);
  EXPECT_EQ(info.length, 1U);
  EXPECT_EQ(info.appended, 2U);
  EXPECT_EQ(info.top, last.entry_id().text());
  EXPECT_EQ(info.groups, 1U);
  const auto groups = stream().groups().get().value();
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].name, "g");
  EXPECT_EQ(groups[0].last_delivered, "0-0");
}

TEST_F(BusRead, AnErrorReplyIsAnError) {
  raw("SET", kKey, "x");
  for (const Error& error : {stream().read().get().error(), stream().length().get().error(),
                             stream().info().get().error(), stream().groups().get().error(),
                             stream().trim_to(1).get().error(), stream().trim_before(at(0)).get().error()}) {
    EXPECT_TRUE(error.is(Errc::server_error)) << error.message();
    EXPECT_THAT(error.text, HasSubstr("WRONGTYPE"));
  }
}

TEST_F(BusRead, TrimsKeepTheEdge) {
  for (int i = 0; i < 10; ++i)
    put(i);
  EXPECT_EQ(stream().trim_before(at(2)).get().value(), 2U);
  EXPECT_EQ(stream().trim_before(at(2)).get().value(), 0U);
  EXPECT_EQ(stream().trim_through(EventId::smallest_for(at(3)).value()).get().value(), 2U);
  EXPECT_EQ(stream().trim_to(4).get().value(), 2U);
  EXPECT_THAT(values(), ElementsAre("6", "7", "8", "9"));
  EXPECT_EQ(stream().trim_to(0).get().value(), 4U);
  EXPECT_EQ(stream().trim_to(0).get().value(), 0U);
  EXPECT_EQ(raw("EXISTS", kKey).as_integer(), 1);
}

TEST_F(BusRead, AnApproximateTrimIsNotStoppedByTheServersLimit) {
  std::vector<NewRecord> records(25000);
  const auto results = stream().append_many(records).get().value();
  for (const auto& result : results)
    ASSERT_TRUE(result);
  const std::uint64_t removed = stream().trim_to(1000, Trim::approximate).get().value();
  EXPECT_GT(removed, 23800U) << "a trim without LIMIT 0 stops at 10,000";
  EXPECT_LE(removed, 24000U);
}

TEST_F(BusRead, ASweepTrimsEachStreamByItsRule) {
  const Stream other = client().stream(QueueName{"q"}, StreamName{"other"});
  const Stream wrong = client().stream(QueueName{"q"}, StreamName{"wrong"});
  const Stream none = client().stream(QueueName{"q"}, StreamName{"none"});
  raw("SET", "emq:{q}:stream:wrong", "x");
  for (int i = 0; i < 6; ++i) {
    put(i);
    append(other, "o", {.id = EventId::smallest_for(at(i)).value()});
  }
  const RetentionRule rules[] = {{stream(), Window::newest(2)},
                                 {wrong, Window::newest(2)},
                                 {other, Window::last(3ms)},
                                 {none, Window::since(at(0))}};
  const RetentionSweep sweep = sweep_retention(rules, at(5)).get().value();
  EXPECT_EQ(sweep.calls, 4U);
  EXPECT_EQ(sweep.trimmed, 6U);
  ASSERT_EQ(sweep.results.size(), 4U);
  EXPECT_EQ(sweep.results[0].value(), 4U);
  EXPECT_THAT(sweep.results[1].error().text, HasSubstr("WRONGTYPE"));
  EXPECT_EQ(sweep.results[2].value(), 2U);
  EXPECT_EQ(sweep.results[3].value(), 0U);
  EXPECT_EQ(sweep_retention({}).get().value().calls, 0U);
  // A span longer than time itself keeps everything.
  const RetentionRule all_of_it[] = {{other, Window::last(Milliseconds(std::int64_t{1} << 60))}};
  EXPECT_EQ(sweep_retention(all_of_it).get().value().trimmed, 0U);
}

TEST_F(BusRead, TheWatermark) {
  EXPECT_FALSE(stream().archived().get().value());
  EXPECT_FALSE(stream().clear_archived().get().value());
  const EventId mark{"EVT0NgV51UU7ge"};
  EXPECT_TRUE(stream().put_archived(mark).get());
  EXPECT_EQ(stream().archived().get().value(), mark);
  EXPECT_EQ(raw("GET", kKey + ":archived").as_text(), mark.text());
  EXPECT_TRUE(stream().clear_archived().get().value());
  raw("SET", kKey + ":archived", "garbage");
  const auto broken = stream().archived().get();
  ASSERT_FALSE(broken);
  EXPECT_TRUE(broken.error().is(Errc::broken_state));
  EXPECT_THAT(broken.error().text, HasSubstr("garbage"));
}

TEST_F(BusRead, WhatIsOutOfRangeIsRefusedByNameBeforeAnythingIsSent) {
  struct Case {
    Error error;
    std::vector<std::string> names;
  };
  const auto error = [](auto reply) {
    auto result = reply.get();
    return result ? Error() : result.error();
  };
  const Instant early(Milliseconds(-5));
  const std::string_view too_much("x", (std::size_t{512} << 20) + 1);
  const Field huge[] = {{"f", too_much}};
  const NewRecord huge_records[] = {NewRecord{}, NewRecord{huge}};
  const StreamGroup group = stream().group("g").value();
  const std::string long_name(256, 'n');
  const std::string_view bad_entries[] = {"1-1", "x"};
  const RetentionRule bad_rule[] = {{stream(), Window::newest(1)}, {stream(), Window::last(-1ms)}};
  const RetentionRule early_rule[] = {{stream(), Window::since(early)}};
  append("kept");
  const std::uint64_t before = client().stats().commands;
  const Case cases[] = {
      {error(stream().append(huge)), {"field", "536870913"}},
      {error(stream().append({}, {.max_skew = -1ms})), {"max_skew", "-1ms"}},
      {error(stream().append({}, {.deadline = 0ms})), {"deadline", "0ms"}},
      {error(stream().append_many(huge_records)), {"record 1", "536870913"}},
      {error(stream().append_many(huge_records, {.max_skew = -2ms})), {"max_skew", "-2ms"}},
      {error(stream().append_many(huge_records, {.deadline = -3ms})), {"deadline", "-3ms"}},
      {error(stream().read("x")), {"from", "\"x\""}},
      {error(stream().read("-", "5-")), {"to", "\"5-\""}},
      {error(stream().read("-", "+", {.count = 0})), {"count", "0"}},
      {error(stream().read("-", "+", {.deadline = 0ms})), {"deadline"}},
      {error(stream().read_window(at(1), at(0))), {"begin 1780512000001ms", "end 1780512000000ms"}},
      {error(stream().read_window(early, at(0))), {"begin", "-5ms"}},
      {error(stream().read_since(early)), {"begin", "-5ms"}},
      {error(stream().trim_to(~std::uint64_t{0})), {"count", "18446744073709551615"}},
      {error(stream().trim_before(early)), {"instant", "-5ms"}},
      {error(sweep_retention(bad_rule)), {"rule 1", "age", "-1ms"}},
      {error(sweep_retention(early_rule)), {"rule 0", "-5ms"}},
      {error(group.read_new("")), {"consumer", "\"\""}},
      {error(group.read_new(long_name)), {"consumer", "256"}},
      {error(group.read_new("c", {.count = 0})), {"count", "0"}},
      {error(group.read_own("c", ">")), {"after", "\">\""}},
      {error(group.claim_idle("c", -1ms)), {"min_idle", "-1ms"}},
      {error(group.claim_idle("c", 1ms, "-")), {"from", "\"-\""}},
      {error(group.acknowledge(bad_entries)), {"entry", "\"x\""}},
      {error(group.refresh("c", bad_entries)), {"entry", "\"x\""}},
      {error(group.pending({.from = "x"})), {"from", "\"x\""}},
      {error(group.pending({.count = 0})), {"count"}},
      {error(group.create_behind("$")), {"entry", "\"$\""}},
  };
  for (const Case& one : cases) {
    EXPECT_TRUE(one.error.is(Errc::invalid_argument)) << one.error.message();
    for (const std::string& name : one.names)
      EXPECT_THAT(one.error.text, HasSubstr(name));
  }
  EXPECT_TRUE(stream().append_many({}).get().error().is(Errc::empty_pipeline));
  EXPECT_FALSE(stream().group(""));
  EXPECT_FALSE(stream().group(long_name));
  EXPECT_EQ(client().stats().commands, before);
  EXPECT_THAT(values(), ElementsAre("kept"));
}

}  // namespace
}  // namespace echomq::test
