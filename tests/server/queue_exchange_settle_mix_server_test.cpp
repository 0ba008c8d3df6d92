// settle, take and settle_and_take through `exchange`: whole databases after random mixes beside those that the canonical verbs leave one by
// one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/exchange_twins.hpp"

namespace echomq::test {
namespace {

using namespace echomq::queue;
using ::testing::HasSubstr;

class SettleMix : public Twins {
 public:
  using Twins::Twins;

  void round() {
    steps_.clear();
    const int admissions = below(12);
    for (int i = 0; i < admissions; ++i)
      admit();
    if (below(3) == 0)
      flow();
    for (int i = below(3); i > 0; --i)
      disturb();
    if (!ceiling_ && below(2) == 0) {  // workers sleep, and few tokens are left: then it counts which wake comes first
      both({"DEL", kBase + "wake"});
      for (int i = below(6); i > 0; --i)
        both({"ZADD", kBase + "parked", "9000000000000", "w" + std::to_string(i)});
    }
    const bool settle = below(5) != 0;
    const bool take = below(5) != 0;
    std::vector<Settlement> settlements;
    if (settle)
      settlements = choose();
    std::optional<TakeRequest> request;
    if (take)
      request = claim();
    if (settlements.empty() && !request)
      return;
    fallen_.clear();
    std::vector<Settled> verdicts;
    for (const Settlement& one : settlements) {
      verdicts.push_back(settle_one(one));
      steps_.push_back("settle " + std::string(one.id.text()) + " token " + one.token.text() + " kind " +
                       std::to_string(static_cast<int>(one.kind)) + ": " +
                       std::to_string(static_cast<int>(verdicts.back())));
      seen["verdict " + std::to_string(static_cast<int>(verdicts.back()))]++;
    }
    exchange_both(settlements, verdicts, fallen_, request);
  }

