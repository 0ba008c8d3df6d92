// `emq job` and `emq queue`: what they show, what they change, and their exit codes.
#include <set>

#include "tool_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ToolJob : public ToolTest {
 protected:
  // A job that has failed for good.
  [[nodiscard]] JobId dead(std::string_view payload) {
    const JobId id = add(payload);
    const auto job = queue().claim().get();
    EXPECT_TRUE(job && *job && (*job)->id == id);
    EXPECT_TRUE(
        queue().retry(id, (*job)->token, {.delay = 1s, .max_attempts = 1, .error = "broken", .deadline = {}}).get());
    return id;
  }
  [[nodiscard]] static std::string text(const JobId& id) { return std::string(id.text()); }
};

TEST_F(ToolJob, ShowsAJob) {
  const JobId id = dead("some payload");
  ASSERT_TRUE(queue().add_log(id, "a line").get());
  const ToolResult result = emq({"job", "show", "jobs", text(id)});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const std::string& part :
       {std::string("dead"), std::string("some payload"), std::string("broken"), std::string("a line"), text(id)}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
  const auto value = json_of(emq({"job", "show", "jobs", text(id), "--json"}).out);
  EXPECT_EQ(value.at("id").as_string(), id.text());
  EXPECT_EQ(value.at("queue"), "jobs");
  EXPECT_EQ(value.at("state"), "dead");
  EXPECT_EQ(value.at("fields").at("payload"), "some payload");
  EXPECT_EQ(value.at("fields").at("attempts"), "1");
  EXPECT_EQ(value.at("logs").at(0), "a line");
}

TEST_F(ToolJob, FieldsOfOthersAreShownToo) {
  const JobId id = add("x");
  ASSERT_TRUE(client().command("HSET", "emq:{jobs}:job:" + text(id), "priority", "7").get());
  EXPECT_EQ(json_of(emq({"job", "show", "jobs", text(id), "--json"}).out).at("fields").at("priority"), "7");
}

TEST_F(ToolJob, BytesThatMoveTerminalsAreEscaped) {
  const std::string payload("\x1b[2J\x07\xc2\x9b bell \xff\xe2\x80\xae end\0 caf\xc3\xa9\\n", 30);
  const JobId id = add(payload);
  for (const ToolResult& result :
       {emq({"job", "show", "jobs", text(id)}), run_tool_on_terminal({"job", "show", "jobs", text(id), "--url", url()}),
        run_tool_on_terminal({"job", "show", "jobs", text(id), "--payload", "--url", url()})}) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("\\x1b[2J\\x07\\u{9b} bell \\xff\\u{202e} end\\x00 caf\xc3\xa9"));
    for (const char c : result.out) {
      EXPECT_TRUE(c == '\n' || c == '\r' || static_cast<unsigned char>(c) >= 0x20);
    }
  }
  // A pipe gets the bytes, and JSON says that they are no text.
  EXPECT_EQ(emq({"job", "show", "jobs", text(id), "--payload"}).out, payload);
  const auto value = json_of(emq({"job", "show", "jobs", text(id), "--payload", "--json"}).out);
  EXPECT_TRUE(value.as_object().contains("payload_base64"));
}

