// Every argument of every verb: what is out of range is refused with a typed error that names the value, before a byte
// is sent.
#include <functional>
#include <limits>

#include "server/queue_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Milliseconds kTooLong{(std::int64_t{1} << 53)};
constexpr std::size_t kTooMuch = (std::size_t{512} << 20) + 1;

/// Never read: only its size matters.
[[nodiscard]] std::string_view too_much() { return {"x", kTooMuch}; }

using Refusal = std::function<Error(const Queue&)>;

/// The error of a call, whatever it would have answered.
template <typename Call>
[[nodiscard]] Refusal call(Call function) {
  return [function](const Queue& queue) {
    auto result = function(queue).get();
    return result ? Error() : result.error();
  };
}

struct Case {
  const char* argument;
  Refusal refusal;
  std::vector<std::string> names;  // what the text must hold
  Errc code = Errc::invalid_argument;
};

std::vector<Case> cases() {
  const Instant too_late{kTooLong};
  const Instant too_early{-kTooLong};
  const std::string long_text = std::to_string(kTooMuch);
  const std::string long_time = std::to_string(kTooLong.count()) + "ms";
  return {
      // enqueue
      {"enqueue payload", call([](const Queue& q) { return q.enqueue(too_much()); }), {"payload", long_text}},
      {"enqueue in < 0", call([](const Queue& q) { return q.enqueue("p", {.in = -1ms}); }), {"in", "-1ms"}},
      {"enqueue in", call([](const Queue& q) { return q.enqueue("p", {.in = kTooLong}); }), {"in", long_time}},
      {"enqueue at", call([=](const Queue& q) { return q.enqueue("p", {.at = too_late}); }), {"at", long_time}},
      {"enqueue at < 0",
       call([=](const Queue& q) { return q.enqueue("p", {.at = too_early}); }),
       {"at", "-" + long_time}},
      {"enqueue at and in",
       call([](const Queue& q) { return q.enqueue("p", {.at = Instant(5ms), .in = 7ms}); }),
       {"at 5ms", "in 7ms"}},
      {"enqueue deadline", call([](const Queue& q) { return q.enqueue("p", {.deadline = 0ms}); }), {"deadline", "0ms"}},
      {"enqueue_at twice",
       call([](const Queue& q) { return q.enqueue_at("p", Instant(1ms), {.at = Instant(2ms)}); }),
       {"at", "1ms", "2ms"}},
      {"enqueue_at and in",
       call([](const Queue& q) { return q.enqueue_at("p", Instant(1ms), {.in = 2ms}); }),
       {"at 1ms", "in 2ms"}},
      {"enqueue_in twice",
       call([](const Queue& q) { return q.enqueue_in("p", 1ms, {.in = 2ms}); }),
       {"in", "1ms", "2ms"}},
      {"enqueue_in < 0", call([](const Queue& q) { return q.enqueue_in("p", -3ms); }), {"in", "-3ms"}},
      // enqueue_many
      {"enqueue_many nothing",
       call([](const Queue& q) { return q.enqueue_many({}); }),
       {"no jobs"},
       Errc::empty_pipeline},
      {"enqueue_many payload",
       call([](const Queue& q) {
         const NewJob jobs[] = {{"p"}, {too_much()}};
         return q.enqueue_many(jobs);
       }),
       {"payload of job 1", long_text}},
      {"enqueue_many in",
       call([](const Queue& q) {
         const NewJob jobs[] = {{"p"}};
         return q.enqueue_many(jobs, {.in = -1ms});
       }),
       {"in", "-1ms"}},
      {"enqueue_many at and in",
       call([](const Queue& q) {
         const NewJob jobs[] = {{"p"}};
         return q.enqueue_many(jobs, {.at = Instant(5ms), .in = 7ms});
       }),
       {"at 5ms", "in 7ms"}},
      {"enqueue_many deadline",
       call([](const Queue& q) {
         const NewJob jobs[] = {{"p"}};
         return q.enqueue_many(jobs, {.deadline = -9ms});
       }),
       {"deadline", "-9ms"}},
      // claims
      {"claim lease 0", call([](const Queue& q) { return q.claim({.lease = 0ms}); }), {"lease", "0ms"}},
      {"claim lease < 0", call([](const Queue& q) { return q.claim({.lease = -5ms}); }), {"lease", "-5ms"}},
      {"claim lease", call([](const Queue& q) { return q.claim({.lease = kTooLong}); }), {"lease", long_time}},
      {"claim deadline", call([](const Queue& q) { return q.claim({.deadline = 0ms}); }), {"deadline", "0ms"}},
      {"claim_lane lease", call([](const Queue& q) { return q.claim_lane({.lease = 0ms}); }), {"lease", "0ms"}},
      {"claim_lane deadline",
       call([](const Queue& q) { return q.claim_lane({.deadline = -1ms}); }),
       {"deadline", "-1ms"}},
      {"claim_batch size", call([](const Queue& q) { return q.claim_batch({.size = 0}); }), {"size", "0"}},
      {"claim_batch lease", call([](const Queue& q) { return q.claim_batch({.lease = 0ms}); }), {"lease", "0ms"}},
      {"claim_batch deadline",
       call([](const Queue& q) { return q.claim_batch({.deadline = 0ms}); }),
       {"deadline", "0ms"}},
      {"claim_lane_weighted lease",
       call([](const Queue& q) { return q.claim_lane_weighted({.lease = -1ms}); }),
       {"lease", "-1ms"}},
      {"claim_lane_weighted deadline",
       call([](const Queue& q) { return q.claim_lane_weighted({.deadline = 0ms}); }),
       {"deadline", "0ms"}},
      {"claim_lane_batch size", call([](const Queue& q) { return q.claim_lane_batch({.size = 0}); }), {"size", "0"}},
      {"claim_lane_batch lease",
       call([](const Queue& q) { return q.claim_lane_batch({.lease = kTooLong}); }),
       {"lease", long_time}},
      {"claim_lane_batch deadline",
       call([](const Queue& q) { return q.claim_lane_batch({.deadline = -4ms}); }),
       {"deadline", "-4ms"}},
      // settles
      {"complete result",
       call([](const Queue& q) { return q.complete(kJobA, Token(1), {.result = too_much()}); }),
       {"result", long_text}},
      {"complete deadline",
       call([](const Queue& q) { return q.complete(kJobA, Token(1), {.deadline = 0ms}); }),
       {"deadline", "0ms"}},
      {"retry delay",
       call([](const Queue& q) { return q.retry(kJobA, Token(1), {.delay = -1ms}); }),
       {"delay", "-1ms"}},
      {"retry max_attempts",
       call([](const Queue& q) { return q.retry(kJobA, Token(1), {.max_attempts = 0}); }),
       {"max_attempts", "0"}},
      {"retry error",
       call([](const Queue& q) { return q.retry(kJobA, Token(1), {.error = too_much()}); }),
       {"error", long_text}},
      {"retry deadline",
       call([](const Queue& q) { return q.retry(kJobA, Token(1), {.deadline = 0ms}); }),
       {"deadline", "0ms"}},
      {"delay in", call([](const Queue& q) { return q.delay(kJobA, Token(1), -1ms); }), {"in", "-1ms"}},
      {"delay deadline", call([](const Queue& q) { return q.delay(kJobA, Token(1), 1ms, 0ms); }), {"deadline", "0ms"}},
      {"delay_until at",
       call([=](const Queue& q) { return q.delay_until(kJobA, Token(1), too_late); }),
       {"at", long_time}},
      {"delay_until deadline",
       call([](const Queue& q) { return q.delay_until(kJobA, Token(1), Instant(), 0ms); }),
       {"deadline", "0ms"}},
      {"hand_back deadline",
       call([](const Queue& q) { return q.hand_back(kJobA, Token(1), 0ms); }),
       {"deadline", "0ms"}},
      {"extend lease", call([](const Queue& q) { return q.extend(kJobA, Token(1), 0ms); }), {"lease", "0ms"}},
      {"extend deadline",
       call([](const Queue& q) { return q.extend(kJobA, Token(1), 1ms, 0ms); }),
       {"deadline", "0ms"}},
      {"extend_many lease",
       call([](const Queue& q) {
         const Held held[] = {{kJobA, Token(1)}};
         return q.extend_many(held, -1ms);
       }),
       {"lease", "-1ms"}},
      {"extend_many lease of none", call([](const Queue& q) { return q.extend_many({}, 0ms); }), {"lease", "0ms"}},
      {"extend_many deadline", call([](const Queue& q) { return q.extend_many({}, 1ms, 0ms); }), {"deadline", "0ms"}},
      // release
      {"promote limit", call([](const Queue& q) { return q.promote(0); }), {"limit", "0"}},
      {"sweep max_stalled",
       call([](const Queue& q) { return q.sweep_stalled({.max_stalled = 0}); }),
       {"max_stalled", "0"}},
      {"sweep limit", call([](const Queue& q) { return q.sweep_stalled({.limit = 0}); }), {"limit", "0"}},
      {"sweep deadline", call([](const Queue& q) { return q.sweep_stalled({.deadline = 0ms}); }), {"deadline", "0ms"}},
      {"reap_lane limit", call([](const Queue& q) { return q.reap_lane(kLaneX, 0); }), {"limit", "0"}},
      // operation
      {"weigh_lane", call([](const Queue& q) { return q.weigh_lane(kLaneX, 0); }), {"weight", "0"}},
      {"drain deadline", call([](const Queue& q) { return q.drain({.deadline = 0ms}); }), {"deadline", "0ms"}},
      {"obliterate budget", call([](const Queue& q) { return q.obliterate({.budget = 0}); }), {"budget", "0"}},
      {"obliterate deadline",
       call([](const Queue& q) { return q.obliterate({.deadline = 0ms}); }),
       {"deadline", "0ms"}},
      // repeats
      {"register_repeat name",
       call([](const Queue& q) { return q.register_repeat("", {.every = 1ms}); }),
       {"name", "got 0"}},
      {"register_repeat long name",
       call([](const Queue& q) { return q.register_repeat(std::string(256, 'n'), {.every = 1ms}); }),
       {"name", "got 256"}},
      {"register_repeat every", call([](const Queue& q) { return q.register_repeat("r", {}); }), {"every", "0ms"}},
      {"register_repeat first_in",
       call([](const Queue& q) { return q.register_repeat("r", {.every = 1ms, .first_in = -1ms}); }),
       {"first_in", "-1ms"}},
      {"register_repeat payload",
       call([](const Queue& q) { return q.register_repeat("r", {.every = 1ms, .payload = too_much()}); }),
       {"payload", long_text}},
      {"register_repeat deadline",
       call([](const Queue& q) { return q.register_repeat("r", {.every = 1ms, .deadline = 0ms}); }),
       {"deadline", "0ms"}},
      {"cancel_repeat name", call([](const Queue& q) { return q.cancel_repeat(""); }), {"name", "got 0"}},
      {"advance_repeat name", call([](const Queue& q) { return q.advance_repeat("", 1ms); }), {"name", "got 0"}},
      {"advance_repeat every", call([](const Queue& q) { return q.advance_repeat("r", -2ms); }), {"every", "-2ms"}},
      {"due_repeats limit", call([](const Queue& q) { return q.due_repeats(0); }), {"limit", "0"}},
      {"fire_repeats limit", call([](const Queue& q) { return q.fire_repeats(0); }), {"limit", "0"}},
      {"pump_sweep batch", call([](const Queue& q) { return q.pump_sweep(0); }), {"batch", "0"}},
      {"limit_lane", call([](const Queue& q) { return q.limit_lane(kLaneX, 0); }), {"ceiling", "0"}},
      {"update_data", call([](const Queue& q) { return q.update_data(kJobA, too_much()); }), {"payload", long_text}},
      {"update_progress",
       call([](const Queue& q) { return q.update_progress(kJobA, too_much()); }),
       {"progress", long_text}},
      {"add_log", call([](const Queue& q) { return q.add_log(kJobA, too_much()); }), {"line", long_text}},
      {"publish event", call([](const Queue& q) { return q.publish("", kJobA); }), {"event", "empty"}},
      {"publish event size", call([](const Queue& q) { return q.publish(too_much(), kJobA); }), {"event", long_text}},
      {"publish extra",
       call([](const Queue& q) {
         const std::pair<std::string_view, std::string_view> extra[] = {{"job", "x"}};
         return q.publish("e", kJobA, extra);
       }),
       {"extra", "job"}},
      {"publish extra size",
       call([](const Queue& q) {
         const std::pair<std::string_view, std::string_view> extra[] = {{"k", too_much()}};
         return q.publish("e", kJobA, extra);
       }),
       {"k", long_text}},
      // reads
      {"counts_of",
       call([](const Queue& q) {
         const std::string_view names[] = {"pending", "wait", "scheduled"};
         return q.counts_of(names);
       }),
       {"'wait'"},
       Errc::unknown_state},
      {"browse", call([](const Queue& q) { return q.browse(0); }), {"count", "0"}},
      {"rate_limit_ttl",
       call([](const Queue& q) { return q.rate_limit_ttl(std::numeric_limits<std::uint64_t>::max()); }),
       {"max_jobs", "18446744073709551615"}},
  };
}

