// Random mixes of what happens to a queue, on two servers: one is driven by the canonical scripts one by one, the other by the calls that do
// several things in one or say more. What a mix does hangs on its seed alone.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "queue/exchange.hpp"
#include "support/exchange_side.hpp"

namespace echomq::test {

struct HeldJob {
  std::string id;
  std::uint64_t token = 0;
};

/// The same history on two servers: `one` is driven by the canonical scripts one by one, `all` by `exchange`.
class Twins {
 public:
  explicit Twins(unsigned seed) : random_(seed) {}

  /// What the two sides differ in, after the steps of this round; empty when in nothing.
  [[nodiscard]] std::string compare();
  std::map<std::string, int> seen;  ///< what has happened, by name
  std::size_t history = 0;          ///< of all steps: the same for the same seed

 protected:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  template <typename T>
  const T& any(const std::vector<T>& list) {
    return list[static_cast<std::size_t>(below(static_cast<int>(list.size())))];
  }
  std::string fresh();
  std::string lane() { return std::string("PRT0000000000") + static_cast<char>('A' + below(5)); }
  void both(const std::vector<std::string>& command);
  void both(std::string_view name, const std::vector<std::string>& keys, const std::vector<std::string>& arguments);
  void admit();
  /// A parent with a few children in this queue, or a child whose parent is in another one, or a parent that has one.
  void flow();
  /// What happens beside workers: operators, lost leases, members and rows that do not fit.
  void disturb();
  std::optional<std::string> one_field(const std::string& id, const std::string& name);
  std::int64_t one_number(const std::string& key, const std::string& name);
  /// What the row's `keep` asks for once the job has ended.
  void keep_one(const std::string& id, const std::optional<std::string>& keep, const std::string& ended);
  /// The extensions take the mark of `cancel` off whom they end as dead; the canonical verbs do not know it.
  void end_mark(const std::string& id) { one_.raw({"HDEL", kBase + "job:" + id, "cancel"}); }
  queue::TakeRequest claim();
  /// All settlements and the request in one call on `all`; on `one` the settlements have been made, with those verdicts and deaths of
  /// parents, and what the request claims is claimed now.
  void exchange_both(const std::vector<queue::Settlement>& settlements, const std::vector<queue::Settled>& verdicts,
                     const std::vector<std::string>& fallen, const std::optional<queue::TakeRequest>& request);

  std::mt19937 random_;
  bool ceiling_ = false;  ///< meta.concurrency is set
  Side one_;
  Side all_;
  std::vector<HeldJob> held_;
  std::vector<std::string> parents_;  ///< in this queue
  std::vector<std::string> steps_;    ///< of this round

 private:
  /// How some jobs are run, as their rows say it.
  void own_fields();
  /// How many of `most` the gates of the queue let through.
  std::size_t gates(std::size_t most);
  /// Takes what a claim would not give off the head of the flat set: members without a row or at home elsewhere, and jobs
  /// past their time, which die. The head is a job to be given then, or there is none.
  void clear_head();
  /// The claims of a request, by `bclaim` and `gwclaim`, as far as the gates let them.
  std::vector<HeldJob> claim_one(const queue::TakeRequest& request);

  int next_ = 1;
};

/// Plays mixes of so many rounds, one a seed, and compares the sides after each round: `seeds` of them, and more, up to four times as many,
/// until everything in `wanted` was seen so often. A kind that is still too rare then is one that the mix does not make any more.
/// How often each was seen, and the history, are properties of the test in its XML.
template <typename Mix>
void play_mixes(unsigned first_seed, unsigned seeds, int rounds, const std::map<std::string, int>& wanted) {
  std::map<std::string, int> seen;
  const auto lacking = [&] {
    std::string names;
    for (const auto& [name, count] : wanted) {
      if (seen[name] < count)
        names += " " + name + " " + std::to_string(seen[name]) + " of " + std::to_string(count) + ";";
    }
    return names;
  };
  unsigned played = 0;
  std::size_t history = 0;
  for (; played < seeds || (played < 4 * seeds && !lacking().empty()); ++played) {
    const unsigned seed = first_seed + played;
    Mix mix(seed);
    for (int round = 0; round < rounds; ++round) {
      mix.round();
      const std::string differs = mix.compare();
      ASSERT_EQ(differs, "") << "seed " << seed << " round " << round;
      ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << " round " << round;
    }
    for (const auto& [name, count] : mix.seen)
      seen[name] += count;
    history = 31 * history + mix.history;
  }
  for (const auto& [name, count] : wanted)
    ::testing::Test::RecordProperty(name, seen[name]);
  ::testing::Test::RecordProperty("seeds", std::to_string(played));
  ::testing::Test::RecordProperty("history", std::to_string(history));
  EXPECT_EQ(lacking(), "");
}

}  // namespace echomq::test
