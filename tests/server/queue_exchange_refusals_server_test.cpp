// What settle, take and settle_and_take refuse, by the host and by the scripts, and that nothing is written then: bad arguments,
// and keys of another type.
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "script/registry.hpp"
#include "server/exchange_fixture.hpp"

namespace echomq::test {
namespace {

using namespace echomq::queue;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(ExchangeTest, TheHostRefusesBeforeAnythingIsSent) {
  const auto refused = [&](const std::vector<Settlement>& settlements, const std::optional<TakeRequest>& request,
                           const std::string& says) {
    const auto answer = exchange(queue(), settlements, request).get();
    ASSERT_FALSE(answer) << says;
    EXPECT_TRUE(answer.error().is(Errc::invalid_argument));
    EXPECT_THAT(answer.error().message(), HasSubstr(says));
  };
  refused({}, std::nullopt, "neither");
  refused(std::vector<Settlement>(1001), std::nullopt, "1001");
  refused({}, TakeRequest{.most = 0}, "most");
  refused({}, TakeRequest{.most = 1001}, "1001");
  refused({}, TakeRequest{.lease = 0ms}, "lease");
  refused({}, TakeRequest{.lanes = false, .flat = false}, "neither");
  refused({{.kind = SettleKind::retry, .wait = -1ms}}, std::nullopt, "wait");
  refused({{.kind = SettleKind::retry, .max_attempts = 0}}, std::nullopt, "max_attempts");
  refused({{.kind = SettleKind::delay, .wait = -1ms}}, std::nullopt, "wait");
  refused({{.keep = -1ms}}, std::nullopt, "keep");
}

TEST_F(ExchangeTest, TheScriptsRefuseBeforeAnythingIsWritten) {
  const auto ids = fill({}, 2);
  ASSERT_THAT(take({.most = 1}).jobs, SizeIs(1));
  const std::string before = digest();
  const auto refused = [&](std::string_view name, const std::vector<std::string>& arguments, const std::string& says) {
    std::vector<std::string> parts = {
        "EVAL", std::string(script::find_script(name)->source), "2", kP + "pending", kP + "active", kP};
    parts.insert(parts.end(), arguments.begin(), arguments.end());
    const std::vector<std::string_view> views(parts.begin(), parts.end());
    const auto reply = client().command(CommandParts(views)).get();
    ASSERT_FALSE(reply) << name << " " << says;
    EXPECT_THAT(reply.error().message(), HasSubstr(says));
    EXPECT_EQ(digest(), before) << name << " " << says;
  };
  const std::string id(ids[0].text());
  for (const std::vector<std::string>& bad : std::vector<std::vector<std::string>>{{id},
                                                                                   {id, "1"},
                                                                                   {id, "1", "x"},
                                                                                   {id, "1", "D", "r"},
                                                                                   {id, "1", "D", "r", "k"},
                                                                                   {id, "1", "w", "soon"},
                                                                                   {id, "1", "w", "nan"},
                                                                                   {id, "1", "r", "e", "1", "x", "0"},
                                                                                   {id, "1", "r", "e", "x", "1", "0"},
                                                                                   {id, "1", "k", "e", "x"},
                                                                                   {id, "1", "d", id, "1"},
                                                                                   {id, "1", "d", id, "1", "?"}}) {
    refused("settle", bad, "ERR a settlement is malformed");
    std::vector<std::string> more = {"1", "1000", "fl"};
    more.insert(more.end(), bad.begin(), bad.end());
    refused("settle_and_take", more, "ERR a settlement is malformed");
  }
  std::vector<std::string> many;
  for (int i = 0; i < 1001; ++i)
    many.insert(many.end(), {id, "1", "d"});
  refused("settle", many, "ERR more than 1000 settlements");
  for (const char* name : {"take", "settle_and_take"}) {
    refused(name, {"0", "1000", "fl"}, "ERR most");
    refused(name, {"x", "1000", "fl"}, "ERR most");
    refused(name, {"1", "0", "fl"}, "ERR lease");
    refused(name, {"1", "1000", "ff"}, "ERR order");
    refused(name, {"1", "1000"}, "ERR order");
  }
}

TEST_F(ExchangeTest, AKeyOfAnotherTypeRefusesTheCallAndNothingIsWritten) {
  const auto ids = fill({}, 3);
  ASSERT_THAT(take({.most = 2}).jobs, SizeIs(2));
  const std::vector<Settlement> mix = {
      {.id = ids[0], .token = Token(1)},
      {.id = ids[1], .token = Token(1), .kind = SettleKind::retry, .text = "e", .wait = 1s}};
  for (const char* key : {"schedule", "dead", "limiter", "ring", "meta", "parked"}) {
    raw("DEL", kP + key);
    raw("HSET", kP + "meta", "max", "100");
    raw("DEL", kP + key);
    if (std::string_view(key) == "limiter") {
      raw("LPUSH", kP + key, "x");
    } else {
      raw("SET", kP + key, "x");
    }
    const std::string before = digest();
    const auto answer = exchange(queue(), mix, TakeRequest{.most = 5}).get();
    EXPECT_FALSE(answer) << key;
    EXPECT_EQ(digest(), before) << key;
    raw("DEL", kP + key);
  }
  // A row that is no hash is no row; the others are settled.
  raw("SET", row(ids[0]), "x");
  EXPECT_THAT(settle(mix).settled, ElementsAre(Settled::gone, Settled::scheduled));
  raw("SET", row(ids[2]), "x");
  EXPECT_THAT(take({.most = 5}).jobs, IsEmpty());
}

// The short way of an idle worker's claim looks at no key that it does not write.
TEST_F(ExchangeTest, TheOnlyPlainJobIsClaimedOrNothingIsWritten) {
  fill({}, 1);
  raw("SET", kP + "active", "x");
  const std::string before = digest();
  const auto refused = exchange(queue(), {}, TakeRequest{.most = 1}).get();
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("WRONGTYPE"));
  EXPECT_EQ(digest(), before);
  raw("DEL", kP + "active");
  raw("SET", kP + "dead", "x");
  EXPECT_THAT(take({.most = 1}).jobs, SizeIs(1));
}

// Every key that a call may write, as a text: the call is refused before its first write, whichever of its parts would meet it.
TEST_F(ExchangeTest, NoKeyOfAnotherTypeIsMetHalfWay) {
  // Of every kind of settlement one, flat, in a lane and as a child; and one job whose lease has been taken from it.
  const auto prepare = [&] {
    raw("FLUSHALL");
    const auto flat = fill({}, 10);
    fill(kLaneX, 2);
    raw("HSET", row(flat[5]), "parent", kJobA.text(), "parent_queue", "other");
    const auto held = take({.most = 12});
    EXPECT_THAT(held.jobs, SizeIs(12));
    const SettleKind kinds[] = {SettleKind::done, SettleKind::retry, SettleKind::dead, SettleKind::delay,
                                SettleKind::hand_back};
    std::vector<Settlement> mix;
    for (const TakenJob& one : held.jobs)
      mix.push_back({.id = one.job.id, .token = one.job.token, .kind = kinds[mix.size() % 5], .wait = 1s});
    fill({}, 2);
    fill(kLaneX, 2);
    raw("ZREM", kP + "active", flat[2].text());
    raw("ZADD", kP + "parked", "99999999999999", "worker");
    raw("HSET", kP + "meta", "max", "100");
    return mix;
  };
  enum Way { kSettle, kTake, kBoth };
  const auto expect_refused = [&](std::string_view key, Way way, std::vector<Settlement> mix) {
    SCOPED_TRACE(std::string(key) + " " + std::to_string(way) + " " + std::to_string(mix.size()));
    raw("DEL", kP + std::string(key));
    key == "limiter" ? raw("LPUSH", kP + std::string(key), "x") : raw("SET", kP + std::string(key), "x");
    const std::string before = digest();
    if (way == kTake)
      mix.clear();
    const auto request = way == kSettle ? std::nullopt : std::optional(TakeRequest{.most = 5});
    const auto answer = exchange(queue(), mix, request).get();
    ASSERT_FALSE(answer);
    EXPECT_THAT(answer.error().message(), HasSubstr("WRONGTYPE"));
    EXPECT_EQ(digest(), before);
  };
  for (const std::string_view key : {"pending", "active", "dead", "ring", "meta", "limiter"})
    expect_refused(key, kTake, prepare());
  for (const std::string_view key :
       {"pending", "active", "schedule", "dead", "ring", "wake", "parked", "flow:outbox", "meta"}) {
    expect_refused(key, kSettle, prepare());
    expect_refused(key, kBoth, prepare());
  }
  // One settlement alone meets only what it may write itself.
  for (std::size_t i = 0; i < prepare().size(); ++i) {
    for (const std::string_view key : {"active", "parked", "wake"}) {
      const auto mix = prepare();
      expect_refused(key, kSettle, {mix[i]});
    }
  }
  const auto of = [&](SettleKind kind) {
    const auto mix = prepare();
    const auto found = std::ranges::find(mix, kind, &Settlement::kind);
    return std::vector<Settlement>{*found};
  };
  expect_refused("schedule", kSettle, of(SettleKind::retry));
  expect_refused("schedule", kSettle, of(SettleKind::delay));
  expect_refused("dead", kSettle, of(SettleKind::retry));
  expect_refused("dead", kSettle, of(SettleKind::dead));
  expect_refused("pending", kSettle, of(SettleKind::hand_back));
}

// What counts, limits or pauses lanes, and the set of one lane, hold up nobody.
TEST_F(ExchangeTest, WhatBelongsToALaneCountsAsAbsentWhenItHasAnotherType) {
  const std::string lane_set = "g:" + std::string(kLaneX.text()) + ":pending";
  for (const std::string_view key :
       {std::string_view("gactive"), std::string_view("glimit"), std::string_view("gweight"),
        std::string_view("paused"), std::string_view(lane_set)}) {
    SCOPED_TRACE(key);
    raw("FLUSHALL");
    fill({}, 2);
    fill(kLaneX, 2);
    const auto held = take({.most = 4});
    ASSERT_THAT(held.jobs, SizeIs(4));
    fill(kLaneX, 2);
    fill(kLaneY, 2);
    fill({}, 1);
    raw("SET", kP + std::string(key), "x");
    std::vector<Settlement> done;
    for (const TakenJob& one : held.jobs)
      done.push_back({.id = one.job.id, .token = one.job.token});
    EXPECT_THAT(settle(done).settled, Each(Settled::completed));
    EXPECT_EQ(raw("ZCARD", kP + "active").as_integer(), 0);
    EXPECT_THAT(take({.most = 10}).jobs, SizeIs(key == lane_set ? 3 : 5));
    EXPECT_THAT(take({.most = 10}).jobs, IsEmpty());
  }
}

}  // namespace
}  // namespace echomq::test
