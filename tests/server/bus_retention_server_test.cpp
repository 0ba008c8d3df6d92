// Retention: limits by count, age and bytes, what groups and the archive hold back, and sweepers that share their work.
#include "echomq/retention.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>

#include "bus_fixture.hpp"

namespace echomq::test {
namespace {

class BusRetention : public BusServerTest {
 protected:
  /// `count` entries with the ids `1750000000000-<number>`, or a millisecond apart, of one field each.
  void fill(std::size_t count, std::size_t apart = 0, std::string_view key = kKey, std::size_t size = 1) {
    const std::string value(size, 'v');
    std::vector<Reply<Value>> sent;
    for (std::size_t i = 0; i < count; ++i) {
      const std::string id = std::to_string(1'750'000'000'000 + i * apart) + "-" + std::to_string(apart > 0 ? 0 : i);
      sent.push_back(client().command("XADD", key, id, "k", value));
    }
    for (auto& reply : sent)
      ASSERT_TRUE(reply.get());
  }
  [[nodiscard]] std::uint64_t length() { return stream().length().get().value(); }
  [[nodiscard]] std::string oldest() { return stream().read("-", "+", {.count = 1}).get()->records.at(0).entry; }
  [[nodiscard]] Retained apply(const RetentionPolicy& policy) {
    auto done = retain(stream(), policy).get();
    EXPECT_TRUE(done) << done.error().message();
    return done.value_or(Retained());
  }
  static RetentionPolicy exact(RetentionLimits keep) {
    RetentionPolicy policy;
    policy.keep = keep;
    policy.how = Trim::exact;
    return policy;
  }
};

TEST_F(BusRetention, KeepsTheNewestByCount) {
  fill(250);
  EXPECT_EQ(apply(exact({.count = 10})).removed, 240U);
  EXPECT_EQ(oldest(), "1750000000000-240");
  EXPECT_EQ(apply(exact({.count = 10})).removed, 0U);
  EXPECT_EQ(apply(exact({})).removed, 0U) << "no limit keeps everything";
}

// An approximate XTRIM without a LIMIT of its own stops after 10,000 entries and leaves the rest.
TEST_F(BusRetention, AnApproximateOneIsNotStoppedAtTenThousand) {
  fill(35'000);
  RetentionPolicy policy;
  policy.keep.count = 50;
  const Retained done = apply(policy);
  EXPECT_FALSE(done.more);
  EXPECT_GE(length(), 50U);
  EXPECT_LE(length(), 150U);
  EXPECT_EQ(done.removed, 35'000 - length());
}

TEST_F(BusRetention, AnExactOneRemovesAllInPieces) {
  fill(25'050);
  EXPECT_EQ(apply(exact({.count = 7})).removed, 25'043U);
  EXPECT_EQ(length(), 7U);
  fill(1, 0, "emq:{q}:stream:other");
}

TEST_F(BusRetention, CallsAreBounded) {
  fill(35'000);
  RetentionPolicy policy;
  policy.keep.count = 0;
  const auto done = retain(stream(), policy, 1).get();
  ASSERT_TRUE(done);
  EXPECT_TRUE(done->more);
  EXPECT_EQ(length(), 35'000 - done->removed);
}

TEST_F(BusRetention, KeepsWhatIsYoungByTheServersClock) {
  fill(100, 1000);
  append("new");
  EXPECT_EQ(apply(exact({.age = 1h})).removed, 100U);
  EXPECT_EQ(values(), (std::vector<std::string>{"new"}));
  // Further back than 1970: everything is young.
  EXPECT_EQ(apply(exact({.age = std::chrono::hours(24 * 365 * 100)})).removed, 0U);
}

TEST_F(BusRetention, AgeIsExactToTheMillisecond) {
  fill(10, 1000);
  const auto time = raw("TIME");
  const auto part = [&](std::size_t i) { return std::stoll(std::string(*time.items()[i].as_text())); };
  // Between the entries 6 and 7, with half a second to spare.
  EXPECT_EQ(apply(exact({.age = Milliseconds(part(0) * 1000 + part(1) / 1000 - 1'750'000'006'300)})).removed, 7U);
  EXPECT_EQ(oldest(), "1750000007000-0");
}

TEST_F(BusRetention, KeepsTheNewestByBytes) {
  fill(1000, 1, kKey, 99);  // 100 bytes each, name and value
  EXPECT_NEAR(static_cast<double>(1000 - apply(exact({.bytes = 50'000})).removed), 495, 10);
  const auto left = length();
  EXPECT_EQ(apply(exact({.bytes = 60'000})).removed, 0U);
  EXPECT_EQ(length(), left);
}

TEST_F(BusRetention, LimitsCountTogether) {
  fill(100);
  EXPECT_EQ(apply(exact({.count = 60, .bytes = 1'000'000})).removed, 40U);
  EXPECT_EQ(apply(exact({.count = 50, .age = std::chrono::hours(24 * 365 * 100)})).removed, 10U);
}

TEST_F(BusRetention, NothingOfAGroupGoesUnseen) {
  fill(1000);
  raw("XGROUP", "CREATE", kKey, "g", "0");
  RetentionPolicy policy = exact({.count = 10});
  policy.guard = GroupGuard::all;
  Retained done = apply(policy);
  EXPECT_EQ(done.removed, 0U);
  EXPECT_EQ(done.held_by, HeldBy::groups);

  raw("XREADGROUP", "GROUP", "g", "c", "COUNT", "300", "STREAMS", kKey, ">");
  EXPECT_EQ(apply(policy).removed, 0U) << "seen, but not acknowledged";
  for (int i = 0; i < 300; ++i) {
    if (i != 120)
      raw("XACK", kKey, "g", "1750000000000-" + std::to_string(i));
  }
  done = apply(policy);
  EXPECT_EQ(done.removed, 120U);
  EXPECT_EQ(oldest(), "1750000000000-120");
  EXPECT_EQ(done.held_by, HeldBy::groups);
  raw("XACK", kKey, "g", "1750000000000-120");
  EXPECT_EQ(apply(policy).removed, 180U);
  EXPECT_EQ(oldest(), "1750000000000-300");

  // Nearly all seen, and then all.
  raw("XREADGROUP", "GROUP", "g", "c", "NOACK", "COUNT", "650", "STREAMS", kKey, ">");
  EXPECT_EQ(apply(policy).removed, 650U);
  raw("XREADGROUP", "GROUP", "g", "c", "NOACK", "STREAMS", kKey, ">");
  done = apply(policy);
  EXPECT_EQ(done.removed, 40U);
  EXPECT_EQ(done.held_by, HeldBy::nothing);
}

TEST_F(BusRetention, AGuardKeepsWhatTheLimitKeepsToo) {
  fill(1000);
  raw("XGROUP", "CREATE", kKey, "g", "1750000000000-799");
  RetentionPolicy policy = exact({.count = 500});
  policy.guard = GroupGuard::all;
  const Retained done = apply(policy);
  EXPECT_EQ(done.removed, 500U) << "seen, but within the limit";
  EXPECT_EQ(done.held_by, HeldBy::nothing);
}

TEST_F(BusRetention, ManyUnseenEntriesInFrontOfTheGuard) {
  fill(6000);
  raw("XGROUP", "CREATE", kKey, "g", "1750000000000-4499");
  RetentionPolicy policy = exact({.count = 2000});
  policy.guard = GroupGuard::all;
  EXPECT_EQ(apply(policy).removed, 4000U);
  EXPECT_EQ(oldest(), "1750000000000-4000");
  policy.keep.count = 100;
  const Retained done = apply(policy);
  EXPECT_EQ(done.removed, 500U);
  EXPECT_EQ(oldest(), "1750000000000-4500");
  EXPECT_EQ(done.held_by, HeldBy::groups);
}

TEST_F(BusRetention, AHardLimitTakesFromGroups) {
  fill(1000);
  raw("XGROUP", "CREATE", kKey, "g", "0");
  RetentionPolicy policy = exact({.count = 10});
  policy.guard = GroupGuard::all;
  policy.hard.count = 400;
  EXPECT_EQ(apply(policy).removed, 600U);
  EXPECT_EQ(oldest(), "1750000000000-600");

  // What was pending and is gone holds nothing afterwards.
  raw("XREADGROUP", "GROUP", "g", "c", "STREAMS", kKey, ">");
  policy.hard.count = 200;
  EXPECT_EQ(apply(policy).removed, 200U);
  for (int i = 800; i < 900; ++i)
    raw("XACK", kKey, "g", "1750000000000-" + std::to_string(i));
  EXPECT_EQ(apply(policy).removed, 100U);
  EXPECT_EQ(oldest(), "1750000000000-900");
}

TEST_F(BusRetention, ADeclaredGroupThatIsMissingHasSeenNothing) {
  fill(100);
  raw("XGROUP", "CREATE", kKey, "other", "0");
  RetentionPolicy policy = exact({.count = 10});
  policy.guard = GroupGuard::named;
  policy.groups = {"g"};
  EXPECT_EQ(apply(policy).held_by, HeldBy::groups);
  EXPECT_EQ(length(), 100U);
  raw("XGROUP", "CREATE", kKey, "g", "$");
  EXPECT_EQ(apply(policy).removed, 90U) << "groups that were not named hold nothing";
}

TEST_F(BusRetention, AgeIsGuardedToo) {
  fill(100, 1000);
  raw("XGROUP", "CREATE", kKey, "g", "1750000039000-0");
  RetentionPolicy policy = exact({.age = 1h});
  policy.guard = GroupGuard::all;
  const Retained done = apply(policy);
  EXPECT_EQ(done.removed, 40U);
  EXPECT_EQ(done.held_by, HeldBy::groups);
}

TEST_F(BusRetention, NothingGoesThatIsNotArchived) {
  std::vector<EventId> ids;
  for (int i = 0; i < 20; ++i)
    ids.push_back(append(std::to_string(i)));
  RetentionPolicy policy = exact({.count = 0});
  policy.archived_only = true;
  EXPECT_EQ(apply(policy).held_by, HeldBy::archive);
  EXPECT_EQ(length(), 20U);

  for (std::size_t upto : {0U, 7U, 18U}) {
    ASSERT_TRUE(stream().put_archived(ids[upto]).get());
    EXPECT_EQ(apply(policy).held_by, HeldBy::archive);
    EXPECT_EQ(oldest(), ids[upto + 1].entry_id().text());
  }
  // A hard limit is for groups, never for the archive.
  raw("XGROUP", "CREATE", kKey, "g", "0");
  policy.guard = GroupGuard::all;
  policy.hard.count = 0;
  EXPECT_EQ(apply(policy).removed, 0U);
  ASSERT_TRUE(stream().put_archived(ids[19]).get());
  EXPECT_EQ(apply(policy).removed, 1U);

  append("more");
  raw("SET", kKey + ":archived", "not an id");
  EXPECT_FALSE(retain(stream(), policy).get());
  EXPECT_EQ(length(), 1U);
}

// The watermark's value has 63 bits, more than a script's numbers hold.
TEST_F(BusRetention, TheWatermarkIsReadExactly) {
  const EventId high = *EventId::from_value((std::uint64_t{1} << 62) | 0x3FFFFE);
  const EventId higher = *EventId::from_value((std::uint64_t{1} << 62) | 0x3FFFFF);
  append("a", {.id = high});
  append("b", {.id = higher});
  RetentionPolicy policy = exact({.count = 0});
  policy.archived_only = true;
  ASSERT_TRUE(stream().put_archived(*EventId::from_value(((std::uint64_t{1} << 62) | 0x3FFFFE) - 1)).get());
  EXPECT_EQ(apply(policy).removed, 0U);
  ASSERT_TRUE(stream().put_archived(high).get());
  EXPECT_EQ(apply(policy).removed, 1U);
  ASSERT_TRUE(stream().put_archived(higher).get());
  EXPECT_EQ(apply(policy).removed, 1U);
}

TEST_F(BusRetention, AnAbsentStreamIsEmptyAndAnotherTypeAnError) {
  EXPECT_EQ(apply(exact({.count = 0})).removed, 0U);
  raw("SET", kKey, "x");
  const auto refused = retain(stream(), exact({.count = 0})).get();
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(Errc::server_error));
  EXPECT_TRUE(retain(stream(), exact({.age = -1ms})).get().error().is(Errc::invalid_argument));
}

TEST_F(BusRetention, AFullServerStillTrims) {
  fill(1000, 0, kKey, 1000);
  raw("CONFIG", "SET", "maxmemory", "1mb");
  EXPECT_FALSE(client().command("XADD", kKey, "*", "a", "b").get());
  EXPECT_EQ(apply(exact({.count = 10})).removed, 990U);
}

TEST_F(BusRetention, PoliciesStandOnTheServer) {
  EXPECT_FALSE(get_retention(stream()).get().value());
  RetentionPolicy policy = exact({.count = 5, .age = 1h});
  ASSERT_TRUE(put_retention(stream(), policy).get());
  EXPECT_EQ(get_retention(stream()).get().value(), policy);
  EXPECT_EQ(raw("HGET", "emq:{q}:retention", "s").as_text(), policy.text());
  EXPECT_TRUE(clear_retention(stream()).get().value());
  EXPECT_FALSE(clear_retention(stream()).get().value());
  raw("HSET", "emq:{q}:retention", "s", R"({"new_guard":1})");
  EXPECT_TRUE(get_retention(stream()).get().error().is(Errc::broken_state));
}

bool soon(const std::function<bool()>& condition) {
  for (const auto until = std::chrono::steady_clock::now() + 10s; std::chrono::steady_clock::now() < until;) {
    if (condition())
      return true;
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

TEST_F(BusRetention, ASweeperAppliesWhatTheFleetHasAgreedOn) {
  fill(300);
  auto sweeper = StreamSweeper::start(client(), {{stream(), exact({.count = 100})}},
                                      {.queues = {QueueName{"q"}}, .period = 20ms, .log = {}});
  ASSERT_TRUE(sweeper) << sweeper.error().message();
  EXPECT_TRUE(soon([&] { return length() == 100; }));
  // The key wins over the code, and reaches streams that the code does not know.
  fill(300, 0, "emq:{q}:stream:t");
  const Stream other = client().stream(QueueName{"q"}, StreamName{"t"});
  ASSERT_TRUE(put_retention(stream(), exact({.count = 30})).get());
  ASSERT_TRUE(put_retention(other, exact({.count = 40})).get());
  EXPECT_TRUE(soon([&] { return length() == 30 && other.length().get().value() == 40; }));
  // One that cannot be read stops the sweeping of its stream, and of no other.
  raw("HSET", "emq:{q}:retention", "s", R"({"keep":{"count":1},"new_guard":1})");
  EXPECT_TRUE(soon([&] { return sweeper->stats().errors > 0; }));
  ASSERT_TRUE(put_retention(other, exact({.count = 5})).get());
  EXPECT_TRUE(soon([&] { return other.length().get().value() == 5; }));
  EXPECT_EQ(length(), 30U);
  sweeper->stop();
  EXPECT_EQ(sweeper->stats().removed, 200U + 70 + 260 + 35);
}

TEST_F(BusRetention, ASweeperTellsAnErrorAgainWhenAllWasWellInBetween) {
  fill(1);
  const std::string broken = R"({"keep":{"count":1},"new_guard":1})";
  raw("HSET", "emq:{q}:retention", "s", broken);
  // The stream of the same name beside another queue is well all the time.
  raw("HSET", "emq:{r}:retention", "s", R"({"keep":{"count":1}})");
  std::atomic<int> told = 0;
  const auto log = [&](LogLevel, std::string_view event, std::span<const LogField>) {
    told += event == "stream.sweep_failed" ? 1 : 0;
  };
  auto sweeper =
      StreamSweeper::start(client(), {}, {.queues = {QueueName{"q"}, QueueName{"r"}}, .period = 20ms, .log = log});
  ASSERT_TRUE(sweeper) << sweeper.error().message();
  const auto rounds_pass = [&] {
    const auto now = sweeper->stats().rounds;
    return soon([&] { return sweeper->stats().rounds >= now + 3; });
  };
  EXPECT_TRUE(soon([&] { return told == 1; }));
  EXPECT_TRUE(rounds_pass());
  EXPECT_EQ(told, 1) << "once in a row";
  raw("HSET", "emq:{q}:retention", "s", R"({"keep":{"count":1}})");
  EXPECT_TRUE(rounds_pass());
  raw("HSET", "emq:{q}:retention", "s", broken);
  EXPECT_TRUE(soon([&] { return told == 2; })) << told;
  EXPECT_TRUE(rounds_pass());
  EXPECT_EQ(told, 2);
  sweeper->stop();
}

TEST_F(BusRetention, TwoSweepersShareTheWork) {
  constexpr std::size_t kStreams = 30;
  std::vector<Stream> streams;
  for (std::size_t i = 0; i < kStreams; ++i) {
    streams.push_back(client().stream(QueueName{"q"}, *StreamName::parse("s" + std::to_string(i))));
    fill(50, 0, "emq:{q}:stream:s" + std::to_string(i));
    ASSERT_TRUE(put_retention(streams.back(), exact({.count = 10})).get());
  }
  Client second = open();
  const StreamSweeperOptions options{.queues = {QueueName{"q"}}, .period = 200ms, .log = {}};
  const auto begin = std::chrono::steady_clock::now();
  auto a = StreamSweeper::start(client(), {}, options);
  auto b = StreamSweeper::start(second, {}, options);
  ASSERT_TRUE(a && b);
  const auto both_swept = [&] { return a->stats().swept + b->stats().swept; };
  EXPECT_TRUE(soon([&] { return both_swept() >= 5 * kStreams; })) << both_swept();
  a->stop();
  const auto swept = both_swept();
  // Each stream once in each period: not twice.
  const auto periods = static_cast<std::uint64_t>((std::chrono::steady_clock::now() - begin) / options.period) + 1;
  EXPECT_LE(swept, (periods + 2) * kStreams);
  EXPECT_EQ(a->stats().removed + b->stats().removed, 40 * kStreams);
  // The other one carries on alone.
  const auto before = b->stats().swept;
  EXPECT_TRUE(soon([&] { return b->stats().swept >= before + 3 * kStreams; }));
  EXPECT_EQ(a->stats().errors + b->stats().errors, 0U);
}

TEST_F(BusRetention, ASweeperThatDiesLeavesItsStreamsToOthers) {
  fill(100);
  // Somebody took the stream upon himself and died.
  const std::string_view keys[] = {"emq:{q}:retention:swept"};
  const std::string_view arguments[] = {"300", "s"};
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(client().eval("retention_take", keys, arguments).get());
  auto sweeper =
      StreamSweeper::start(client(), {{stream(), exact({.count = 1})}}, {.queues = {}, .period = 300ms, .log = {}});
  ASSERT_TRUE(sweeper);
  EXPECT_TRUE(soon([&] { return length() == 1; }));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 200ms);
}

}  // namespace
}  // namespace echomq::test
