// A link that is cut in a claim loses no job: another system took a job and said so in two commands, and a cut between
// them lost it.
#include "wire_chaos.hpp"

#include <algorithm>
#include <random>
#include <thread>

namespace echomq::test {
namespace {

class ClaimCut : public WireChaos {
 protected:
  static constexpr int kJobs = 3;
  static constexpr ClaimOptions kShort{.lease = 40ms, .deadline = {}};

  // Some jobs, a claim whose conversation breaks at one byte, a look at every job, and the rest of their lives.
  void one_cut(Direction direction, std::uint64_t offset, bool lane_claim, int run) {
    SCOPED_TRACE("direction " + std::to_string(static_cast<int>(direction)) + " offset " + std::to_string(offset));
    const QueueName name = numbered("cut", run);
    const Queue safe = direct().queue(name);
    const LaneId lane{"USR0KHTOWnGLuC"};
    std::vector<JobId> jobs;
    for (int index = 0; index < kJobs; ++index) {
      EnqueueOptions options;
      if (lane_claim) {
        options.lane = lane;
      }
      const auto admitted = safe.enqueue("payload", options).get();
      ASSERT_TRUE(admitted) << admitted.error().message();
      jobs.push_back(admitted->id);
    }

    ready();
    const std::uint64_t struck = proxy().counters().cut;
    proxy().cut_after(direction, offset);
    const Queue cut = client().queue(name);
    const auto claimed = lane_claim ? cut.claim_lane(kShort).get() : cut.claim(kShort).get();
    ASSERT_TRUE(proxy().wait_struck(struck + 1));
    ASSERT_TRUE(proxy().wait_drained());
    if (!claimed) {
      // A claim is not repeated by itself: the caller learns that it may hold a job.
      EXPECT_TRUE(claimed.error().is(Errc::outcome_unknown) || claimed.error().is(Errc::disconnected))
          << claimed.error().message();
    } else if (*claimed) {
      EXPECT_NE(std::ranges::find(jobs, (*claimed)->id), jobs.end());
      EXPECT_EQ((*claimed)->payload, "payload");
    }

    int active = 0;
    for (const JobId& id : jobs) {
      auto where = places(name, id);
      if (lane_claim &&
          !ask("ZSCORE", "emq:{" + std::string(name.text()) + "}:g:" + std::string(lane.text()) + ":pending", id.text())
               .is_null()) {
        where.emplace("lane");
      }
      EXPECT_EQ(where.size(), 1U) << id.text();
      active += where.contains("active") ? 1 : 0;
    }
    EXPECT_LE(active, 1);
    if (claimed && *claimed) {
      EXPECT_EQ(active, 1);
    }

    // What the cut claim may hold comes back with its lease; everything is done once in the end.
    if (active == 1) {
      std::this_thread::sleep_for(45ms);
      const auto swept = safe.sweep_stalled({.max_stalled = 3, .limit = 100, .deadline = {}}).get();
      ASSERT_TRUE(swept) << swept.error().message();
      EXPECT_EQ(swept->recovered.size(), 1U);
    }
    for (int index = 0; index < kJobs; ++index) {
      const auto job = lane_claim ? safe.claim_lane().get() : safe.claim().get();
      ASSERT_TRUE(job && *job) << "job " << index << " is lost";
      EXPECT_TRUE(safe.complete((*job)->id, (*job)->token).get());
    }
    const auto counts = safe.counts().get();
    ASSERT_TRUE(counts);
    EXPECT_EQ(counts->completed, kJobs);
    EXPECT_EQ(counts->pending + counts->active + counts->scheduled + counts->dead, 0);
  }

  void all_cuts(bool lane_claim) {
    const QueueName name = numbered("cut", 0);
    const Queue queue = client().queue(name);
    const auto prepare = [&] {
      EnqueueOptions options;
      if (lane_claim) {
        options.lane = LaneId{"USR0KHTOWnGLuC"};
      }
      ASSERT_TRUE(queue.enqueue("payload", options).get());
    };
    const auto claim = [&] {
      const auto job = lane_claim ? queue.claim_lane(kShort).get() : queue.claim(kShort).get();
      ASSERT_TRUE(job && *job);
    };
    prepare();
    claim();  // the script is loaded now
    prepare();
    const auto [request, reply] = measure(claim);
    ASSERT_GT(request, 80U);
    ASSERT_GT(reply, 20U);
    int run = 0;
    for (std::uint64_t offset = 0; offset <= request; ++offset) {
      one_cut(Direction::to_server, offset, lane_claim, ++run);
      if (HasFatalFailure()) {
        return;
      }
    }
    for (std::uint64_t offset = 0; offset <= reply; ++offset) {
      one_cut(Direction::to_client, offset, lane_claim, ++run);
      if (HasFatalFailure()) {
        return;
      }
    }
  }
};

TEST_F(ClaimCut, EveryOffsetOfAClaim) { all_cuts(false); }
TEST_F(ClaimCut, EveryOffsetOfALaneClaim) { all_cuts(true); }

}  // namespace
}  // namespace echomq::test
