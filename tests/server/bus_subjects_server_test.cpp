// Streams under a pattern.
#include "echomq/subjects.hpp"

#include <condition_variable>
#include <mutex>
#include <set>

#include "bus_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class BusSubjects : public BusServerTest {
 protected:
  [[nodiscard]] Subjects subjects() { return Subjects(client(), "q"); }
  void publish(const Subjects& to, std::string_view subject, std::string_view value) {
    const Field field{"k", value};
    const auto id = to.append(subject, {&field, 1}).get();
    ASSERT_TRUE(id) << id.error().message();
  }
  struct Heard {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::string> lines;  // guarded by mutex
    [[nodiscard]] TailHandler handler() {
      return [this](const TailMessage& message) {
        const std::lock_guard lock(mutex);
        lines.push_back(std::string(message.stream.name()) + "=" + *message.record.find("k"));
        changed.notify_all();
      };
    }
    [[nodiscard]] std::vector<std::string> wait(std::size_t count) {
      std::unique_lock lock(mutex);
      changed.wait_for(lock, 10s, [&] { return lines.size() >= count; });
      return lines;
    }
  };
  [[nodiscard]] static SubjectPattern pattern(std::string_view text) { return *SubjectPattern::parse(text); }
};

TEST_F(BusSubjects, FollowsWhatMatchesAndWhatComesLater) {
  const Subjects all = subjects();
  publish(all, "orders.eu.placed", "old");
  publish(all, "orders.us.placed", "old");
  publish(all, "bills.eu", "old");
  EXPECT_THAT(*all.list(pattern("orders.>")).get(), ElementsAre("orders.eu.placed", "orders.us.placed"));
  Heard eu;
  Heard every;
  auto a = all.tail(pattern("orders.eu.*"), eu.handler());
  auto b = all.tail(pattern("orders.>"), every.handler(), {.behind = "0", .resume = {}, .on_error = {}});
  ASSERT_TRUE(a && b) << (a ? b : a).error().message();
  publish(all, "orders.eu.placed", "1");
  publish(all, "bills.eu", "1");
  Client other = open();
  publish(Subjects(other, "q"), "orders.eu.sent", "2");
  publish(Subjects(other, "q"), "orders.eu.sent", "3");
  EXPECT_THAT(eu.wait(3), ElementsAre("orders.eu.placed=1", "orders.eu.sent=2", "orders.eu.sent=3"));
  EXPECT_THAT(every.wait(5), UnorderedElementsAre("orders.eu.placed=old", "orders.us.placed=old", "orders.eu.placed=1",
                                                  "orders.eu.sent=2", "orders.eu.sent=3"));
  a->stop();  // a position is that of a record whose handler has returned
  auto positions = a->positions();
  ASSERT_EQ(positions.size(), 2U);
  publish(all, "orders.eu.sent", "4");
  Heard again;
  auto c = all.tail(pattern("orders.eu.*"), again.handler(), {.behind = {}, .resume = positions, .on_error = {}});
  ASSERT_TRUE(c);
  EXPECT_THAT(again.wait(1), ElementsAre("orders.eu.sent=4"));
  EXPECT_EQ(eu.wait(3).size(), 3U);
}

/// What an appender knows of names is bounded; the order of each stream's records is not touched by that.
TEST_F(BusSubjects, MoreNamesThanAreKeptInMind) {
  const Subjects all = subjects();
  constexpr int kNames = 25'000;
  const One first("1");
  const One second("2");
  std::vector<Reply<EventId>> sent;
  for (const One* one : {&first, &second}) {
    for (int i = 0; i < kNames; ++i)
      sent.push_back(all.append("orders." + std::to_string(i), one->fields()));
  }
  for (auto& reply : sent) {
    const auto id = reply.get();
    ASSERT_TRUE(id) << id.error().message();
  }
  EXPECT_EQ(all.list(pattern("orders.*")).get().value().size(), std::size_t{kNames});
  for (int i = 0; i < kNames; i += 997) {
    const auto page = client().stream("q", *StreamName::parse("orders." + std::to_string(i))).read().get();
    ASSERT_TRUE(page);
    ASSERT_EQ(page->records.size(), 2U);
    EXPECT_EQ(*page->records[0].find("k"), "1");
    EXPECT_EQ(*page->records[1].find("k"), "2");
  }
}

