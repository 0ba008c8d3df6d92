// Every golden history of the areas that this library speaks, on every kind of server: replayed, or skipped by the name
// of the verb that is not there yet.
#include "conformance/golden.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "conformance/engines.hpp"

namespace echomq::conformance {
namespace {

const std::vector<std::string> kAreas = {"admin", "bus", "cache", "flows", "identity", "lanes", "queue"};

class GoldenHistory : public ::testing::TestWithParam<std::tuple<Kind, std::string>> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GoldenHistory);

TEST_P(GoldenHistory, LeavesTheSameStateAndVerdicts) {
  const auto& [kind, name] = GetParam();
  const json::value history = read_json(golden_folder() + "/" + name + ".json");
  if (const auto verb = missing_verb(history))
    GTEST_SKIP() << name << " needs the verb " << *verb;
  std::string why;
  const std::string url = url_of(kind, why);
  if (url.empty())
    GTEST_SKIP() << why;
  if (const auto need = unmet_need(url, history))
    GTEST_SKIP() << name << " needs a " << *need;
  for (const std::string& difference : replay(url, history))
    ADD_FAILURE() << difference;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenHistory,
                         ::testing::Combine(::testing::ValuesIn(kKinds), ::testing::ValuesIn(golden_histories(kAreas))),
                         [](const auto& instance) {
                           std::string name =
                               to_string(std::get<0>(instance.param)) + "_" + std::get<1>(instance.param);
                           std::replace_if(name.begin(), name.end(), [](char c) { return c == '/' || c == '-'; }, '_');
                           return name;
                         });

TEST(GoldenFolder, IsThere) {
  if (golden_folder().empty()) {
    GTEST_SKIP() << "NO GOLDEN HISTORIES WERE REPLAYED: set ECHOMQ_GOLDEN_DIR to their folder";
  }
  EXPECT_GE(golden_histories(kAreas).size(), 150U) << golden_folder();
}

}  // namespace
}  // namespace echomq::conformance
