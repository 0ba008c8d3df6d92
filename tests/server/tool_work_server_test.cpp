// `emq work`: what a command gets, what its end means, and how the tool itself ends.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include "support/bounds.hpp"
#include "support/proxy.hpp"
#include "tool_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class ToolWork : public ToolTest {
 protected:
  [[nodiscard]] ToolResult work(const std::string& command, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"work", "jobs", "--exec", command, "--drain"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return emq(arguments);
  }
  [[nodiscard]] std::vector<std::string> arguments(const std::string& command, std::vector<std::string> more = {}) {
    std::vector<std::string> out = {"work", "jobs", "--exec", command};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  [[nodiscard]] Environment environment() const { return {{"EMQ_URL", url()}}; }
  [[nodiscard]] std::string path(std::string_view name) { return server().folder() + "/" + std::string(name); }
  [[nodiscard]] static std::string read(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  /// Whether it runs: one that has ended and that nobody has waited for yet does not.
  [[nodiscard]] static bool alive(pid_t pid) {
    const std::string stat = read("/proc/" + std::to_string(pid) + "/stat");
    const std::size_t name_end = stat.rfind(") ");
    return name_end != std::string::npos && stat.substr(name_end + 2, 1) != "Z";
  }
};

TEST_F(ToolWork, GivesPayloadAndEnvironmentAndCompletes) {
  const JobId id = add("the payload");
  const ToolResult result =
      work("cat; printf ' %s %s %s [%s]' \"$EMQ_JOB_ID\" \"$EMQ_QUEUE\" \"$EMQ_ATTEMPT\" \"${EMQ_GROUP-unset}\"");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "the payload " + std::string(id.text()) + " jobs 1 [unset]");
  EXPECT_EQ(counts().completed, 1);
  EXPECT_EQ(field(id, "state"), "(no row)");
}

// It waited for ever.
TEST_F(ToolWork, DrainingAPausedQueueEndsAndSaysSo) {
  (void)add("flat");
  (void)add("laned", {.lane = LaneId{"USR0KHTOWnGLuC"}});
  ASSERT_TRUE(queue().pause().get());
  const ToolResult result = work("exit 0");
  EXPECT_EQ(result.exit_code, 6);
  EXPECT_THAT(result.err, HasSubstr("the queue is paused: 1 jobs are left"));
  const ToolResult json = work("exit 0", {"--json"});
  EXPECT_EQ(json.exit_code, 6);
  EXPECT_THAT(json.err, HasSubstr(R"("code":"paused")"));
  EXPECT_EQ(counts().completed, 0);
  ASSERT_TRUE(queue().resume().get());
  EXPECT_EQ(work("exit 0").exit_code, 0);
  EXPECT_EQ(counts().completed, 2);
  ASSERT_TRUE(queue().pause().get());
  EXPECT_EQ(work("exit 0").exit_code, 0) << "paused, and empty";
}

// It waited for ever: such a key answers no claim.
TEST_F(ToolWork, DrainingAQueueWithAKeyOfAnotherTypeEndsAndNamesIt) {
  const struct {
    std::string key, is, should;
  } all[] = {{"pending", "string", "zset"}, {"active", "string", "zset"}, {"schedule", "string", "zset"},
             {"dead", "string", "zset"},    {"ring", "string", "list"},   {"meta", "string", "hash"},
             {"limiter", "list", "string"}};
  for (const auto& [key, is, should] : all) {
    SCOPED_TRACE(key);
    const std::string name = "emq:{jobs}:" + key;
    ASSERT_TRUE(is == "list" ? client().command("RPUSH", name, "x").get() : client().command("SET", name, "x").get());
    const ToolResult result = work("exit 0");
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr(name + " is a " + is + ", not a " + should));
    const ToolResult json = work("exit 0", {"--json"});
    EXPECT_EQ(json.exit_code, 1);
    EXPECT_THAT(json.err, HasSubstr(R"("code":"wrong_type")"));
    ASSERT_TRUE(client().command("DEL", name).get());
  }
  (void)add("given");
  EXPECT_EQ(work("exit 0").exit_code, 0);
  EXPECT_EQ(counts().completed, 1);
}

