// Lanes that two languages fill and serve: turns, ceilings, pauses and moves are one matter, whoever makes them.
#include "interop/exchange_fixture.hpp"

namespace echomq::interop {
namespace {

constexpr LaneId kLaneX{"PRT0NgWEfAE00X"};
constexpr LaneId kLaneY{"PRT0NgWEfAE00Y"};

class ExchangeLanesTest : public ExchangeTest {
 protected:
  /// A job that we admit to the lane.
  [[nodiscard]] JobId ours(LaneId lane, std::string_view payload) { return enqueued(payload, {.lane = lane}); }
  /// One that the peer admits.
  [[nodiscard]] JobId theirs(LaneId lane, std::string_view payload) {
    const std::string id = peer().mint("JOB");
    EXPECT_EQ(ask("lane_enqueue", {{"id", id}, {"group", text(lane)}, {"payload", payload}}), ok("enqueued"));
    return JobId::parse(id).value();
  }
  [[nodiscard]] ClaimedJob claimed_from_lane() {
    auto job = queue().claim_lane({.lease = 60s}).get().value();
    if (!job)
      throw std::runtime_error("no lane has a job for us");
    return *std::move(job);
  }
  json::value peer_claims() { return ask("lane_claim", {{"lease_ms", 60000}}); }
  [[nodiscard]] static json::value job(JobId id, std::string_view payload, LaneId lane) {
    return ok(json::array{text(id), json::string(payload), 1, text(lane)});
  }
};

TEST_F(ExchangeLanesTest, TurnsAreShared) {
  const JobId x1 = ours(kLaneX, "x1");
  std::this_thread::sleep_for(2ms);  // two minters: their ids have an order once the clock has moved
  const JobId x2 = theirs(kLaneX, "x2");
  const JobId y1 = theirs(kLaneY, "y1");
  std::this_thread::sleep_for(2ms);
  const JobId y2 = ours(kLaneY, "y2");
  EXPECT_EQ(peer_claims(), job(x1, "x1", kLaneX));
  const ClaimedJob second = claimed_from_lane();
  EXPECT_EQ(second.id, y1);
  EXPECT_EQ(second.lane, kLaneY);
  EXPECT_EQ(peer_claims(), job(x2, "x2", kLaneX));
  EXPECT_EQ(claimed_from_lane().id, y2);
  EXPECT_EQ(peer_claims(), "empty");
  EXPECT_FALSE(queue().claim_lane().get().value());
  // Each settles what the other holds; the slots come back.
  for (const JobId id : {x1, y1})
    EXPECT_TRUE(queue().complete(id, Token(1)).get());
  for (const JobId id : {x2, y2})
    EXPECT_EQ(ask("complete", {{"id", text(id)}, {"token", 1}}), "ok");
  EXPECT_EQ(ask("raw", {{"command", {"EXISTS", "emq:{q}:gactive", "emq:{q}:ring"}}}), 0);
  expect_counts({.completed = 4});
}

TEST_F(ExchangeLanesTest, ACeilingOfOneBindsBoth) {
  EXPECT_EQ(ask("lane_limit", {{"group", text(kLaneX)}, {"limit", 1}}), "ok");
  const JobId first = ours(kLaneX, "1");
  const JobId second = ours(kLaneX, "2");
  EXPECT_EQ(claimed_from_lane().id, first);
  EXPECT_EQ(peer_claims(), "empty");
  EXPECT_TRUE(queue().limit_lane(kLaneX, 2).get());
  EXPECT_EQ(peer_claims(), job(second, "2", kLaneX));
  const JobId third = theirs(kLaneX, "3");
  EXPECT_FALSE(queue().claim_lane().get().value());
  EXPECT_EQ(ask("complete", {{"id", text(first)}, {"token", 1}}), "ok");
  EXPECT_EQ(claimed_from_lane().id, third);
}

TEST_F(ExchangeLanesTest, PausesAndMovesOfOneAreObeyedByTheOther) {
  const JobId first = ours(kLaneX, "1");
  const JobId second = ours(kLaneX, "2");
  EXPECT_TRUE(queue().pause_lane(kLaneX).get());
  EXPECT_EQ(peer_claims(), "empty");
  EXPECT_EQ(ask("lane_reassign", {{"id", text(second)}, {"group", text(kLaneY)}}), ok("reassigned"));
  EXPECT_EQ(claimed_from_lane().id, second);
  EXPECT_EQ(queue().lane_depth(kLaneX).get().value(), 1);
  EXPECT_EQ(ask("lane_resume", {{"group", text(kLaneX)}}), "ok");
  EXPECT_EQ(queue().reassign(first, kLaneY).get().value(), Reassigned::moved);
  EXPECT_EQ(ask("lane_depths", {{"groups", {text(kLaneX), text(kLaneY)}}}),
            ok(json::object{{kLaneX.text(), 0}, {kLaneY.text(), 1}}));
  EXPECT_EQ(peer_claims(), job(first, "1", kLaneY));
}

TEST_F(ExchangeLanesTest, ALostLaneJobGoesBackToItsLane) {
  const JobId id = ours(kLaneX, "x");
  {
    NodePeer third(server().url());
    EXPECT_EQ(third.ask("lane_claim", "q", {{"lease_ms", 60}}), job(id, "x", kLaneX));
    third.kill();
  }
  std::this_thread::sleep_for(80ms);
  EXPECT_EQ(queue().reap().get().value(), 1);
  EXPECT_EQ(ask("lane_claim", {{"lease_ms", 60}}), ok(json::array{text(id), "x", 2, text(kLaneX)}));
  std::this_thread::sleep_for(80ms);
  EXPECT_EQ(ask("sweep_stalled", {{"max_stalled", 3}}).at("ok").at("recovered"), json::array{text(id)});
  const ClaimedJob again = claimed_from_lane();
  EXPECT_EQ(again.token, Token(3));
  EXPECT_TRUE(queue().hand_back(id, again.token).get());
  EXPECT_EQ(ask("lane_claim", {{"lease_ms", 60}}), ok(json::array{text(id), "x", 4, text(kLaneX)}));
}

}  // namespace
}  // namespace echomq::interop
