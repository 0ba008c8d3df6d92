// `emq conformance` and `emq wire`: what they print, how they end, and what they leave on a server.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tool_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class ToolConformance : public ToolTest {
 protected:
  /// Keys but those of the deployment.
  [[nodiscard]] std::int64_t keys_left() {
    const auto reply = client().command("KEYS", "e[mc][qc]:*").get();
    return reply ? static_cast<std::int64_t>(reply->size()) : -1;
  }
};

TEST_F(ToolConformance, RunsTheKitAndLeavesOnlyWhatWasThere) {
  const JobId mine = add("mine");
  const std::int64_t before = keys_left();
  const ToolResult result = emq({"conformance", "--private"});
  EXPECT_THAT(result.out, Not(HasSubstr("FAILED")));
  EXPECT_THAT(result.out, ContainsRegex("CONFORMANCE [0-9]+/79\nOWN ([0-9]+)/([0-9]+)\nSKIPPED [0-9]+"));
  EXPECT_EQ(keys_left(), before);
  EXPECT_EQ(field(mine, "payload"), "mine");
  EXPECT_EQ((*client().command("CONFIG", "GET", "maxmemory").get()).find("maxmemory")->as_text(), "0");

  const auto value = json_of(emq({"conformance", "--private", "--json"}).out);
  EXPECT_EQ(value.at("conformance").at("total"), 79);
  EXPECT_EQ(value.at("own").at("passed"), value.at("own").at("total"));
  EXPECT_GE(value.at("own").at("total").as_int64(), 25);
  EXPECT_EQ(value.at("failed").as_array().size(), 0U);
  // Only the two that need hash-field TTL may be missing for an exit code of 0.
  bool others = false;
  for (const auto& one : value.at("skipped").as_array())
    others |= one.at("number") != 58 && one.at("number") != 59;
  EXPECT_EQ(result.exit_code, others ? 1 : 0) << result.out << result.err;
}

TEST_F(ToolConformance, RunsOneByNumberOrName) {
  for (const char* which : {"3", "duplicate"}) {
    const ToolResult result = emq({"conformance", "--scenario", which});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, "CONFORMANCE 1/1\nOWN 0/0\nSKIPPED 0\n");
  }
  EXPECT_EQ(emq({"conformance", "--scenario", "late_complete"}).out, "CONFORMANCE 0/0\nOWN 1/1\nSKIPPED 0\n");
  EXPECT_EQ(emq({"conformance", "--scenario", "no_such"}).exit_code, 2);
}

TEST_F(ToolConformance, FailsWhenTheServerDoesWrong) {
  // A server on which nothing can be put into a sorted set.
  ASSERT_TRUE(client().command("ACL", "SETUSER", "default", "-zadd").get());
  const ToolResult result = emq({"conformance", "--scenario", "claim"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, ContainsRegex("FAILED 6 claim: .*CONFORMANCE 0/1"));
}

TEST_F(ToolConformance, DoesNotTouchTheSettingsOfAServerThatIsNotItsOwn) {
  const ToolResult result = emq({"conformance", "--scenario", "full_server"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("SKIPPED 1 (full_server)"));
  EXPECT_THAT(result.err, HasSubstr("not private"));
}

TEST_F(ToolConformance, TwoRunsAtOnceDoNotMeet) {
  ToolResult results[2];
  std::thread first([&] { results[0] = emq({"conformance"}); });
  std::thread second([&] { results[1] = emq({"conformance"}); });
  first.join();
  second.join();
  for (const ToolResult& result : results)
    EXPECT_THAT(result.out, Not(HasSubstr("FAILED")));
  EXPECT_EQ(keys_left(), 0);
}

TEST_F(ToolConformance, AnUnreachableServerIsFour) {
  EXPECT_EQ(run_tool({"conformance", "--url", "valkey://127.0.0.1:1"}).exit_code, 4);
}

TEST(ToolWire, LocksAndCompares) {
  namespace fs = std::filesystem;
  const std::string checkout = ECHOMQ_SOURCE_DIR;
  const std::string lock = checkout + "/protocol/wire.lock";
  EXPECT_EQ(run_tool({"wire", "lock", "--check", checkout}).exit_code, 0);
  const ToolResult same = run_tool({"wire", "diff", lock, checkout});
  EXPECT_EQ(same.exit_code, 0);
  EXPECT_EQ(same.out, "0 breaking, 0 additive\n");

  const fs::path copy = fs::temp_directory_path() / ("emq-wire-" + std::to_string(::getpid()));
  fs::copy(checkout + "/protocol", copy, fs::copy_options::recursive);
  {
    std::ifstream in(copy / "keys.json");
    std::string text{std::istreambuf_iterator<char>(in), {}};
    const std::string name = "\"emq:{q}:wake\"";
    text.replace(text.find(name), name.size(), "\"emq:{q}:bell\"");
    std::ofstream(copy / "keys.json") << text;
  }
  const ToolResult moved = run_tool({"wire", "diff", lock, copy.string()});
  EXPECT_EQ(moved.exit_code, 1);
  EXPECT_THAT(moved.out, HasSubstr("BREAKING key wake: name was `emq:{q}:wake`, is `emq:{q}:bell`"));
  EXPECT_EQ(run_tool({"wire", "lock", "--check", copy.string()}).exit_code, 1);
  EXPECT_EQ(run_tool({"wire", "lock", copy.string()}).exit_code, 0);
  EXPECT_EQ(run_tool({"wire", "lock", "--check", copy.string()}).exit_code, 0);
  const auto value = boost::json::parse(run_tool({"wire", "diff", "--json", lock, (copy / "wire.lock").string()}).out);
  EXPECT_GE(value.at("breaking").as_int64(), 1);
  fs::remove_all(copy);

  EXPECT_EQ(run_tool({"wire", "diff", "/nowhere", lock}).exit_code, 2);
}

}  // namespace
}  // namespace echomq::test