TEST_F(ToolJob, ListsEachState) {
  const JobId pending = add("x");
  const JobId later = add("x", {.in = 1h});
  const JobId laned = add("x", {.lane = LaneId{"USR0KHTOWnGLuC"}});
  const JobId active = pending;
  ASSERT_TRUE(*queue().claim().get());
  const JobId waiting = add("y");
  const auto only = [&](std::vector<std::string> more, const JobId& id) {
    std::vector<std::string> arguments = {"job", "ls", "jobs"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ToolResult result = emq(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out.substr(0, 14), id.text());
    EXPECT_EQ(std::ranges::count(result.out, '\n'), 1);
    arguments.emplace_back("--json");
    const auto value = json_of(emq(arguments).out);
    ASSERT_EQ(value.as_array().size(), 1U);
    EXPECT_EQ(value.at(0).at("id").as_string(), id.text());
  };
  only({}, waiting);
  only({"--state", "active"}, active);
  only({"--state", "scheduled"}, later);
  only({"--lane", "USR0KHTOWnGLuC"}, laned);
  const JobId gone = [&] {
    const auto job = queue().claim().get();
    EXPECT_TRUE(
        queue().retry((*job)->id, (*job)->token, {.delay = 1s, .max_attempts = 1, .error = "", .deadline = {}}).get());
    return (*job)->id;
  }();
  only({"--state", "dead"}, gone);
  EXPECT_EQ(emq({"job", "ls", "jobs", "--json"}).out, "[]\n");
}

TEST_F(ToolJob, LimitsItsListAndSaysSo) {
  for (int index = 0; index < 5; ++index) {
    (void)add("x");
  }
  const ToolResult result = emq({"job", "ls", "jobs", "-n", "2"});
  EXPECT_EQ(std::ranges::count(result.out, '\n'), 2);
  EXPECT_THAT(result.err, HasSubstr("3 more"));
}

TEST_F(ToolJob, RetriesDeadJobs) {
  const JobId first = dead("a");
  const JobId second = dead("b");
  EXPECT_EQ(emq({"job", "retry", "jobs", text(first)}).exit_code, 0);
  EXPECT_EQ(field(first, "state"), "pending");
  EXPECT_EQ(emq({"job", "retry", "jobs", text(first)}).exit_code, 5);
  EXPECT_EQ(emq({"job", "retry", "jobs", "JOB0KHTOWnGLuC"}).exit_code, 3);
  const ToolResult all = emq({"job", "retry", "jobs", "--all-dead", "--json"});
  EXPECT_EQ(all.exit_code, 0) << all.err;
  const auto value = json_of(all.out);
  ASSERT_EQ(value.as_array().size(), 1U);
  EXPECT_EQ(value.at(0).at("id").as_string(), second.text());
  EXPECT_EQ(value.at(0).at("result"), "pending");
  EXPECT_EQ(counts().dead, 0);
  EXPECT_EQ(emq({"job", "retry", "jobs"}).exit_code, 2);
}

TEST_F(ToolJob, RemovesJobs) {
  const JobId first = add("a");
  const JobId second = add("b");
  const ToolResult result = emq({"job", "rm", "jobs", text(first), "JOB0KHTOWnGLuC", text(second), "--json"});
  EXPECT_EQ(result.exit_code, 3);
  const auto value = json_of(result.out);
  EXPECT_EQ(value.at(0).at("result"), "removed");
  EXPECT_EQ(value.at(1).at("result"), "job_gone");
  EXPECT_EQ(value.at(2).at("result"), "removed");
  EXPECT_EQ(counts().pending, 0);
}

TEST_F(ToolJob, ALockedJobIsRefused) {
  const JobId id = add("a");
  ASSERT_TRUE(client().command("SET", "emq:{jobs}:job:" + text(id) + ":lock", "1").get());
  EXPECT_EQ(emq({"job", "rm", "jobs", text(id)}).exit_code, 5);
  EXPECT_EQ(counts().pending, 1);
}

TEST_F(ToolJob, AbsentJobsAreNotFound) {
  const ToolResult result = emq({"job", "show", "jobs", "JOB0KHTOWnGLuC", "--json"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(json_of(result.err).at("error").at("code"), "job_gone");
  EXPECT_EQ(emq({"job", "show", "jobs", "12"}).exit_code, 2);
  EXPECT_EQ(emq({"job", "ls", "jobs", "--state", "waiting"}).exit_code, 2);
  EXPECT_EQ(emq({"job"}).exit_code, 2);
}

class ToolQueue : public ToolJob {};

TEST_F(ToolQueue, ListsAllQueuesWithoutKeys) {
  (void)add("x");
  ASSERT_TRUE(queue("other.queue").enqueue("y").get());
  ASSERT_TRUE(queue("paused-queue").pause().get());
  ASSERT_TRUE(client().command("SET", "emq:{bad name}:pending", "1").get());
  ASSERT_TRUE(client().command("SET", "unrelated", "1").get());
  ASSERT_TRUE(client().command("CONFIG", "RESETSTAT").get());
  const ToolResult result = emq({"queue", "ls", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto value = json_of(result.out);
  std::set<std::string> names;
  for (const auto& row : value.as_array()) {
    names.emplace(row.at("queue").as_string());
  }
  EXPECT_EQ(names, (std::set<std::string>{"jobs", "other.queue", "paused-queue"}));
  EXPECT_EQ(value.at(0).at("pending"), 1);
  EXPECT_EQ(value.at(2).at("paused"), true);
  const auto stats = client().command("INFO", "commandstats").get();
  ASSERT_TRUE(stats);
  EXPECT_THAT(std::string(*stats->as_text()), Not(HasSubstr("cmdstat_keys")));
  EXPECT_THAT(emq({"queue", "ls"}).out, HasSubstr("other.queue"));
}

TEST_F(ToolQueue, NoQueuesAreAnEmptyList) {
  EXPECT_EQ(emq({"queue", "ls", "--json"}).out, "[]\n");
  EXPECT_EQ(emq({"queue", "ls"}).exit_code, 0);
}

TEST_F(ToolQueue, CountsOneQueueAndItsLanes) {
  (void)add("x");
  (void)add("x", {.in = 1h});
  (void)add("x", {.lane = LaneId{"USR0KHTOWnGLuC"}});
  (void)add("x", {.lane = LaneId{"USR0NgWEfAEJfs"}});
  ASSERT_TRUE(queue().pause_lane(LaneId{"USR0NgWEfAEJfs"}).get());
  const auto value = json_of(emq({"queue", "stats", "jobs", "--json"}).out);
  EXPECT_EQ(value.at("pending"), 1);
  EXPECT_EQ(value.at("scheduled"), 1);
  EXPECT_EQ(value.at("active"), 0);
  EXPECT_EQ(value.at("completed"), 0);
  EXPECT_EQ(value.at("paused"), false);
  ASSERT_EQ(value.at("lanes").as_array().size(), 2U);
  EXPECT_EQ(value.at("lanes").at(0).at("lane"), "USR0KHTOWnGLuC");
  EXPECT_EQ(value.at("lanes").at(0).at("pending"), 1);
  EXPECT_EQ(value.at("lanes").at(1).at("paused"), true);
  EXPECT_THAT(emq({"queue", "stats", "jobs"}).out, HasSubstr("scheduled           1"));
}

TEST_F(ToolQueue, PausesAndResumes) {
  (void)add("x");
  EXPECT_EQ(emq({"queue", "pause", "jobs"}).exit_code, 0);
  EXPECT_FALSE(*queue().claim().get());
  EXPECT_EQ(json_of(emq({"queue", "resume", "jobs", "--json"}).out).at("paused"), false);
  EXPECT_TRUE(*queue().claim().get());
}

}  // namespace
}  // namespace echomq::test
