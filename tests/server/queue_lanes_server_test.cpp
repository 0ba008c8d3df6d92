// Weighted turns, batches of lanes and of the flat set, recovery of one lane; and the rules that hold at any time:
// a job is in one place, counts equal the sets, the ring holds exactly the lanes that can be served.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "server/queue_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LanesServerTest : public QueueServerTest {
 protected:
  /// Jobs with fresh ids, in mint order.
  std::vector<JobId> fill(std::optional<LaneId> lane, int count) {
    const std::vector<NewJob> jobs(static_cast<std::size_t>(count), NewJob{.payload = "p"});
    std::vector<JobId> ids;
    const auto admitted = queue().enqueue_many(jobs, {.lane = lane}).get().value();
    for (const auto& one : admitted)
      ids.push_back(one.value().id);
    return ids;
  }
  [[nodiscard]] std::string lane_key(LaneId lane) const { return "emq:{q}:g:" + std::string(lane.text()) + ":pending"; }
  [[nodiscard]] Value gactive(LaneId lane) { return raw("HGET", "emq:{q}:gactive", lane.text()); }
  [[nodiscard]] std::vector<std::string> ring() {
    std::vector<std::string> groups;
    const Value list = raw("LRANGE", "emq:{q}:ring", "0", "-1");
    for (const Value& group : list.items())
      groups.push_back(text(group));
    return groups;
  }
  [[nodiscard]] std::string broken_rule();
};

/// The rules of the protocol over the whole queue, looked at in one step; empty when all hold.
std::string LanesServerTest::broken_rule() {
  constexpr std::string_view kCheck = R"(
    local p = ARGV[1]
    local places, flights = {}, {}
    local function put(id, place)
      if places[id] then return id .. ' is in ' .. places[id] .. ' and in ' .. place end
      places[id] = place
    end
    for _, set in ipairs({'pending', 'active', 'schedule', 'dead'}) do
      for _, id in ipairs(redis.call('ZRANGE', p .. set, 0, -1)) do
        local twice = put(id, set)
        if twice then return twice end
        local row = redis.call('HMGET', p .. 'job:' .. id, 'state', 'group')
        local word = set == 'schedule' and 'scheduled' or set
        if row[1] ~= word then return id .. ' is in ' .. set .. ' and says ' .. tostring(row[1]) end
        if set == 'pending' and row[2] then return id .. ' has a lane and is in pending' end
        if set == 'active' and row[2] then flights[row[2]] = (flights[row[2]] or 0) + 1 end
      end
    end
    local ring = {}
    for _, g in ipairs(redis.call('LRANGE', p .. 'ring', 0, -1)) do
      if ring[g] then return g .. ' is on the ring twice' end
      ring[g] = true
    end
    for i = 2, #ARGV do
      local g = ARGV[i]
      local waiting = redis.call('ZRANGE', p .. 'g:' .. g .. ':pending', 0, -1)
      for _, id in ipairs(waiting) do
        local twice = put(id, 'lane ' .. g)
        if twice then return twice end
        local row = redis.call('HMGET', p .. 'job:' .. id, 'state', 'group')
        if row[1] ~= 'pending' or row[2] ~= g then return id .. ' waits in ' .. g .. ' and says otherwise' end
      end
      local act = tonumber(redis.call('HGET', p .. 'gactive', g)) or 0
      if act ~= (flights[g] or 0) then return g .. ' has ' .. (flights[g] or 0) .. ' in flight and counts ' .. act end
      if act < 1 and redis.call('HEXISTS', p .. 'gactive', g) == 1 then return g .. ' keeps a count of none' end
      local ceiling = tonumber(redis.call('HGET', p .. 'glimit', g))
      local served = #waiting > 0 and redis.call('SISMEMBER', p .. 'paused', g) == 0 and (not ceiling or act < ceiling)
      if served ~= (ring[g] or false) then
        return g .. (served and ' should be' or ' should not be') .. ' on the ring'
      end
    end
    local rows = 0
    for _ in pairs(places) do rows = rows + 1 end
    local keys = redis.call('KEYS', p .. 'job:??????????????')
    if #keys ~= rows then return #keys .. ' rows, ' .. rows .. ' of them in a set' end
    return '')";
  return text(raw("EVAL", kCheck, "0", "emq:{q}:", kLaneX.text(), kLaneY.text()));
}