TEST_F(BusSubjects, StreamsThatCameWhileNobodyFollowedAreReadFromTheirBeginning) {
  const Subjects all = subjects();
  std::map<std::string, std::string> positions;
  {
    Heard nothing;
    auto tail = all.tail(pattern("orders.>"), nothing.handler());
    ASSERT_TRUE(tail);
    positions = tail->positions();
    EXPECT_THAT(positions, IsEmpty());
  }
  publish(all, "orders.eu", "1");
  {
    Heard heard;
    auto tail = all.tail(pattern("orders.>"), heard.handler(), {.behind = {}, .resume = positions, .on_error = {}});
    ASSERT_TRUE(tail);
    EXPECT_THAT(heard.wait(1), ElementsAre("orders.eu=1"));
    tail->stop();
    positions = tail->positions();
    EXPECT_EQ(positions.size(), 1U);
  }
  publish(all, "orders.eu", "2");
  publish(all, "orders.us", "3");
  {
    Heard heard;
    auto tail = all.tail(pattern("orders.>"), heard.handler(), {.behind = {}, .resume = positions, .on_error = {}});
    ASSERT_TRUE(tail);
    EXPECT_THAT(heard.wait(2), UnorderedElementsAre("orders.eu=2", "orders.us=3"));
  }
  // Whoever names a place for the others gets that.
  publish(all, "orders.asia", "4");
  const auto at = client().stream("q", "orders.asia").info().get().value().top;
  Heard heard;
  auto tail = all.tail(pattern("orders.asia"), heard.handler(), {.behind = at, .resume = positions, .on_error = {}});
  ASSERT_TRUE(tail);
  publish(all, "orders.asia", "5");
  EXPECT_THAT(heard.wait(1), ElementsAre("orders.asia=5"));
}

TEST_F(BusSubjects, StreamsThatAreNotListedAreFoundAtTheStart) {
  append(client().stream("q", "orders.eu"), "by a plain append");
  Heard heard;
  auto tail = subjects().tail(pattern("orders.*"), heard.handler(), {.behind = "0", .resume = {}, .on_error = {}});
  ASSERT_TRUE(tail);
  EXPECT_THAT(heard.wait(1), ElementsAre("orders.eu=by a plain append"));
  EXPECT_THAT(*subjects().list(pattern("orders.*")).get(), IsEmpty());
}

TEST_F(BusSubjects, AListThatWasFlushedIsReadAnew) {
  const Subjects all = subjects();
  publish(all, "a.1", "x");
  Heard heard;
  auto tail = all.tail(pattern("a.*"), heard.handler());
  ASSERT_TRUE(tail);
  publish(all, "a.2", "y");
  EXPECT_THAT(heard.wait(1), ElementsAre("a.2=y"));
  raw("DEL", "emq:{q}:streams");
  Client other = open();
  publish(Subjects(other, "q"), "a.3", "z");
  EXPECT_THAT(heard.wait(2), ElementsAre("a.2=y", "a.3=z"));
}

TEST_F(BusSubjects, APatternWithoutMatchesCostsACommandASecondHoweverManyFollow) {
  const Subjects all = subjects();
  publish(all, "a.b", "x");
  Heard heard;
  std::vector<SubjectTail> tails;
  for (int i = 0; i < 50; ++i) {
    auto tail = all.tail(pattern("nothing." + std::to_string(i) + ".>"), heard.handler());
    ASSERT_TRUE(tail);
    tails.push_back(*std::move(tail));
  }
  const auto commands = [&] {
    const std::string info(raw("INFO", "stats").as_text().value_or(""));
    return std::stoll(info.substr(info.find("total_commands_processed:") + 25));
  };
  std::this_thread::sleep_for(500ms);
  const auto before = commands();
  std::this_thread::sleep_for(3s);
  const auto asked = commands() - before;
  EXPECT_LE(asked, 8);
  EXPECT_GE(asked, 2) << "new subjects are looked for";
  Heard matching;
  const auto other = all.tail(pattern("a.>"), matching.handler());
  ASSERT_TRUE(other);
  publish(all, "a.b", "y");
  EXPECT_EQ(matching.wait(1).size(), 1U);
  EXPECT_THAT(heard.wait(0), IsEmpty());
}

TEST_F(BusSubjects, BadNamesAreRefused) {
  const Field field{"k", "v"};
  for (const char* bad : {"", "a..b", ".a", "a.", "a.*", "a.>", "a>b"}) {
    const auto refused = subjects().append(bad, {&field, 1}).get();
    ASSERT_FALSE(refused) << bad;
    EXPECT_TRUE(refused.error().is(Errc::invalid_argument)) << bad;
  }
}

}  // namespace
}  // namespace echomq::test
