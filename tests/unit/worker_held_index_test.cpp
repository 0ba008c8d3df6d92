// The index of the jobs in hand.
#include "worker/held_index.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

using echomq::ClaimedJob;
using echomq::JobId;
using echomq::Queue;
using echomq::Token;
using echomq::worker::HeldIndex;
using echomq::worker::JobState;

std::shared_ptr<JobState> job(std::uint64_t value, std::uint64_t token = 1) {
  const auto digits = echomq::base62_encode(value).value();
  ClaimedJob claimed;
  claimed.id = JobId::parse("JOB" + std::string(digits.begin(), digits.end())).value();
  claimed.token = Token(token);
  return std::make_shared<JobState>(Queue(nullptr), std::move(claimed));
}

std::multiset<std::uint64_t> tokens_of(const HeldIndex& index, const JobId& id) {
  std::multiset<std::uint64_t> tokens;
  index.each_of(id, [&](const JobState& found) { tokens.insert(found.token.value()); });
  return tokens;
}

TEST(HeldIndex, FindsEachOfManyUntilItIsTakenOut) {
  constexpr std::size_t kJobs = 5000;
  HeldIndex index;
  std::vector<std::shared_ptr<JobState>> jobs;
  EXPECT_TRUE(tokens_of(index, job(1)->id).empty());
  for (std::size_t i = 0; i < kJobs; ++i) {
    jobs.push_back(job(1000 + i, i + 1));
    index.add(*jobs.back());
  }
  EXPECT_EQ(index.size(), kJobs);
  for (std::size_t i = 0; i < kJobs; ++i)
    ASSERT_EQ(tokens_of(index, jobs[i]->id), (std::multiset<std::uint64_t>{i + 1}));
  for (std::size_t i = 0; i < kJobs; i += 2)
    index.remove(*jobs[i]);
  EXPECT_EQ(index.size(), kJobs / 2);
  for (std::size_t i = 0; i < kJobs; ++i)
    ASSERT_EQ(tokens_of(index, jobs[i]->id).size(), i % 2);
  for (std::size_t i = 0; i < kJobs; i += 2)
    index.add(*jobs[i]);
  for (std::size_t i = 0; i < kJobs; ++i)
    ASSERT_EQ(tokens_of(index, jobs[i]->id).size(), 1U);
}

TEST(HeldIndex, RunsOfOneJobStandBesideEachOther) {
  HeldIndex index;
  const auto first = job(7, 1), second = job(7, 2), other = job(8, 1);
  for (const auto& one : {first, second, other})
    index.add(*one);
  EXPECT_EQ(tokens_of(index, first->id), (std::multiset<std::uint64_t>{1, 2}));
  index.remove(*first);
  EXPECT_EQ(tokens_of(index, first->id), (std::multiset<std::uint64_t>{2}));
  index.remove(*second);
  EXPECT_TRUE(tokens_of(index, first->id).empty());
  EXPECT_EQ(tokens_of(index, other->id), (std::multiset<std::uint64_t>{1}));
  index.clear();
  EXPECT_EQ(index.size(), 0U);
  EXPECT_TRUE(tokens_of(index, other->id).empty());
}

}  // namespace