TEST_F(LanesServerTest, AWeightedTurnTakesWhatTheWeightSaysAndCountsWhatItServed) {
  fill(kLaneX, 5);
  fill(kLaneY, 2);
  ASSERT_TRUE(queue().weigh_lane(kLaneX, 3).get());
  EXPECT_THAT(queue().claim_lane_weighted().get().value(), SizeIs(3));
  EXPECT_EQ(text(gactive(kLaneX)), "3");
  EXPECT_THAT(queue().claim_lane_weighted().get().value(), SizeIs(1));  // a lane without a weight
  EXPECT_THAT(queue().claim_lane_weighted().get().value(), SizeIs(2));  // the rest
  EXPECT_EQ(ring(), std::vector<std::string>{std::string(kLaneY.text())});
  EXPECT_EQ(broken_rule(), "");
}

TEST_F(LanesServerTest, ANumberSetByHandNeverLeavesJobsUncounted) {
  fill(kLaneX, 9);
  const auto served = [&](std::string_view weight, std::string_view ceiling) {
    raw("HSET", "emq:{q}:gweight", kLaneX.text(), weight);
    raw("HSET", "emq:{q}:glimit", kLaneX.text(), ceiling);
    return queue().claim_lane_weighted().get().value().size();
  };
  EXPECT_EQ(served("two", "nine"), 1U);  // no numbers: absent
  EXPECT_EQ(served("nan", "nan"), 1U);
  EXPECT_EQ(served("-4", "100"), 1U);
  EXPECT_EQ(served("2.9", "100"), 2U);
  EXPECT_EQ(served("1e300", "6.5"), 2U);  // five are in flight: the ceiling has room for another and a half
  EXPECT_EQ(text(gactive(kLaneX)), "7");
  raw("HSET", "emq:{q}:gactive", kLaneX.text(), "many");
  raw("HDEL", "emq:{q}:glimit", kLaneX.text());
  ASSERT_TRUE(queue().resume_lane(kLaneX).get());
  EXPECT_THAT(queue().claim_lane_batch().get().value(), SizeIs(2));
  EXPECT_EQ(text(gactive(kLaneX)), "2");
}

TEST_F(LanesServerTest, ALaneThatCannotBeServedIsPassedOver) {
  ASSERT_TRUE(queue().limit_lane(kLaneX, 1).get());
  fill(kLaneX, 2);
  ASSERT_TRUE(queue().claim_lane().get().value());
  fill(kLaneY, 1);
  raw("LPUSH", "emq:{q}:ring", kLaneX.text());     // full
  raw("LPUSH", "emq:{q}:ring", "PRT0NgWEfAE00Z");  // empty
  const auto jobs = queue().claim_lane_batch().get().value();
  ASSERT_THAT(jobs, SizeIs(1));
  EXPECT_EQ(jobs[0].lane, kLaneY);
  EXPECT_EQ(broken_rule(), "");
}

TEST_F(LanesServerTest, ABatchPassesOverMembersWithoutARowAndIsStillFull) {
  for (const auto& lane : {std::optional<LaneId>(), std::optional(kLaneX)}) {
    const std::vector<JobId> ids = fill(lane, 6);
    raw("DEL", "emq:{q}:job:" + std::string(ids[0].text()));
    raw("DEL", "emq:{q}:job:" + std::string(ids[2].text()));
    const auto jobs = lane ? queue().claim_lane_batch({.size = 3}).get() : queue().claim_batch({.size = 3}).get();
    std::vector<JobId> served;
    for (const ClaimedJob& job : jobs.value())
      served.push_back(job.id);
    EXPECT_THAT(served, ElementsAre(ids[1], ids[3], ids[4]));
    EXPECT_TRUE(raw("EXISTS", "emq:{q}:job:" + std::string(ids[0].text())).as_integer() == 0);
  }
  EXPECT_EQ(text(gactive(kLaneX)), "3");
  EXPECT_EQ(broken_rule(), "");
}

TEST_F(LanesServerTest, ABatchIsBoundedAndHasOneDeadline) {
  fill(std::nullopt, 1500);
  const std::vector<JobId> ids = fill(kLaneX, 1500);
  EXPECT_THAT(queue().claim_batch({.size = 4000000000U}).get().value(), SizeIs(1000));
  const auto jobs = queue().claim_lane_batch({.size = 4000000000U}).get().value();
  ASSERT_THAT(jobs, SizeIs(1000));
  EXPECT_EQ(raw("ZSCORE", "emq:{q}:active", ids[0].text()).as_double(),
            raw("ZSCORE", "emq:{q}:active", ids[999].text()).as_double());
  EXPECT_THAT(queue().claim_lane_batch().get().value(), SizeIs(500));
  EXPECT_EQ(broken_rule(), "");
}