// Paused while its commands run: those are finished.
TEST_F(ToolWork, DrainingAQueueThatIsPausedMeanwhileFinishesWhatRuns) {
  (void)add("runs");
  (void)add("waits");
  const std::string begun = path("begun");
  std::thread pauses([&] {
    for (int i = 0; i < 2000 && !std::filesystem::exists(begun); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(queue().pause().get());
  });
  const ToolResult result = work("touch " + begun + "; sleep 3");
  pauses.join();
  EXPECT_EQ(result.exit_code, 6) << result.err;
  EXPECT_EQ(counts().completed, 1);
  EXPECT_EQ(counts().pending, 1);
}

TEST_F(ToolWork, NamesTheLane) {
  (void)add("x", {.lane = LaneId{"USR0KHTOWnGLuC"}});
  const ToolResult result = run_tool({"work", "jobs", "--exec", "printf %s \"$EMQ_GROUP\"", "--drain"}, {},
                                     {{"EMQ_URL", url()}, {"EMQ_GROUP", "from outside"}});
  EXPECT_EQ(result.out, "USR0KHTOWnGLuC");
}

TEST_F(ToolWork, BinaryAndLargePayloadsArriveWhole) {
  std::string payload;
  for (int index = 0; index < 3'000'000; ++index) {
    payload += static_cast<char>(index * 7);
  }
  (void)add(payload);
  const ToolResult result = work("cat >" + path("copy"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(read(path("copy")) == payload);
}

TEST_F(ToolWork, ACommandNeedNotReadItsPayload) {
  (void)add(std::string(1'000'000, 'x'));
  EXPECT_EQ(work("exit 0").exit_code, 0);
  EXPECT_EQ(counts().completed, 1);
}

TEST_F(ToolWork, AFailureIsRetriedWithTheTailOfItsComplaints) {
  const JobId id = add("x");
  const ToolResult result = work("echo first >&2; echo 'no such thumb' >&2; exit 3", {"--max-attempts", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(field(id, "state"), "dead");
  EXPECT_EQ(field(id, "last_error"), "first\nno such thumb");
  EXPECT_THAT(result.err, HasSubstr("no such thumb"));
  EXPECT_THAT(result.err, HasSubstr("exit status 3"));
}

TEST_F(ToolWork, OfManyComplaintsTheLastFourKibibytesAreKept) {
  const JobId id = add("x");
  EXPECT_EQ(work("seq 1 100000 >&2; exit 1", {"--max-attempts", "1", "--quiet"}).exit_code, 0);
  const std::string error = field(id, "last_error");
  EXPECT_EQ(error.size(), 4096U);
  EXPECT_TRUE(error.ends_with("\n99999\n100000"));
}

TEST_F(ToolWork, SilentFailuresSayHowTheyEnded) {
  const JobId status = add("7");
  const JobId killed = add("kill");
  const ToolResult result = work("case $(cat) in kill) kill -9 $$;; *) exit 7;; esac", {"--max-attempts", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(field(status, "last_error"), "exit status 7");
  EXPECT_EQ(field(killed, "last_error"), "killed by signal 9");
}

TEST_F(ToolWork, RetriesUntilItSucceeds) {
  (void)add("x");
  const ToolResult result = work("test \"$EMQ_ATTEMPT\" = 3", {"--max-attempts", "5", "--retry-delay", "10ms"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(counts().completed, 1);
}

TEST_F(ToolWork, CommandsRunSideBySide) {
  for (int index = 0; index < 8; ++index) {
    (void)add("x");
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(work("sleep 2", {"--concurrency", "8"}).exit_code, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 12s) << "one after the other take sixteen";
  EXPECT_EQ(counts().completed, 8);
}

TEST_F(ToolWork, JsonIsOneValueAndCommandsWriteElsewhere) {
  (void)add("good");
  (void)add("bad");
  const ToolResult result = work("echo noise; test $(cat) = good", {"--json", "--max-attempts", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto value = json_of(result.out);
  EXPECT_EQ(value.at("completed"), 1);
  EXPECT_EQ(value.at("dead"), 1);
  EXPECT_EQ(value.at("unsettled"), 0);
  EXPECT_THAT(result.err, HasSubstr("noise"));
}

TEST_F(ToolWork, CommandsGetNothingOfOurs) {
  (void)add("x");
  // Only the three standard streams (and the one that `ls` opens), no blocked and no ignored signals.
  const ToolResult result = work("ls /proc/self/fd | tr '\\n' ' '; grep -E 'Sig(Blk|Ign)' /proc/self/status");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("0 1 2 3 "));
  EXPECT_THAT(result.out, Not(HasSubstr("3 4")));
  EXPECT_THAT(result.out, HasSubstr("SigBlk:\t0000000000000000"));
  // Signals 32 and 33 are the C library's own.
  EXPECT_THAT(result.out, ContainsRegex("SigIgn:\t[0-9a-f]{8}[08]0000000"));
}

TEST_F(ToolWork, ADaemonThatKeepsThePipeOpenDoesNotHoldTheJob) {
  (void)add("x");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(work("sleep 15 & exit 0").exit_code, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 12s);
  EXPECT_EQ(counts().completed, 1);
}

TEST_F(ToolWork, ASignalLetsRunningCommandsFinish) {
  const JobId id = add("x");
  Tool tool(arguments("touch " + path("begun") + "; sleep 3; echo done"), {}, environment());
  ASSERT_TRUE(comes_true([&] { return std::filesystem::exists(path("begun")); }));
  (void)add("not claimed any more");
  tool.signal(SIGTERM);
  const ToolResult result = tool.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "done\n");
  EXPECT_EQ(field(id, "state"), "(no row)");
  EXPECT_EQ(counts().completed, 1);
  EXPECT_EQ(counts().pending, 1);
}

TEST_F(ToolWork, AtTheDeadlineJobsAreHandedBackAtOnceAndCommandsEnd) {
  const JobId id = add("x");
  Tool tool(arguments("echo $$ >" + path("pid") + "; exec sleep 60", {"--lease", "60s", "--stop-deadline", "300ms"}),
            {}, environment());
  ASSERT_TRUE(comes_true([&] { return !read(path("pid")).empty(); }));
  const auto command = static_cast<pid_t>(std::stoi(read(path("pid"))));
  tool.signal(SIGINT);
  const ToolResult result = tool.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(field(id, "state"), "pending");
  EXPECT_EQ(field(id, "handbacks"), "1");
  EXPECT_EQ(counts().pending, 1);
  EXPECT_FALSE(alive(command));
  EXPECT_THAT(result.err, HasSubstr("1 handed back"));
}

TEST_F(ToolWork, ASecondSignalIsTheDeadline) {
  const JobId id = add("x");
  // Deaf to SIGTERM: only SIGKILL ends it.
  Tool tool(arguments("trap '' TERM; echo $$ >" + path("pid") + "; while :; do sleep 0.1; done", {"--lease", "60s"}),
            {}, environment());
  ASSERT_TRUE(comes_true([&] { return !read(path("pid")).empty(); }));
  const auto command = static_cast<pid_t>(std::stoi(read(path("pid"))));
  tool.signal(SIGTERM);
  // Two at once may be one.
  ASSERT_TRUE(comes_true([&] { return tool.err().find("stopping") != std::string::npos; })) << tool.err();
  std::this_thread::sleep_for(300ms);
  EXPECT_TRUE(alive(command));
  const auto second = std::chrono::steady_clock::now();
  tool.signal(SIGTERM);
  const ToolResult result = tool.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - second, bound(2s));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(field(id, "state"), "pending");
  EXPECT_FALSE(alive(command));
}

// Elsewhere a killed worker's commands went on beside their second run.
TEST_F(ToolWork, CommandsDoNotOutliveAKilledTool) {
  const JobId id = add("x");
  Tool first(arguments("echo $$ >" + path("pid") + "; sleep 60; echo wrong", {"--lease", "1s"}), {}, environment());
  ASSERT_TRUE(comes_true([&] { return !read(path("pid")).empty(); }));
  const auto command = static_cast<pid_t>(std::stoi(read(path("pid"))));
  first.signal(SIGKILL);
  EXPECT_EQ(first.wait().exit_code, 128 + SIGKILL);
  EXPECT_TRUE(comes_true([&] { return !alive(command); }));
  // The job comes back by its lease, to whoever works next.
  const ToolResult second = work("printf %s \"$EMQ_ATTEMPT\"", {"--lease", "1s"});
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.out, "2");
  EXPECT_EQ(field(id, "state"), "(no row)");
}

// Two processes, one of them killed with all its slots full: the other does everything.
TEST_F(ToolWork, AnotherProcessTakesOverFromAKilledOne) {
  for (int index = 0; index < 20; ++index) {
    (void)add(std::to_string(index));
  }
  Tool first(arguments("sleep 60", {"--lease", "1s", "--concurrency", "10"}), {}, environment());
  ASSERT_TRUE(comes_true([&] { return counts().active >= 10; }));
  first.signal(SIGKILL);
  const auto start = std::chrono::steady_clock::now();
  const ToolResult second = work("cat; echo", {"--lease", "1s", "--concurrency", "4"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, bound(5s));
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(counts().completed, 20);
  EXPECT_EQ(std::ranges::count(second.out, '\n'), 20);
}

// The link of one worker is dead for longer than a lease: its command is stopped, the other's run is the one that counts.
TEST_F(ToolWork, ALostLeaseStopsTheCommand) {
  const JobId id = add("x");
  Proxy proxy(url());
  Tool cut_off(arguments("echo $$ >" + path("pid") + "; exec sleep 60", {"--lease", "1s", "--stop-deadline", "1s"}), {},
               {{"EMQ_URL", proxy.url()}});
  ASSERT_TRUE(comes_true([&] { return !read(path("pid")).empty(); }));
  const auto command = static_cast<pid_t>(std::stoi(read(path("pid"))));
  proxy.hold();
  const ToolResult other = work("printf %s \"$EMQ_ATTEMPT\"", {"--lease", "1s"});
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_EQ(other.out, "2");
  EXPECT_TRUE(comes_true([&] { return !alive(command); }));
  proxy.release();
  EXPECT_TRUE(comes_true([&] { return cut_off.err().find("lease lost") != std::string::npos; }));
  cut_off.signal(SIGTERM);
  EXPECT_EQ(cut_off.wait().exit_code, 0) << cut_off.err();
  EXPECT_EQ(counts().completed, 1);
  EXPECT_EQ(field(id, "state"), "(no row)");
}

TEST_F(ToolWork, SurvivesARestartOfTheServer) {
  Tool tool(arguments("cat", {"--beat", "200ms"}), {}, environment());
  (void)add("before ");
  ASSERT_TRUE(comes_true([&] { return tool.out() == "before "; }));
  server().kill();
  std::this_thread::sleep_for(300ms);
  ASSERT_TRUE(server().restart());
  ASSERT_TRUE(comes_true([&] { return queue().enqueue("after").get().has_value(); }));
  EXPECT_TRUE(comes_true([&] { return tool.out().starts_with("before after"); }));
  tool.signal(SIGTERM);
  EXPECT_EQ(tool.wait().exit_code, 0) << tool.err();
}

TEST_F(ToolWork, DrainWaitsForWhatIsScheduled) {
  (void)add("now");
  (void)add("soon", {.in = 700ms});
  EXPECT_EQ(work("true").exit_code, 0);
  EXPECT_EQ(counts().completed, 2);
}

TEST_F(ToolWork, DrainOfAnEmptyQueueEndsAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  const ToolResult result = work("true");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LT(std::chrono::steady_clock::now() - start, bound(3s));
}

TEST_F(ToolWork, BadOptionsAreUsageErrors) {
  const std::vector<std::vector<std::string>> rows = {
      {"work", "jobs"},
      {"work", "--exec", "true"},
      {"work", "jobs", "--exec", ""},
      {"work", "jobs", "--exec", " "},
      {"work", "no/such", "--exec", "true"},
      {"work", "jobs", "--exec", "true", "--concurrency", "0"},
      {"work", "jobs", "--exec", "true", "--concurrency", "1025"},
      {"work", "jobs", "--exec", "true", "--concurrency", "many"},
      {"work", "jobs", "--exec", "true", "--lease", "1ms"},
      {"work", "jobs", "--exec", "true", "--lease", "long"},
      {"work", "jobs", "--exec", "true", "--beat", "1ms"},
      {"work", "jobs", "--exec", "true", "--max-attempts", "0"},
      {"work", "jobs", "--exec", "true", "--max-stalled", "0"},
      {"work", "jobs", "--exec", "true", "--stop-deadline", "-1s"},
      {"work", "jobs", "--exec", "true", "--retry-delay", "x"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(::testing::PrintToString(row));
    const ToolResult result = emq(row);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("terminate")));
  }
}

}  // namespace
}  // namespace echomq::test
