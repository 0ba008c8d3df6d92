// Every conformance scenario on every kind of server.
#include "conformance/scenario.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "conformance/engines.hpp"
#include "conformance/verbs.hpp"

namespace echomq::conformance {
namespace {

using testing::Engine;

class ConformanceScenario : public ::testing::TestWithParam<std::tuple<Engine, std::string>> {};

TEST_P(ConformanceScenario, Holds) {
  const auto& [engine, file] = GetParam();
  const json::value scenario = read_json(std::string(ECHOMQ_PROTOCOL_DIR) + "/conformance/" + file);
  for (const std::string& call : calls_of(scenario)) {
    if (is_missing(call))
      GTEST_SKIP() << file << " needs the verb " << call;
  }
  std::string why;
  testing::PrivateServer* server = server_of(engine, why);
  if (server == nullptr)
    GTEST_SKIP() << why;
  if (const auto need = unmet_need(server->url(), scenario))
    GTEST_SKIP() << file << " needs " << *need;
  EXPECT_EQ(run_scenario(server->url(), scenario), "") << text_of(scenario.at("about"));
}

INSTANTIATE_TEST_SUITE_P(All, ConformanceScenario,
                         ::testing::Combine(::testing::Values(Engine::valkey, Engine::redis),
                                            ::testing::ValuesIn(scenario_files())),
                         [](const auto& instance) {
                           const std::string& file = std::get<1>(instance.param);
                           std::string name =
                               to_string(std::get<0>(instance.param)) + "_" + file.substr(0, file.find('.'));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace echomq::conformance