/// A pause between the look and the claim was missed by one claim.
TEST_F(LanesServerTest, APausedQueueGivesNoBatch) {
  fill(std::nullopt, 2);
  fill(kLaneX, 2);
  ASSERT_TRUE(queue().pause().get());
  const std::string before = digest();
  EXPECT_THAT(queue().claim_batch().get().value(), IsEmpty());
  EXPECT_THAT(queue().claim_lane_batch().get().value(), IsEmpty());
  EXPECT_THAT(queue().claim_lane_weighted().get().value(), IsEmpty());
  EXPECT_EQ(digest(), before);
}

/// Older leases of other lanes hid those of the lane that was asked for, on every call.
TEST_F(LanesServerTest, ALaneIsRecoveredBehindAnyNumberOfOthersLeases) {
  fill(kLaneY, 11500);
  for (int i = 0; i < 12; ++i)
    ASSERT_TRUE(queue().claim_lane_batch({.lease = 1ms}).get());
  std::this_thread::sleep_for(5ms);
  const std::vector<JobId> ids = fill(kLaneX, 250);
  ASSERT_THAT(queue().claim_lane_batch({.lease = 1ms}).get().value(), SizeIs(250));
  std::this_thread::sleep_for(5ms);
  EXPECT_EQ(queue().reap_lane(kLaneX, 100).get().value(), 100);
  EXPECT_EQ(queue().reap_lane(kLaneX, 1000).get().value(), 150);
  EXPECT_EQ(queue().reap_lane(kLaneX).get().value(), 0);
  EXPECT_EQ(queue().lane_depth(kLaneX).get().value(), 250);
  EXPECT_TRUE(gactive(kLaneX).is_null());
  EXPECT_EQ(text(gactive(kLaneY)), "11500");
  EXPECT_EQ(broken_rule(), "");
}

/// CASES 18: workers killed between the claim and its answer must not use up a ceiling for good.
TEST_F(LanesServerTest, ClaimsWhoseAnswerNobodyTookGiveTheirSlotsBack) {
  raw("HSET", "emq:{q}:meta", "concurrency", "5");
  ASSERT_TRUE(queue().limit_lane(kLaneX, 5).get());
  fill(std::nullopt, 20);
  fill(kLaneX, 20);
  const auto connections = [&] {
    const std::string info = text(raw("INFO", "clients"));
    const std::string_view name = "connected_clients:";
    return std::stoi(info.substr(info.find(name) + name.size()));
  };
  const int own = connections();
  for (int killed = 0; killed < 200; ++killed) {
    auto victim = Client::open(server().url(), {.node_lease = NodeLease::never}).value();
    const Queue theirs = victim.queue("q");
    if (queue().check_concurrency().get())
      theirs.claim({.lease = 2ms}).detach();
    theirs.claim_lane_batch({.size = 2, .lease = 2ms}).detach();
    theirs.claim_lane({.lease = 2ms}).detach();
    victim.close();
    if (killed % 10 == 9) {
      std::this_thread::sleep_for(5ms);
      ASSERT_TRUE(queue().sweep_stalled({.max_stalled = 1000000, .limit = 1000}).get());
    }
    ASSERT_EQ(broken_rule(), "");
  }
  // What the victims have sent may still wait to be read.
  for (int look = 0; look < 1000 && connections() > own; ++look)
    std::this_thread::sleep_for(10ms);
  std::this_thread::sleep_for(5ms);
  ASSERT_TRUE(queue().sweep_stalled({.max_stalled = 1000000, .limit = 1000}).get());
  EXPECT_EQ(queue().counts().get().value().active, 0);
  EXPECT_TRUE(gactive(kLaneX).is_null());
  EXPECT_TRUE(queue().check_concurrency().get());
  EXPECT_THAT(queue().claim_lane_batch().get().value(), SizeIs(5));  // the full rate
}

