// The pipeline without I/O: order, loss at every byte, deadlines, withdrawal.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "wire/pipeline.hpp"
#include "wire/request.hpp"

namespace echomq {
namespace {

using namespace std::chrono_literals;

auto decode_nothing = [](const wire::Answer&) -> Result<void> { return {}; };
using TestCall = wire::BoundCall<void, decltype(decode_nothing), true>;

struct Fixture : ::testing::Test {
  wire::Pipeline pipeline;
  std::vector<detail::CallPointer<detail::Call>> kept;

  detail::Call* add(std::string_view name, Repeat repeat = Repeat::unsafe) {
    const std::array<std::string_view, 1> parts = {name};
    detail::Call* call = TestCall::make(parts, decode_nothing);
    call->repeat = repeat;
    call->retain();
    kept.emplace_back(call);
    pipeline.enqueue(call);
    return call;
  }
  std::string gather(std::size_t limit = 1 << 20) {
    std::string out;
    wire::CallQueue dropped;
    (void)pipeline.gather(out, limit, detail::Clock::now(), dropped);
    return out;
  }
};

using PipelineTest = Fixture;

TEST_F(PipelineTest, WritesAndAnswersInOrder) {
  detail::Call* a = add("A");
  detail::Call* b = add("B");
  EXPECT_EQ(gather(), "*1\r\n$1\r\nA\r\n*1\r\n$1\r\nB\r\n");
  bool last = false;
  detail::Call* first = pipeline.next_in_flight(last);
  EXPECT_EQ(first, a);
  EXPECT_TRUE(last);
  first->release();
  detail::Call* second = pipeline.next_in_flight(last);
  EXPECT_EQ(second, b);
  second->release();
  EXPECT_EQ(pipeline.next_in_flight(last), nullptr);
  EXPECT_EQ(pipeline.pending_bytes(), 0U);
}

TEST_F(PipelineTest, ACallOfSeveralRepliesStaysUntilItsLast) {
  detail::Call* call = add("MULTI");
  call->replies = 3;
  (void)gather();
  bool last = true;
  EXPECT_EQ(pipeline.next_in_flight(last), call);
  EXPECT_FALSE(last);
  EXPECT_EQ(pipeline.next_in_flight(last), call);
  EXPECT_FALSE(last);
  EXPECT_EQ(pipeline.next_in_flight(last), call);
  EXPECT_TRUE(last);
  call->release();
}

// A request of several commands that was sent again after part of its replies had come waited for the rest alone: the
// reply to its first command ended it, and that to its last went to the next call.
TEST_F(PipelineTest, ACallSentAgainWaitsForAllOfItsRepliesAgain) {
  const std::array<std::string_view, 1> parts = {"PTTL"};
  detail::Call* call = TestCall::make(parts, decode_nothing);
  call->repeat = Repeat::safe;
  static constexpr std::string_view kTwo = "*1\r\n$4\r\nPTTL\r\n*1\r\n$3\r\nGET\r\n";
  call->request = kTwo.data();
  call->request_size = kTwo.size();
  call->replies = 2;
  call->retain();
  kept.emplace_back(call);
  pipeline.enqueue(call);
  (void)gather();
  bool last = true;
  EXPECT_EQ(pipeline.next_in_flight(last), call);
  EXPECT_FALSE(last);
  wire::CallQueue lost;
  EXPECT_EQ(pipeline.connection_lost(kTwo.size(), detail::Clock::now(), 1s, lost), 1U);
  EXPECT_EQ(gather(), kTwo);
  EXPECT_EQ(pipeline.next_in_flight(last), call);
  EXPECT_FALSE(last);
  EXPECT_EQ(pipeline.next_in_flight(last), call);
  EXPECT_TRUE(last);
  call->release();
}

TEST_F(PipelineTest, AskingGoesBeforeEachCommandAndOnceBeforeATransaction) {
  constexpr std::string_view kAsking = "*1\r\n$6\r\nASKING\r\n", kGet = "*1\r\n$3\r\nGET\r\n",
                             kMulti = "*1\r\n$5\r\nMULTI\r\n";
  static const std::string two = std::string(kGet) + std::string(kGet), block = std::string(kMulti) + two;
  const auto ask = [&](const std::string& request) {
    detail::Call* call = add("X");
    call->request = request.data();
    call->request_size = static_cast<std::uint32_t>(request.size());
    call->asking = true;
    return call;
  };
  const std::string asking(kAsking), get(kGet);
  detail::Call* several = ask(two);
  EXPECT_EQ(gather(), asking + get + asking + get);
  EXPECT_EQ(several->replies, 4U);
  EXPECT_TRUE(several->awaits_asking);
  // Cut off before the second ASKING: all of it is written again.
  several->repeat = Repeat::safe;
  several->awaits_asking = false;
  wire::CallQueue lost;
  EXPECT_EQ(pipeline.connection_lost(asking.size() + get.size(), detail::Clock::now(), 1s, lost), 1U);
  EXPECT_EQ(gather(), asking + get + asking + get);
  EXPECT_EQ(several->replies, 4U);
  EXPECT_TRUE(several->awaits_asking);
  bool last = false;
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(pipeline.next_in_flight(last), several);
  EXPECT_TRUE(last);
  several->release();
  detail::Call* transaction = ask(block);
  detail::Call* behind = add("GET");
  EXPECT_EQ(gather(), asking + block + get);
  EXPECT_EQ(transaction->replies, 4U);
  EXPECT_EQ(behind->stream_offset, 2 * asking.size() + 2 * get.size() + asking.size() + block.size());
}

// Its connection was lost before anything of it was written, or before ASKING was answered, and its slot got another owner.
TEST_F(PipelineTest, WhatNoLongerAsksWaitsForItsOwnRepliesAlone) {
  for (const std::uint64_t sent : {std::uint64_t{0}, std::uint64_t{20}}) {
    wire::Pipeline fresh;
    std::swap(pipeline, fresh);
    detail::Call* call = add("A", Repeat::safe);
    call->asking = true;
    ASSERT_EQ(gather(), "*1\r\n$6\r\nASKING\r\n*1\r\n$1\r\nA\r\n");
    wire::CallQueue lost;
    (void)pipeline.connection_lost(sent, detail::Clock::now(), 1s, lost);
    ASSERT_TRUE(lost.empty());
    call->asking = false;
    EXPECT_EQ(gather(), "*1\r\n$1\r\nA\r\n");
    EXPECT_FALSE(call->awaits_asking) << sent;
    bool last = false;
    EXPECT_EQ(pipeline.next_in_flight(last), call);
    EXPECT_TRUE(last) << sent;
    if (last)
      call->release();
  }
}

// A lost connection at every byte: what had no byte written waits again, what had one is repeated only if that is safe.
TEST_F(PipelineTest, LossAtEveryByte) {
  for (std::uint64_t sent = 0; sent <= 33; ++sent) {
    wire::Pipeline fresh;
    std::swap(pipeline, fresh);
    detail::Call* unsafe_call = add("A");
    detail::Call* safe_call = add("B", Repeat::safe);
    detail::Call* third = add("C");
    ASSERT_EQ(gather().size(), 33U);
    wire::CallQueue lost;
    const std::size_t resent = pipeline.connection_lost(sent, detail::Clock::now(), 1s, lost);
    EXPECT_EQ(unsafe_call->resent, false);
    EXPECT_EQ(lost.size(), (sent > 0 ? 1U : 0U) + (sent > 22 ? 1U : 0U)) << sent;
    EXPECT_EQ(safe_call->resent, sent > 11) << sent;
    EXPECT_EQ(resent, sent > 11 ? 1U : 0U) << sent;
    EXPECT_FALSE(third->resent);
    const std::string again = gather();
    EXPECT_EQ(again.find("\nA\r") != std::string::npos, sent == 0) << sent;
    EXPECT_NE(again.find("\nB\r"), std::string::npos) << sent;
    EXPECT_EQ(again.find("\nC\r") != std::string::npos, sent <= 22) << sent;
  }
}

TEST_F(PipelineTest, ASafeCallIsNotRepeatedPastTheWindow) {
  detail::Call* call = add("B", Repeat::safe);
  (void)gather();
  wire::CallQueue lost;
  (void)pipeline.connection_lost(11, detail::Clock::now() + 2s, 1s, lost);
  EXPECT_EQ(lost.front(), call);
  EXPECT_FALSE(pipeline.has_waiting());
}

TEST_F(PipelineTest, SettledCallsAreNotWritten) {
  detail::Call* call = add("A");
  (void)add("B");
  ASSERT_TRUE(call->win());
  EXPECT_EQ(gather(), "*1\r\n$1\r\nB\r\n");
  EXPECT_EQ(pipeline.in_flight(), 1U);
}

TEST_F(PipelineTest, DeadlinesTakeWaitingCallsAndLeaveWrittenOnesTheirPlace) {
  const auto now = detail::Clock::now();
  detail::Call* written = add("A");
  written->deadline = now;
  (void)gather();
  detail::Call* waiting = add("B");
  waiting->deadline = now;
  add("C")->deadline = now + 5s;
  wire::CallQueue late;
  std::vector<detail::Call*> late_in_flight;
  EXPECT_EQ(pipeline.expire(now, 1s, late, [&](detail::Call& call) { late_in_flight.push_back(&call); }), now + 5s);
  EXPECT_EQ(late.front(), waiting);
  EXPECT_EQ(late_in_flight, std::vector<detail::Call*>{written});
  EXPECT_EQ(pipeline.in_flight(), 1U);
}

// What was written once and waits to be sent again may have been carried out: it waits no longer than its window, and
// it does not end as one that nobody has seen.
TEST_F(PipelineTest, WhatIsToBeSentAgainEndsWithItsWindow) {
  detail::Call* written = add("B", Repeat::safe);
  detail::Call* untouched = add("C");
  for (detail::Call* call : {written, untouched})
    call->deadline = detail::Clock::now() + 1h;
  (void)gather();
  wire::CallQueue lost;
  EXPECT_EQ(pipeline.connection_lost(5, detail::Clock::now(), 1s, lost), 1U);
  const auto first = written->first_written;
  const auto nobody = [](detail::Call&) { FAIL(); };
  wire::CallQueue late;
  EXPECT_EQ(pipeline.expire(first + 999ms, 1s, late, nobody), first + 1s);
  EXPECT_TRUE(late.empty());
  EXPECT_EQ(pipeline.expire(first + 1s, 1s, late, nobody), untouched->deadline);
  EXPECT_EQ(late.front(), written);
  EXPECT_EQ(late.size(), 1U);

  const Error why(Errc::unreachable, "no connection", Repeat::safe);
  EXPECT_TRUE(wire::unanswered(*written, false, why).is(Errc::outcome_unknown));
  EXPECT_EQ(wire::unanswered(*written, false, why).repeat, Repeat::safe);
  EXPECT_TRUE(wire::unanswered(*untouched, false, why).is(Errc::unreachable));
  EXPECT_TRUE(wire::unanswered(*untouched, true, why).is(Errc::outcome_unknown));
}

// Its window runs since it was first written, wherever that was; the health of a connection is judged by what is on it.
TEST_F(PipelineTest, ACallThatComesFromAnotherConnectionIsAwaitedSinceItWasWrittenHere) {
  const auto now = detail::Clock::now();
  const auto gather_at = [&](detail::Clock::time_point at) {
    std::string out;
    wire::CallQueue dropped;
    EXPECT_EQ(pipeline.gather(out, 1, at, dropped), 1U);
  };
  detail::Call* from_elsewhere = add("A", Repeat::safe);
  from_elsewhere->first_written = now - 10s;
  from_elsewhere->resent = true;
  add("B");
  gather_at(now);
  EXPECT_EQ(pipeline.awaits_since(), now);
  EXPECT_EQ(from_elsewhere->first_written, now - 10s);
  gather_at(now + 1s);
  EXPECT_EQ(pipeline.awaits_since(), now) << "the first is not answered yet";
  for (bool last = false; detail::Call* call = pipeline.next_in_flight(last);)
    call->release();
  add("C");
  gather_at(now + 2s);
  EXPECT_EQ(pipeline.awaits_since(), now + 2s);
}

TEST_F(PipelineTest, OnlyWaitingCallsCanBeWithdrawn) {
  detail::Call* written = add("A");
  (void)gather();
  detail::Call* waiting = add("B");
  EXPECT_FALSE(pipeline.withdraw(*written));
  EXPECT_TRUE(pipeline.withdraw(*waiting));
  waiting->release();
  EXPECT_FALSE(pipeline.has_waiting());
}

TEST_F(PipelineTest, WhatIsSentAgainGoesFirst) {
  (void)add("C");
  wire::CallQueue again;
  const std::array<std::string_view, 1> a = {"A"};
  const std::array<std::string_view, 1> b = {"B"};
  again.push(TestCall::make(a, decode_nothing));
  again.push(TestCall::make(b, decode_nothing));
  pipeline.enqueue_again(std::move(again));
  EXPECT_EQ(gather(), "*1\r\n$1\r\nA\r\n*1\r\n$1\r\nB\r\n*1\r\n$1\r\nC\r\n");
}

// A script that was loaded for the first lot serves the second one too, so the lots must not change places.
TEST_F(PipelineTest, LotsThatAreSentAgainKeepTheirOrder) {
  (void)add("C");
  for (const std::string_view name : {"A", "B"}) {
    wire::CallQueue again;
    const std::array<std::string_view, 1> parts = {name};
    again.push(TestCall::make(parts, decode_nothing));
    pipeline.enqueue_again(std::move(again));
  }
  EXPECT_EQ(pipeline.waiting(), 3U);
  EXPECT_EQ(gather(), "*1\r\n$1\r\nA\r\n*1\r\n$1\r\nB\r\n*1\r\n$1\r\nC\r\n");
  EXPECT_FALSE(pipeline.has_waiting());
}

}  // namespace
}  // namespace echomq
