// Random histories of the scripts against a model.
//
// Two queues, six jobs and three lanes each, few workers: every verb of the protocol in any order, with tokens that are right, old
// or wrong, with holders that forget, with time that passes, and with what peers leave behind. After each step every reply and
// every key must be the model's, and the laws of invariants.hpp must hold of the keys alone.
//
// A failure prints the shortest history found and the seed that draws it:
//
//   ECHOMQ_MODEL_SEED=n    begin with this seed instead of the clock
//   ECHOMQ_MODEL_STEPS=n   play that many steps
//   ECHOMQ_MODEL_SCRIPTS=d test the scripts below folder d (`canonical/`, `extension/`) instead of `protocol/lua`
//
// To play one failure again: its seed, and ECHOMQ_MODEL_STEPS=1.
#include <gtest/gtest.h>

#include <chrono>
#include <iostream>

#include "model/runner.hpp"

namespace echomq::model {
namespace {

void expect_agreement(const Plan& plan) {
  Server server;
  Count count;
  const auto begin = std::chrono::steady_clock::now();
  const auto wrong = play_many(server, plan, count);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::cout << count.steps << " steps in " << count.histories << " histories, " << took.count() << " s\n";
  EXPECT_FALSE(wrong.has_value()) << *wrong;
}

TEST(ScriptsModelFast, TenThousandStepsAgree) { expect_agreement({.steps = 10'000}); }

TEST(ScriptsModel, AHundredThousandStepsAgree) { expect_agreement({.steps = 100'000}); }

TEST(LongRunScriptsModel, ThreeMillionStepsAgree) { expect_agreement({.steps = 3'000'000, .length = 250}); }

}  // namespace
}  // namespace echomq::model
