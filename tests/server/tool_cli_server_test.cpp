// `emq` as a whole: help, where the server is, exit codes of connections, secrets, broken pipes; and `emq dev`.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "tool_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ToolCli : public ToolTest {};

TEST_F(ToolCli, HelpAndVersionAreNoErrors) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"--help"}, {"--version"}, {"enqueue", "--help"}, {"work", "--help"}, {"job", "ls", "--help"}}) {
    const ToolResult result = run_tool(arguments);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_NE(result.out, "");
    EXPECT_EQ(result.err, "");
  }
}

TEST_F(ToolCli, UsageErrorsNameWhatIsWrong) {
  const ToolResult nothing = run_tool({});
  EXPECT_EQ(nothing.exit_code, 2);
  const ToolResult unknown = run_tool({"enqeue", "jobs", "x"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("enqeue"));
  const ToolResult json = run_tool({"enqeue", "--json"});
  EXPECT_EQ(json_of(json.err).at("error").at("code"), "usage");
}

TEST_F(ToolCli, TheOptionWinsOverTheEnvironment) {
  const Environment elsewhere = {{"EMQ_URL", "valkey://127.0.0.1:1"}};
  EXPECT_EQ(run_tool({"queue", "ls"}, {}, elsewhere).exit_code, 4);
  EXPECT_EQ(run_tool({"queue", "ls", "--url", url()}, {}, elsewhere).exit_code, 0);
  EXPECT_EQ(run_tool({"--url", url(), "queue", "ls"}, {}, elsewhere).exit_code, 0);
  EXPECT_EQ(run_tool({"--url", "unix://" + server().socket_path(), "queue", "ls"}).exit_code, 0);
}

TEST_F(ToolCli, AnUnreachableServerIsFour) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{{"enqueue", "q", "x"},
                                                                     {"work", "q", "--exec", "true"},
                                                                     {"job", "show", "q", "JOB0KHTOWnGLuC"},
                                                                     {"queue", "stats", "q"}}) {
    SCOPED_TRACE(arguments[0]);
    const ToolResult result = run_tool(arguments, {}, {{"EMQ_URL", "valkey://user:hunter2@127.0.0.1:1"}});
    EXPECT_EQ(result.exit_code, 4) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr("127.0.0.1:1"));
    EXPECT_THAT(result.err, Not(HasSubstr("hunter2")));
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  }
}

TEST_F(ToolCli, PasswordsAreNeverPrinted) {
  ASSERT_TRUE(client().command("CONFIG", "SET", "requirepass", "letmein").get());
  const std::string host = url().substr(9);
  EXPECT_EQ(run_tool({"queue", "ls", "--url", "valkey://:letmein@" + host}).exit_code, 0);
  const std::vector<std::vector<std::string>> rows = {
      {"queue", "ls", "--url", "valkey://:hunter2@" + host},
      {"queue", "ls", "--json", "--url", "valkey://:hunter2@" + host},
      {"queue", "ls", "--verbose", "--url", "valkey://:hunter2@" + host},
      {"queue", "ls", "--url", "valkey://:hunter2@[" + host},
      {"queue", "ls", "--url", "http://:hunter2@" + host},
      {"queue", "ls", "--url", "valkey://:hunter2@" + host + "/x"},
      {"queue", "ls", "--url", "valkey://:hunter2@" + host, "surplus"},
      {"queue", "ls", "--urll", "valkey://:hunter2@" + host},
      {"queue", "ls", "valkey://:hunter2@" + host},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(::testing::PrintToString(row));
    const ToolResult result = run_tool(row);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.out + result.err, Not(HasSubstr("hunter2")));
  }
  EXPECT_EQ(run_tool({"queue", "ls", "--url", "valkey://:hunter2@" + host}).exit_code, 5);
  EXPECT_EQ(run_tool({"queue", "ls", "--url", url()}).exit_code, 5);
}

TEST_F(ToolCli, AnotherWireVersionIsRefused) {
  ASSERT_TRUE(client().command("SET", "{emq}:version", "echomq:9.9.9").get());
  const ToolResult result = emq({"queue", "ls", "--json"});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_EQ(json_of(result.err).at("error").at("code"), "version_mismatch");
}