TEST_F(QueueServerTest, BadInputIsRefusedByValueBeforeAnythingIsSent) {
  const Token token = claimed(kJobA);
  EXPECT_EQ(token, Token(1));
  ASSERT_TRUE(queue().enqueue("waits", {.id = kJobB}).get());
  const std::string before = digest();
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.argument);
    const std::uint64_t commands = client().stats().commands;
    const Error error = one.refusal(queue());
    EXPECT_TRUE(error.is(one.code)) << error.message();
    for (const std::string& name : one.names)
      EXPECT_THAT(error.text, HasSubstr(name));
    EXPECT_LT(error.text.size(), 300U);
    EXPECT_EQ(client().stats().commands, commands);
  }
  EXPECT_EQ(digest(), before);
}

TEST_F(QueueServerTest, NamesAndIdsAreRefusedWhereTheyAreMade) {
  EXPECT_TRUE(QueueName::parse("a}b").error().is(Errc::invalid_queue_name));
  EXPECT_TRUE(QueueName::parse("emq").error().is(Errc::invalid_queue_name));
  EXPECT_TRUE(QueueName::parse("").error().is(Errc::invalid_queue_name));
  EXPECT_TRUE(DedupId::parse("a b").error().is(Errc::invalid_dedup_id));
  EXPECT_TRUE(JobId::parse("nope").error().is(Errc::id_length));
  EXPECT_TRUE(LaneId::parse("prt0NgWEfAE00X").error().is(Errc::id_namespace));
  EXPECT_TRUE(JobId::parse("JOB0NgWEfAE00*").error().is(Errc::id_charset));
  EXPECT_THAT(QueueName::parse("a}b").error().text, HasSubstr("a}b"));
}

