// What claims and settles make of their answers, above all of an answer that came to a repetition.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/queue_fake_core.hpp"

namespace echomq::test {
namespace {

using testing::ElementsAre;

TEST(QueueClaim, ReadsAJobAndIsNeverRepeated) {
  FakeQueue f;
  auto reply = f.queue.claim({.lease = Milliseconds(5)});
  EXPECT_EQ(f.core->last().repeat, Repeat::unsafe);
  EXPECT_THAT(std::vector(f.core->last().parts.begin() + 2, f.core->last().parts.end()),
              ElementsAre("2", "emq:{q}:pending", "emq:{q}:active", "emq:{q}:job:", "5"));
  f.core->answer("*3\r\n$14\r\nJOB0NgWEfAE00A\r\n$2\r\npx\r\n:7\r\n");
  const auto job = reply.get().value();
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->id, kJobA);
  EXPECT_EQ(job->token, Token(7));
  EXPECT_EQ(job->payload, "px");
  EXPECT_TRUE(job->has_payload);
  EXPECT_FALSE(job->lane.has_value());
}

TEST(QueueClaim, ReadsALaneAndAMissingPayload) {
  FakeQueue f;
  auto reply = f.queue.claim_lane();
  EXPECT_THAT(std::vector(f.core->last().parts.begin() + 2, f.core->last().parts.end()),
              ElementsAre("2", "emq:{q}:ring", "emq:{q}:active", "emq:{q}:", "30000"));
  f.core->answer("*4\r\n$14\r\nJOB0NgWEfAE00A\r\n_\r\n:1\r\n$14\r\nPRT0NgWEfAE00X\r\n");
  const auto job = reply.get().value();
  EXPECT_FALSE(job->has_payload);
  EXPECT_EQ(job->lane, kLane);
}

TEST(QueueClaim, NothingIsNoError) {
  FakeQueue f;
  auto reply = f.queue.claim();
  f.core->answer("*0\r\n");
  EXPECT_EQ(reply.get().value(), std::nullopt);
}

TEST(QueueClaim, BytesThatAreNoJobAreAProtocolError) {
  for (const char* frame : {"*3\r\n$4\r\nnope\r\n$1\r\np\r\n:1\r\n", "*1\r\n$14\r\nJOB0NgWEfAE00A\r\n",
                            "*3\r\n$14\r\nJOB0NgWEfAE00A\r\n$1\r\np\r\n:0\r\n", ":1\r\n", "_\r\n",
                            "*4\r\n$14\r\nJOB0NgWEfAE00A\r\n$1\r\np\r\n:1\r\n$1\r\ng\r\n"}) {
    FakeQueue f;
    auto reply = f.queue.claim_lane();
    f.core->answer(frame);
    const auto job = reply.get();
    ASSERT_FALSE(job.has_value()) << frame;
    EXPECT_TRUE(job.error().is(Errc::protocol_error)) << frame;
  }
}

TEST(QueueSettle, CompleteLeavesTheFlowLinkToTheScript) {
  FakeQueue f;
  auto plain = f.queue.complete(kJobA, Token(3));
  EXPECT_EQ(f.core->last().repeat, Repeat::safe);
  EXPECT_THAT(std::vector(f.core->last().parts.begin() + 2, f.core->last().parts.end()),
              ElementsAre("2", "emq:{q}:active", "emq:{q}:job:JOB0NgWEfAE00A", "JOB0NgWEfAE00A", "3", "emq:{q}:"));
  auto with_result = f.queue.complete(kJobA, Token(3), {.result = ""});
  EXPECT_THAT(std::vector(f.core->last().parts.begin() + 5, f.core->last().parts.end()),
              ElementsAre("JOB0NgWEfAE00A", "3", "emq:{q}:", "", ""));
}

/// Answers a settle gives, and what they mean the first time and to a repetition after a lost answer.
struct Case {
  const char* verb;
  const char* frame;
  std::optional<Errc> first;
  std::optional<Errc> resent;
};

Result<void> settle(FakeQueue& f, std::string_view verb, std::string_view frame, bool resent) {
  const auto as_void = [&](auto reply) -> Result<void> {
    f.core->answer(frame, resent);
    auto result = reply.get();
    if (!result)
      return std::unexpected(result.error());
    return {};
  };
  if (verb == "complete")
    return as_void(f.queue.complete(kJobA, Token(1)));
  if (verb == "retry")
    return as_void(f.queue.retry(kJobA, Token(1)));
  if (verb == "delay")
    return as_void(f.queue.delay(kJobA, Token(1), Milliseconds(1)));
  if (verb == "delay_until")
    return as_void(f.queue.delay_until(kJobA, Token(1), Instant()));
  if (verb == "hand_back")
    return as_void(f.queue.hand_back(kJobA, Token(1)));
  if (verb == "extend")
    return as_void(f.queue.extend(kJobA, Token(1), Milliseconds(1)));
  if (verb == "remove")
    return as_void(f.queue.remove(kJobA));
  return fail(Errc::invalid_argument, "no such verb");
}

TEST(QueueSettle, AnAnswerToARepetitionIsReadAsOne) {
  constexpr auto kGone = Errc::job_gone;
  constexpr auto kStale = Errc::stale_token;
  constexpr auto kProtocol = Errc::protocol_error;
  constexpr std::optional<Errc> kDone;
  const Case cases[] = {
      {"complete", ":1\r\n", kDone, kDone},
      {"complete", ":0\r\n", kGone, kDone},
      {"complete", "-EMQSTALE complete token mismatch\r\n", kStale, kStale},
      {"complete", "+OK\r\n", kProtocol, kProtocol},
      {"retry", "$9\r\nscheduled\r\n", kDone, kDone},
      {"retry", "-EMQSTALE job gone\r\n", kGone, kDone},
      {"retry", "-EMQSTALE retry token mismatch\r\n", kStale, kStale},
      {"retry", "$5\r\nother\r\n", kProtocol, kProtocol},
      {"delay", ":1\r\n", kDone, kDone},
      {"delay", "-EMQSTALE job gone\r\n", kGone, kDone},
      {"delay", "-EMQSTALE delay token mismatch\r\n", kStale, kStale},
      {"delay_until", "-EMQSTALE job gone\r\n", kGone, kDone},
      {"delay", "-EMQKIND job id must be JOB-namespaced\r\n", Errc::wrong_kind, Errc::wrong_kind},
      {"hand_back", ":1\r\n", kDone, kDone},
      {"hand_back", ":0\r\n", kGone, kDone},
      {"hand_back", "-EMQSTALE hand_back token mismatch\r\n", kStale, kDone},
      {"extend", ":1\r\n", kDone, kDone},
      {"extend", ":-1\r\n", kGone, kGone},
      {"extend", "-EMQSTALE extend token mismatch\r\n", kStale, kStale},
      {"remove", ":-1\r\n", kGone, kDone},
      {"remove", "-EMQLOCK job is locked\r\n", Errc::job_locked, Errc::job_locked},
  };
  for (const Case& one : cases) {
    for (const bool resent : {false, true}) {
      FakeQueue f;
      const Result<void> result = settle(f, one.verb, one.frame, resent);
      const std::optional<Errc> expected = resent ? one.resent : one.first;
      EXPECT_EQ(result.has_value(), !expected.has_value()) << one.verb << " " << one.frame << resent;
      if (!result && expected) {
        EXPECT_TRUE(result.error().is(*expected)) << one.verb << " " << result.error().message();
      }
    }
  }
}

TEST(QueueSettle, ExtendManySplitsLongLists) {
  FakeQueue f;
  const std::vector<Held> held(2500, Held{kJobA, Token(12)});
  auto reply = f.queue.extend_many(held, Milliseconds(9));
  ASSERT_EQ(f.core->all.size(), 3U);
  EXPECT_EQ(f.core->all[0].parts.size(), 6U + 2000U);
  EXPECT_EQ(f.core->all[2].parts.size(), 6U + 1000U);
  EXPECT_EQ(f.core->all[2].parts.back(), "12");
  f.core->answer("*1\r\n$14\r\nJOB0NgWEfAE00A\r\n");
  f.core->answer("*0\r\n");
  f.core->answer("*1\r\n$14\r\nJOB0NgWEfAE00B\r\n");
  EXPECT_THAT(reply.get().value(), ElementsAre(kJobA, kJobB));
}

TEST(QueueSettle, OneFailedPartFailsTheJoinedAnswer) {
  FakeQueue f;
  const std::vector<Held> held(1001, Held{kJobA, Token(1)});
  auto reply = f.queue.extend_many(held, Milliseconds(9));
  f.core->refuse(Error(Errc::outcome_unknown, "lost"));
  f.core->answer("*0\r\n");
  EXPECT_TRUE(reply.get().error().is(Errc::outcome_unknown));
}

}  // namespace
}  // namespace echomq::test