// Runs a shell line with $EMQ and $EMQ_URL set; gives its exit status.
int shell(const std::string& line, const std::string& url) {
  const std::string command = "EMQ=" ECHOMQ_EMQ_PATH " EMQ_URL=" + url + " sh -c '" + line + "'";
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_F(ToolCli, AReaderThatLeavesIsNoDrama) {
  std::vector<NewJob> jobs(20'000, NewJob{.payload = "x", .id = {}});
  ASSERT_TRUE(queue().enqueue_many(jobs).get());
  EXPECT_EQ(shell("$EMQ job ls jobs -n 20000 2>/dev/null | head -1 | grep -q JOB", url()), 0);
  EXPECT_EQ(shell("test -z \"$($EMQ job ls jobs -n 20000 2>&1 >&- | grep -i -e abort -e terminate)\"", url()), 0);
  EXPECT_EQ(shell("test \"$( ( ($EMQ job ls jobs -n 20000 2>/dev/null; echo $? >&3) | head -1 >/dev/null) 3>&1)\" = 0",
                  url()),
            0);
}

TEST_F(ToolCli, OutputThatCannotBeWrittenIsAnError) {
  (void)add("x");
  EXPECT_EQ(shell("$EMQ queue ls >/dev/full", url()), 1);
  EXPECT_EQ(shell("$EMQ queue ls 2>&1 >/dev/full | grep -q \"No space left\"", url()), 0);
}

// A closed standard descriptor was taken by the connection, which then got our output, and gave us its input.
TEST_F(ToolCli, AClosedDescriptorIsAnErrorAndNotTheConnection) {
  (void)add("x");
  EXPECT_EQ(shell("$EMQ queue ls >&-", url()), 1);
  EXPECT_EQ(shell("$EMQ queue ls 2>&1 >&- | grep -q \"cannot write standard output: Bad file descriptor\"", url()), 0);
  EXPECT_EQ(shell("$EMQ enqueue jobs --lines <&- 2>/dev/null", url()), 2);
  EXPECT_EQ(shell("$EMQ enqueue jobs --lines 2>&1 <&- | grep -q \"Bad file descriptor\"", url()), 0);
  EXPECT_EQ(shell("$EMQ -v enqueue jobs x <&- 2>&- >/dev/null", url()), 0);
  EXPECT_EQ(counts().pending, 2);
}

// The parser took -1 for the greatest number there is.
TEST_F(ToolCli, NumbersAreNotWrapped) {
  const std::string greater = "99999999999999999999";
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{"doctor", "jobs", "-n", "-1"},
                                             {"events", "log", "jobs", "-n", "-1"},
                                             {"events", "keep", "jobs", "--most", "-1"},
                                             {"stream", "read", "jobs", "s", "-n", "-1"},
                                             {"stream", "trim", "jobs", "s", "--keep-count", "-1"},
                                             {"stream", "trim", "jobs", "s", "--keep-bytes", "-1"},
                                             {"cache", "watch", "t", "-n", "-1"}}) {
    SCOPED_TRACE(::testing::PrintToString(arguments));
    const ToolResult result = emq(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("-1 is negative"));
  }
  const ToolResult result = emq({"events", "keep", "jobs", "--most", greater});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr(greater + " is too large"));
}

class ToolDev : public ToolTest {};

TEST_F(ToolDev, PrintsItsUrlAndServesUntilItIsTold) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Tool dev({"dev"});
    const std::string address = dev.first_line();
    ASSERT_TRUE(address.starts_with("valkey://127.0.0.1:")) << dev.err();
    EXPECT_EQ(run_tool({"enqueue", "jobs", "x", "--url", address}).exit_code, 0);
    dev.signal(signal);
    const ToolResult result = dev.wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, address + "\n");
    EXPECT_EQ(run_tool({"queue", "ls", "--url", address}).exit_code, 4);
  }
}

TEST_F(ToolDev, JsonHasUrlSocketAndProcess) {
  Tool dev({"dev", "--json", "--aof"});
  const auto value = json_of(dev.first_line());
  const std::string address(value.at("url").as_string());
  const std::string socket(value.at("unix_url").as_string());
  const auto pid = static_cast<pid_t>(value.at("pid").as_int64());
  const std::string folder(value.at("folder").as_string());
  EXPECT_EQ(value.at("append_only"), true);
  EXPECT_EQ(run_tool({"queue", "ls", "--url", socket}).exit_code, 0);
  auto opened = Client::open(address);
  ASSERT_TRUE(opened);
  EXPECT_EQ((*opened->command("CONFIG", "GET", "appendonly").get()).find("appendonly")->as_text(), "yes");
  EXPECT_EQ(::kill(pid, 0), 0);

  // Even a kill -9 of the tool ends the server, and leaves no folder.
  dev.signal(SIGKILL);
  (void)dev.wait();
  EXPECT_TRUE(comes_true([&] { return ::kill(pid, 0) != 0; }));
  EXPECT_TRUE(comes_true([&] { return !std::filesystem::exists(folder); }));
}

TEST_F(ToolDev, RunsAClusterWhoseQueuesAreAllListed) {
  Tool dev({"dev", "--cluster", "--json"});
  const auto value = json_of(dev.first_line());
  const std::string address(value.at("url").as_string());
  ASSERT_TRUE(address.starts_with("valkey+cluster://127.0.0.1:")) << address;
  std::vector<pid_t> pids;
  for (const auto& node : value.at("nodes").as_array())
    pids.push_back(static_cast<pid_t>(node.at("pid").as_int64()));
  EXPECT_EQ(pids.size(), 3U);
  // Queues of these names are on three different nodes.
  for (const char* queue : {"a", "b", "c"})
    EXPECT_EQ(run_tool({"enqueue", queue, "x", "--url", address}).exit_code, 0);
  const ToolResult listed = run_tool({"queue", "ls", "--url", address, "--json"});
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
  for (const char* queue : {"\"a\"", "\"b\"", "\"c\""})
    EXPECT_NE(listed.out.find(queue), std::string::npos) << queue << " in " << listed.out;
  dev.signal(SIGTERM);
  EXPECT_EQ(dev.wait().exit_code, 0);
  for (const pid_t pid : pids)
    EXPECT_NE(::kill(pid, 0), 0);
}

TEST_F(ToolDev, SaysWhenTheServerEndsOrCannotStart) {
  Tool dev({"dev", "--json"});
  const auto pid = static_cast<pid_t>(json_of(dev.first_line()).at("pid").as_int64());
  ::kill(pid, SIGKILL);
  const ToolResult result = dev.wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(json_of(result.err).at("error").at("code"), "server_ended");

  EXPECT_EQ(run_tool({"dev", "--binary", "/nowhere/valkey-server"}).exit_code, 1);
  EXPECT_EQ(run_tool({"dev", "--port", "99999"}).exit_code, 2);
  EXPECT_EQ(run_tool({"dev", "--cluster", "--port", "7000"}).exit_code, 2);
}

}  // namespace
}  // namespace echomq::test
