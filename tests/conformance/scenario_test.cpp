// Every conformance scenario, canonical and own, on every kind of server.
#include "conformance/scenario.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <tuple>

#include "conformance/database.hpp"
#include "conformance/engines.hpp"
#include "conformance/values.hpp"

namespace echomq::conformance {

/// In the words of a failed test.
void PrintTo(const ScenarioSource& source, std::ostream* out) { *out << source.path; }

namespace {

class ConformanceScenario : public ::testing::TestWithParam<std::tuple<Kind, ScenarioSource>> {};

TEST_P(ConformanceScenario, Holds) {
  const auto& [kind, source] = GetParam();
  const json::value scenario = json::parse(source.text);
  EXPECT_EQ(scenario.as_object().contains("number"), !source.own());
  std::string why;
  const std::string url = url_of(kind, why);
  if (url.empty())
    GTEST_SKIP() << why;
  const RunOptions options{.base = "conf", .private_server = true};
  if (const auto reason = obstacle(url, scenario, options))
    GTEST_SKIP() << source.path << ": " << *reason;
  EXPECT_EQ(run_scenario(url, scenario, options), "") << text_of(scenario.at("about"));

  // Whatever a scenario made is gone, but for what belongs to the server: its version, its node ids.
  const Client client = connect(url, {.name = "left-overs", .node_lease = NodeLease::never});
  EXPECT_THAT(keys_of(client, "e[mc][qc]:{conf.*"), ::testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, ConformanceScenario,
                         ::testing::Combine(::testing::ValuesIn(kKinds),
                                            ::testing::ValuesIn(embedded_scenarios().begin(),
                                                                embedded_scenarios().end())),
                         [](const auto& instance) {
                           const std::string path(std::get<1>(instance.param).path);
                           std::string name =
                               to_string(std::get<0>(instance.param)) + "_" + path.substr(0, path.find('.'));
                           std::replace_if(name.begin(), name.end(), [](char c) { return c == '-' || c == '/'; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace echomq::conformance
