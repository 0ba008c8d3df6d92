// The model test finds what it is for: each test puts one defect into a copy of a script and plays histories until server and model
// part, and fails when they do not within the budget, or when the text to be replaced is no longer in the script.
#include <gtest/gtest.h>

#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/runner.hpp"

namespace echomq::model {
namespace {

constexpr std::uint64_t kBudget = 2'000'000;  // steps; the rarest takes 70,000 on average

struct Seeded {
  const char* name;
  Fault fault;
};
void PrintTo(const Seeded& seeded, std::ostream* out) { *out << seeded.name; }

const std::vector<Seeded>& seeded_faults() {
  static const std::vector<Seeded> faults{
      // gactive not lowered
      {"CompleteKeepsTheSlot", {"complete", "g, -freed)", "g, 0)"}},
      {"RemoveKeepsTheSlot", {"remove_job", "g, -freed)", "g, 0)"}},
      {"ReapKeepsTheSlot", {"reap", "g, -freed)", "g, 0)"}},
      // late settle not counted
      {"LateCompletionIsNoCompletion",
       {"complete", "redis.pcall('HINCRBY', p .. 'metrics:completed', 'count', 1)",
        "if active then redis.pcall('HINCRBY', p .. 'metrics:completed', 'count', 1) end"}},
      {"LateCompletionIsNotToldToTheParent",
       {"complete", "if parent and (withdrawn or was_dead) then", "if parent and (active or was_dead) then"}},
      // ghost claim
      {"ClaimHandsOutAGhost", {"claim", "if exists and not misplaced then", "if not misplaced then"}},
      {"LaneClaimHandsOutAGhost", {"gclaim", "if exists and not misplaced then", "if not misplaced then"}},
      // double count of a dead child
      {"DeathIsCountedAgainByEachRetry",
       {"retry", "if not withdrawn and (state == 'scheduled' or state == 'dead') then return state end", ""}},
      {"DeadChildThatDiesAgainIsCountedTwice",
       {"retry", "':unsuccessful', id, reason) == 1", "':unsuccessful', id, reason) >= 0"}},
      {"DeadChildThatComesBackIsCountedTwice", {"complete", " and not counted then", " then"}},
      // lane missing from the ring
      {"CompleteForgetsTheRing",
       {"complete", "redis.call('RPUSH', p .. 'ring', g)", "redis.call('LLEN', p .. 'ring')"}},
      {"PromoteForgetsTheRing", {"promote", "redis.call('RPUSH', p .. 'ring', g)", "redis.call('LLEN', p .. 'ring')"}},
      {"GlimitForgetsTheRing", {"glimit", "redis.call('RPUSH', ring, g)", "redis.call('LLEN', ring)"}},
      // attempts lowered
      {"HandBackTakesTheAttemptBack",
       {"hand_back", "redis.call('HSET', row, 'state', 'pending',",
        "redis.call('HSET', row, 'attempts', fields[1] - 1, 'state', 'pending',"}},
      {"ReprocessBeginsAtNought",
       {"reprocess", "redis.call('HSET', row, 'state', 'pending')",
        "redis.call('HSET', row, 'attempts', '0', 'state', 'pending')"}},
      // in two places
      {"DelayLeavesALateJobWhereItWaits",
       {"delay", "if not withdrawn then withdrawn = redis.call('ZREM', p .. 'pending', id) == 1 end", ""}},
      // a run fired twice, or for ever
      {"FireDoesNotLookAtTheRun",
       {"repeat_fire", "if run and tonumber(run) == tonumber(ARGV[i + 1]) then", "if run then"}},
      {"FireLeavesTheRunAsItWas", {"repeat_fire", "redis.call('ZADD', registry, now + math.floor(every), name)", ""}},
      {"FireKeepsWhatCannotRun", {"repeat_fire", "redis.call('ZREM', registry, name)", ""}},
      {"CancelLeavesTheRecord", {"repeat_cancel", "redis.call('DEL', KEYS[2])", ""}},
      {"ObliterateForgetsTheRecords",
       {"obliterate", "for _, name in ipairs(names) do redis.call('DEL', p .. 'repeat:' .. name) end", ""}},
      // the ceiling of jobs in flight
      {"TheCeilingIsPassedByOne",
       {"is_maxed", "redis.call('ZCARD', KEYS[2]) >= ceiling", "redis.call('ZCARD', KEYS[2]) > ceiling"}},
      {"AWorkerIsSentBackToAFullQueue", {"park", "redis.call('ZCARD', active) >= ceiling", "false"}},
      // markers
      {"ABeatBelievesInALostLease",
       {"lock_beat", "fields[1] == token and redis.call('ZSCORE', active, id)", "fields[1] == token"}},
      {"AnothersMarkerIsTakenOff", {"lock_clear", "redis.call('GET', row .. ':lock') == token", "true"}},
      {"AMarkerIsPutOnAJobThatIsGone", {"lock_mark", "if redis.call('EXISTS', row) == 1 then", "if true then"}},
  };
  return faults;
}

class ModelFaults : public ::testing::TestWithParam<Seeded> {};

TEST_P(ModelFaults, IsFound) {
  const Seeded& seeded = GetParam();
  Server server({seeded.fault});
  Count count;
  const auto found = play_many(server, {.steps = kBudget, .shrink = false}, count);
  ASSERT_TRUE(found.has_value()) << count.steps << " steps agreed with the faulty script";
  std::cout << "found after " << count.steps << " steps in " << count.histories << " histories\n";
}

INSTANTIATE_TEST_SUITE_P(Scripts, ModelFaults, ::testing::ValuesIn(seeded_faults()),
                         [](const auto& seeded) { return std::string(seeded.param.name); });

TEST(ModelFaultText, MustBeInTheScript) {
  EXPECT_THROW(Server({{"claim", "no such text", ""}}), std::runtime_error);
  EXPECT_THROW(Server({{"no such script", "redis", ""}}), std::runtime_error);
}

}  // namespace
}  // namespace echomq::model