 private:
  std::vector<Settlement> choose() {
    std::vector<Settlement> out;
    std::shuffle(held_.begin(), held_.end(), random_);
    std::size_t count = held_.empty() ? 0 : static_cast<std::size_t>(below(static_cast<int>(held_.size()) + 1));
    texts_.clear();
    texts_.reserve(3 * held_.size() + 8);
    std::vector<HeldJob> chosen(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(count));
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(count));
    // Now and then: a settlement twice in one call, one with a wrong token, one of a job that never was.
    if (!chosen.empty() && below(3) == 0) {
      const HeldJob twice = any(chosen);
      chosen.insert(chosen.begin() + below(static_cast<int>(chosen.size())), twice);
    }
    if (!chosen.empty() && below(3) == 0)
      chosen.push_back({any(chosen).id, any(chosen).token + 1 - static_cast<std::uint64_t>(2 * below(2))});
    if (!past_.empty() && below(2) == 0)
      chosen.push_back(any(past_));
    if (below(6) == 0)
      chosen.push_back({fresh(), 1});
    for (const HeldJob& job : chosen) {
      past_.push_back(job);
      Settlement one{.id = JobId(*BrandedId::parse(job.id)), .token = Token(job.token)};
      one.kind = any<SettleKind>({SettleKind::done, SettleKind::done, SettleKind::retry, SettleKind::dead,
                                  SettleKind::delay, SettleKind::hand_back});
      if (one.kind != SettleKind::done || below(2) == 0)
        one.text = texts_.emplace_back("text of " + job.id);
      // Times that no two settlements share, so that which is due first does not hang on the milliseconds of a run.
      one.wait = Milliseconds(1'000'000LL * (1000 + (7919LL * next_wait_++) % 100003));
      one.max_attempts = static_cast<std::uint32_t>(1 + below(3));
      out.push_back(one);
    }
    if (past_.size() > 40)
      past_.erase(past_.begin(), past_.begin() + 20);
    return out;
  }
  /// The parent of this queue that lives and would die of a child.
  std::optional<std::string> one_living_parent(const std::string& child) {
    const std::optional<std::string> parent = one_field(child, "parent");
    const std::string queue = one_field(child, "parent_queue").value_or("");
    if (!parent || (!queue.empty() && queue != "q") || one_field(*parent, "state").value_or("dead") == "dead")
      return std::nullopt;
    return parent;
  }
  /// One settlement by its own script: the verdict.
  Settled settle_one(const Settlement& s) {
    const std::string id(s.id.text());
    const std::optional<std::string> keep = one_field(id, "keep");
    const std::optional<std::string> parent = one_living_parent(id);
    const std::int64_t failed = one_number("metrics:failed", "count");
    const Settled verdict = settle_by_verb(s);
    if (parent && one_field(*parent, "state") == "dead") {
      end_mark(*parent);
      fallen_.push_back(*parent);
      seen["fallen by a settle"]++;
    }
    if (verdict == Settled::completed)
      keep_one(id, keep, "completed" + std::string(1, '\0') + std::string(s.text.value_or(s.id.text())));
    if (verdict == Settled::dead && one_number("metrics:failed", "count") > failed) {
      keep_one(id, keep, "dead" + std::string(1, '\0') + std::string(s.text.value_or("")));
      end_mark(id);
    }
    return verdict;
  }
  Settled settle_by_verb(const Settlement& s) {
    const std::string id(s.id.text());
    const std::string token = s.token.text();
    const std::string row = "job:" + id;
    const std::string text(s.text.value_or(""));
    const std::string wait = std::to_string(s.wait.count());
    Value reply;
    switch (s.kind) {
      case SettleKind::done: {
        std::vector<std::string> arguments = {id, token, kBase};
        if (s.text)
          arguments.insert(arguments.end(), {"", text});
        reply = one_.call("complete", {"active", row}, arguments);
        break;
      }
      case SettleKind::retry: {
        const std::optional<std::string> own = one_field(id, "max_attempts");
        if (own)
          seen["own maximum"]++;
        reply = one_.call("retry", {"active", "schedule", "dead", row},
                          {id, token, wait, own.value_or(std::to_string(s.max_attempts)), text, kBase});
        break;
      }
      case SettleKind::dead:
        reply = one_.call("retry", {"active", "schedule", "dead", row}, {id, token, wait, "-1000000", text, kBase});
        break;
      case SettleKind::delay:
        reply = one_.call("delay", {row, "active", "schedule"}, {id, token, "in", wait, "count"});
        break;
      case SettleKind::hand_back: reply = one_.call("hand_back", {"active", row}, {id, token, kBase}); break;
    }
    if (!one_.error().empty()) {
      EXPECT_THAT(one_.error(), HasSubstr("EMQSTALE"));
      return one_.error().find("gone") != std::string::npos ? Settled::gone : Settled::stale;
    }
    if (reply.as_text() == "scheduled")
      return Settled::scheduled;
    if (reply.as_text() == "dead")
      return Settled::dead;
    if (reply.as_integer() == 0)
      return Settled::gone;
    return s.kind == SettleKind::done    ? Settled::completed
           : s.kind == SettleKind::delay ? Settled::delayed
                                         : Settled::handed_back;
  }

  std::vector<HeldJob> past_;
  std::vector<std::string> texts_;
  std::vector<std::string> fallen_;  // parents that died of the settlements of this round
  std::int64_t next_wait_ = 1;
};

TEST(ExchangeServerTest, LeavesTheDatabaseThatTheVerbsLeaveOneByOne) {
  std::map<std::string, int> wanted = {{"fallen by a settle", 3}};
  for (const char* name :
       {"flow",      "reap",      "sweep",     "lane",      "flat",      "child",       "parent",    "spared",
        "verdict 0", "verdict 1", "verdict 2", "verdict 3", "verdict 4", "verdict 5",   "verdict 6", "paused",
        "ceiling",   "window",    "charged",   "expired",   "kept",      "own maximum", "cancelled"})
    wanted[name] = 10;
  play_mixes<SettleMix>(1, 13, 80, wanted);
}

}  // namespace
}  // namespace echomq::test
