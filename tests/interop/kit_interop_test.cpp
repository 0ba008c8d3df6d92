// The second speaker proves itself: the conformance kit on each kind of server, and the vectors.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "conformance/values.hpp"
#include "echomq/testing/private_server.hpp"
#include "interop/node_process.hpp"

namespace echomq::interop {
namespace {

using namespace std::chrono_literals;
using testing::Engine;

struct Outcome {
  int exit_code = -1;
  std::vector<std::string> lines;
  [[nodiscard]] std::string text() const {
    std::string all;
    for (const std::string& line : lines)
      all += line + "\n";
    return all;
  }
};

Outcome run_node(const std::string& program, std::vector<std::string> arguments) {
  NodeProcess process(program, std::move(arguments));
  Outcome outcome;
  while (auto line = process.read_line(150s))
    outcome.lines.push_back(*std::move(line));
  outcome.exit_code = process.finish(10s);
  return outcome;
}

testing::PrivateServer server_of(Engine engine) {
  auto started = testing::PrivateServer::start({.engine = engine, .listen = testing::Listen::unix_socket});
  if (!started)
    throw std::runtime_error(started.error().message());
  return *std::move(started);
}

/// How many scenarios a folder of protocol/ holds whose names are wanted.
std::ptrdiff_t files(const std::string& folder, bool (*wanted)(const std::string&)) {
  std::error_code none;
  const std::filesystem::directory_iterator all(std::string(ECHOMQ_PROTOCOL_DIR) + "/" + folder, none);
  return std::count_if(begin(all), end(all), [&](const auto& entry) {
    return entry.path().extension() == ".json" && wanted(entry.path().filename().string());
  });
}

class NodeKit : public ::testing::TestWithParam<Engine> {};

TEST_P(NodeKit, EveryScenarioHolds) {
  const testing::PrivateServer server = server_of(GetParam());
  const Outcome outcome = run_node("kit.js", {"--private", "--url", server.url()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text();
  // Two may be skipped: those that need hash-field TTL, which neither server has.
  const auto canonical = files(
      "conformance", [](const std::string& file) { return !file.starts_with("58-") && !file.starts_with("59-"); });
  const auto own = files("conformance/own", [](const std::string&) { return true; });
  EXPECT_GT(canonical, 40);
  const std::string sums =
      "CONFORMANCE " + std::to_string(canonical) + "/79\nOWN " + std::to_string(own) + "/" + std::to_string(own) + "\n";
  EXPECT_NE(outcome.text().find(sums), std::string::npos) << sums << "expected of\n" << outcome.text();
}

INSTANTIATE_TEST_SUITE_P(All, NodeKit, ::testing::Values(Engine::valkey, Engine::redis), [](const auto& instance) {
  return std::string(instance.param == Engine::valkey ? "valkey" : "redis");
});

TEST(NodeVectors, SpeakerAgreesWithAllOfThem) {
  const Outcome outcome = run_node("vectors.js", {});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text();
  EXPECT_NE(outcome.text().find("VECTORS "), std::string::npos) << outcome.text();
}

/// A copy of the protocol folder in which something is wrong.
class SpoiltProtocol {
 public:
  SpoiltProtocol() {
    char pattern[] = "/tmp/echomq-protocol-XXXXXX";
    if (::mkdtemp(pattern) == nullptr)
      throw std::runtime_error("mkdtemp");
    folder_ = pattern;
    std::filesystem::copy(ECHOMQ_PROTOCOL_DIR, folder_, std::filesystem::copy_options::recursive);
  }
  SpoiltProtocol(const SpoiltProtocol&) = delete;
  SpoiltProtocol& operator=(const SpoiltProtocol&) = delete;
  ~SpoiltProtocol() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  [[nodiscard]] const std::string& folder() const { return folder_; }
  void remove(const std::string& path) { ASSERT_TRUE(std::filesystem::remove(folder_ + "/" + path)) << path; }
  /// Replaces the first occurrence of a text in a file.
  void replace(const std::string& path, const std::string& from, const std::string& to) {
    std::string text = conformance::read_file(folder_ + "/" + path);
    const auto at = text.find(from);
    ASSERT_NE(at, std::string::npos) << path << " holds no " << from;
    text.replace(at, from.size(), to);
    std::ofstream(folder_ + "/" + path, std::ios::binary) << text;
  }

 private:
  std::string folder_;
};

TEST(NodeKitFails, WhenAScenarioOrAScriptIsWrong) {
  const testing::PrivateServer server = server_of(Engine::valkey);
  SpoiltProtocol spoilt;
  spoilt.replace("conformance/09-retry.json", "\"boom\"}, \"result\"", "\"bang\"}, \"result\"");
  spoilt.replace("conformance/18-resubscribe.json", "\"text\": \"after\"", "\"text\": \"never\"");
  spoilt.replace("lua/canonical/queue/reap.lua", "\nlocal ", "\nif true then return 0 end\nlocal ");
  spoilt.replace("conformance/08-complete.json", "\"claim\"", "\"claim_by_smell\"");
  const Outcome outcome = run_node("kit.js", {"--url", server.url(), "--protocol", spoilt.folder(), "retry",
                                              "resubscribe", "reap", "complete", "order"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.text();
  const std::string text = outcome.text();
  for (const char* line : {"FAIL 09-retry.json", "FAIL 18-resubscribe.json", "FAIL 11-reap.json",
                           "SKIP 08-complete.json", "CONFORMANCE 1/79", "SKIPPED 1 (complete)"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << " in\n" << text;
  }
}

TEST(NodeKitFails, WhenANumberIsNotInTheFolder) {
  const testing::PrivateServer server = server_of(Engine::valkey);
  SpoiltProtocol spoilt;
  spoilt.remove("conformance/17-backoff.json");
  const Outcome whole = run_node("kit.js", {"--private", "--url", server.url(), "--protocol", spoilt.folder()});
  EXPECT_EQ(whole.exit_code, 1) << whole.text();
  EXPECT_NE(whole.text().find("NOT IN THE FOLDER 1 (17)"), std::string::npos) << whole.text();
  EXPECT_EQ(whole.text().find("FAIL"), std::string::npos) << whole.text();

  const Outcome asked = run_node("kit.js", {"--url", server.url(), "--protocol", spoilt.folder(), "order", "17"});
  EXPECT_EQ(asked.exit_code, 2) << asked.text();
  EXPECT_EQ(asked.text(), "NO SCENARIO 17\n");
  const Outcome others = run_node("kit.js", {"--url", server.url(), "--protocol", spoilt.folder(), "order", "6"});
  EXPECT_EQ(others.exit_code, 0) << others.text();
  EXPECT_NE(others.text().find("CONFORMANCE 2/79"), std::string::npos) << others.text();
}

TEST(NodeKitFails, WhenNoScenarioIsCalledThat) {
  const testing::PrivateServer server = server_of(Engine::valkey);
  for (const char* name : {"odrer", "80", "undefined", "cache_broadcasts"}) {
    const Outcome outcome = run_node("kit.js", {"--url", server.url(), "order", name});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.text();
    EXPECT_EQ(outcome.text(), std::string("NO SCENARIO ") + name + "\n");
  }
}

}  // namespace
}  // namespace echomq::interop