/// CASES 19: random verbs of producers, workers that die, and operators; the rules hold after every one of them.
TEST_F(LanesServerTest, TheRulesHoldAfterEveryStepOfRandomHistories) {
  std::map<JobId, Token> held;
  for (const unsigned seed : {1U, 2U, 3U}) {
    std::mt19937 random(seed);
    const auto any = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const auto lane = [&] { return any(2) == 0 ? kLaneX : kLaneY; };
    const auto one_held = [&]() -> std::optional<Held> {
      if (held.empty())
        return std::nullopt;
      auto at = held.begin();
      std::advance(at, any(static_cast<int>(held.size())));
      const Held taken{at->first, at->second};
      if (any(4) != 0)  // else it is settled twice, by and by
        held.erase(at);
      return taken;
    };
    const auto keep = [&](const Result<std::vector<ClaimedJob>>& jobs) {
      for (const ClaimedJob& job : jobs.value())
        held[job.id] = job.token;
    };
    for (int step = 0; step < 1200; ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " step " + std::to_string(step));
      const Milliseconds lease = any(3) == 0 ? 1ms : 60000ms;
      switch (any(22)) {
        case 0:
        case 1: fill(lane(), 1 + any(6)); break;
        case 2: fill(std::nullopt, 1 + any(4)); break;
        case 3: (void)queue().enqueue_in("p", Milliseconds(any(5)), {.lane = lane()}).get(); break;
        case 4:
        case 5:
          keep(queue().claim_lane_batch({.size = static_cast<std::uint32_t>(1 + any(4)), .lease = lease}).get());
          break;
        case 6: keep(queue().claim_lane_weighted({.lease = lease}).get()); break;
        case 7: keep(queue().claim_batch({.size = 3, .lease = lease}).get()); break;
        case 8:
          if (const auto job = queue().claim_lane({.lease = lease}).get().value())
            held[job->id] = job->token;
          break;
        case 9:
        case 10:
          if (const auto job = one_held())
            (void)queue().complete(job->id, job->token).get();
          break;
        case 11:
          if (const auto job = one_held())
            (void)queue().retry(job->id, job->token, {.delay = Milliseconds(any(3)), .max_attempts = 2}).get();
          break;
        case 12:
          if (const auto job = one_held())
            (void)queue().delay(job->id, job->token, Milliseconds(any(3))).get();
          break;
        case 13:
          if (const auto job = one_held())
            (void)(any(2) == 0 ? queue().remove(job->id).get() : queue().reprocess(job->id).get());
          break;
        case 14: (void)queue().promote(50).get(); break;
        case 15:
          std::this_thread::sleep_for(1ms);
          (void)(any(2) == 0 ? queue().reap().get() : queue().reap_lane(lane(), 2).get());
          break;
        case 16: (void)queue().sweep_stalled({.max_stalled = 2, .limit = 3}).get(); break;
        case 17: (void)queue().limit_lane(lane(), static_cast<std::uint32_t>(1 + any(4))).get(); break;
        case 18: (void)(any(2) == 0 ? queue().pause_lane(lane()).get() : queue().resume_lane(lane()).get()); break;
        case 19:
          if (const auto job = one_held())
            (void)queue().reassign(job->id, lane()).get();
          break;
        case 20: (void)queue().weigh_lane(lane(), static_cast<std::uint32_t>(1 + any(3))).get(); break;
        case 21:
          if (any(10) == 0)
            (void)(any(2) == 0 ? queue().drain({.include_schedule = true}).get() : queue().drain_lane(lane()).get());
          break;
        default: break;
      }
      ASSERT_EQ(broken_rule(), "");
    }
    // Operators end it: jobs in flight and all.
    ASSERT_TRUE(queue().pause().get());
    for (int call = 0; queue().obliterate({.force = true, .budget = 7}).get().value() == Obliterated::more; ++call) {
      ASSERT_EQ(broken_rule(), "");
      ASSERT_LT(call, 10000);
    }
    EXPECT_THAT(raw("KEYS", "emq:{q}:*").items(), IsEmpty());
    held.clear();
  }
}

/// CASES 7: a rescue never overwrites a completion, whatever their order: 100,000 races between the holder's settle and
/// the sweeps.
TEST_F(LanesServerTest, ACompletionAndARescueRaceAndTheJobIsCompletedOnce) {
  constexpr int kRounds = 100;
  constexpr int kMostRounds = 4 * kRounds;  // where the sweeps are too slow to meet the settles
  constexpr int kJobs = 1000;
  auto other = Client::open(server().url(), {.node_lease = NodeLease::never}).value();
  std::atomic<bool> done{false};
  std::atomic<std::int64_t> rescued{0};
  std::thread rescuer([&, theirs = other.queue("q")] {
    while (!done.load()) {
      const auto swept = theirs.sweep_stalled({.max_stalled = 2, .limit = 3}).get();
      rescued += static_cast<std::int64_t>(swept.value().recovered.size() + swept.value().dead.size());
      rescued += theirs.reap_lane(kLaneX, 3).get().value();
    }
  });
  std::int64_t completed = 0;
  int rounds = 0;
  for (; rounds < kRounds || (rescued.load() <= 100 && rounds < kMostRounds); ++rounds) {
    const std::optional<LaneId> lane = rounds % 2 == 0 ? std::optional(kLaneX) : std::nullopt;
    fill(lane, kJobs);
    const auto jobs = lane ? queue().claim_lane_batch({.lease = 1ms}).get().value()
                           : queue().claim_batch({.lease = 1ms}).get().value();
    ASSERT_THAT(jobs, SizeIs(kJobs));
    std::vector<Reply<void>> replies;
    for (const ClaimedJob& job : jobs)
      replies.push_back(queue().complete(job.id, job.token));
    for (Reply<void>& reply : replies)
      completed += reply.get().has_value();
  }
  done = true;
  rescuer.join();
  EXPECT_EQ(completed, rounds * kJobs);
  EXPECT_GT(rescued.load(), 100);  // they did meet
  const QueueCounts counts = queue().counts().get().value();
  EXPECT_EQ(counts.completed, rounds * kJobs);
  EXPECT_EQ(counts.pending + counts.active + counts.scheduled + counts.dead, 0);
  EXPECT_EQ(queue().lane_depth(kLaneX).get().value(), 0);
  EXPECT_EQ(broken_rule(), "");
}