TEST_F(QueueServerTest, TheBoundsThemselvesAreAccepted) {
  constexpr Milliseconds kLongest = kTooLong - 1ms;
  EXPECT_TRUE(queue().enqueue("", {.id = kJobA, .at = Instant(kLongest)}).get());
  EXPECT_TRUE(queue().enqueue("", {.id = kJobB, .at = Instant(-kLongest)}).get());
  EXPECT_TRUE(queue().enqueue("", {.id = kJobC, .in = 0ms, .deadline = Milliseconds::max()}).get());
  EXPECT_EQ(queue().promote(1).get().value(), 1);
  EXPECT_EQ(queue().promote(std::numeric_limits<std::uint32_t>::max()).get().value(), 1);
  const auto job = queue().claim({.lease = 1ms}).get();
  ASSERT_TRUE(job && *job);
  EXPECT_TRUE(queue().claim({.lease = kLongest}).get());
  EXPECT_EQ(raw("ZSCORE", "emq:{q}:schedule", kJobA.text()).as_double(), 9007199254740991.0);
}

/// A job of a wrong kind is the server's to refuse, and leaves nothing.
TEST_F(QueueServerTest, AnIdOfAnotherKindIsRefusedAndLeavesNothing) {
  constexpr JobId kOrder{"ORD0NgWEfAE00A"};
  const std::string before = digest();
  const NewJob jobs[] = {{"p", kOrder}};
  EXPECT_TRUE(queue().enqueue("p", {.id = kOrder}).get().error().is(Errc::wrong_kind));
  EXPECT_TRUE(queue().enqueue("p", {.id = kOrder, .lane = kLaneX}).get().error().is(Errc::wrong_kind));
  EXPECT_TRUE(queue().enqueue_in("p", 5ms, {.id = kOrder}).get().error().is(Errc::wrong_kind));
  EXPECT_TRUE(queue().enqueue_in("p", 5ms, {.id = kOrder, .lane = kLaneX}).get().error().is(Errc::wrong_kind));
  EXPECT_TRUE(queue().enqueue_many(jobs).get().value().front().error().is(Errc::wrong_kind));
  EXPECT_TRUE(queue().delay(kOrder, Token(1), 5ms).get().error().is(Errc::wrong_kind));
  EXPECT_EQ(digest(), before);
}

}  // namespace
}  // namespace echomq::test