/// A node of a cluster that owns all slots: it refuses a script that touches keys of two slots.
class ClusterNodeServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "echomq-cluster-node-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    const std::string nodes = (folder_ / "nodes.conf").string();
    std::ofstream(nodes) << std::string(40, 'a') << " :0@0 myself,master - 0 0 1 connected 0-16383\n"
                         << "vars currentEpoch 1 lastVoteEpoch 0\n";
    // With a port of its own that of the cluster's bus, 10000 above, is free too.
    auto started = echomq::testing::PrivateServer::start(
        {.listen = echomq::testing::Listen::both,
         .arguments = {"--cluster-enabled", "yes", "--cluster-config-file", nodes}});
    ASSERT_TRUE(started) << started.error().message();
    server_.emplace(*std::move(started));
    const auto until = std::chrono::steady_clock::now() + 20s;
    for (;;) {  // a node that starts with slots waits two seconds before it serves
      auto opened = Client::open(server_->url());
      if (opened) {
        client_.emplace(*std::move(opened));
        return;
      }
      ASSERT_LT(std::chrono::steady_clock::now(), until) << opened.error().message();
      std::this_thread::sleep_for(100ms);
    }
  }
  void TearDown() override {
    client_.reset();
    server_.reset();
    if (!folder_.empty())
      std::filesystem::remove_all(folder_);
  }

  std::filesystem::path folder_;
  std::optional<echomq::testing::PrivateServer> server_;
  std::optional<Client> client_;
};

/// CASES 26: plain queue names are tagged, so every verb stays in one slot.
TEST_F(ClusterNodeServerTest, EveryVerbOfLanesBatchesRepeatsAndBulkDeletionStaysInOneSlot) {
  const Queue queue = client_->queue("plain");
  const auto fill = [&](std::optional<LaneId> lane) {
    const std::vector<NewJob> jobs(3, NewJob{.payload = "p"});
    ASSERT_TRUE(queue.enqueue_many(jobs, {.lane = lane}).get());
  };
  fill(std::nullopt);
  fill(kLaneX);
  ASSERT_TRUE(queue.weigh_lane(kLaneX, 2).get());
  ASSERT_TRUE(queue.limit_lane(kLaneX, 5).get());
  EXPECT_THAT(queue.claim_batch({.size = 2, .lease = 1ms}).get().value(), SizeIs(2));
  EXPECT_THAT(queue.claim_lane_weighted({.lease = 1ms}).get().value(), SizeIs(2));
  EXPECT_THAT(queue.claim_lane_batch({.lease = 1ms}).get().value(), SizeIs(1));
  std::this_thread::sleep_for(5ms);
  EXPECT_EQ(queue.reap_lane(kLaneX).get().value(), 3);
  EXPECT_EQ(queue.reap().get().value(), 2);
  EXPECT_EQ(queue.drain_lane(kLaneX).get().value(), 3);
  EXPECT_EQ(queue.drain({.include_schedule = true}).get().value(), 3);
  EXPECT_EQ(queue.register_repeat("r", {.every = 1h, .payload = "p"}).get().value(), Registered::registered);
  EXPECT_EQ(queue.pump_sweep().get().value().fired, 1);
  EXPECT_EQ(queue.advance_repeat("r", 1ms).get().value(), RepeatFound::found);
  EXPECT_EQ(queue.cancel_repeat("r").get().value(), RepeatFound::found);
  fill(kLaneY);
  ASSERT_TRUE(queue.pause().get());
  EXPECT_EQ(queue.obliterate({.force = true}).get().value(), Obliterated::done);
  const Value keys = client_->command("KEYS", "*plain*").get().value();
  EXPECT_THAT(keys.items(), IsEmpty());
}

}  // namespace
}  // namespace echomq::test
