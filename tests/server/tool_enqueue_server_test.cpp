// `emq enqueue`: where payloads come from, what becomes of them, and what is refused before anything is written.
#include <sys/stat.h>

#include <csignal>
#include <fstream>

#include "tool_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ToolEnqueue : public ToolTest {};

TEST_F(ToolEnqueue, PrintsTheIdOfAPayload) {
  const ToolResult result = emq({"enqueue", "jobs", "hello"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  ASSERT_EQ(result.out.size(), 15U);
  const auto id = JobId::parse(result.out.substr(0, 14));
  ASSERT_TRUE(id);
  EXPECT_EQ(field(*id, "payload"), "hello");
}

TEST_F(ToolEnqueue, JsonNamesQueueIdAndVerdict) {
  const ToolResult result = emq({"enqueue", "jobs", "[1,{\"a\":2}]", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto value = json_of(result.out);
  EXPECT_EQ(value.at("queue"), "jobs");
  EXPECT_EQ(value.at("verdict"), "enqueued");
  EXPECT_EQ(field(*JobId::parse(std::string(value.at("id").as_string())), "payload"), "[1,{\"a\":2}]");
}

TEST_F(ToolEnqueue, WordsThatAreCommandsAreQueuesAndPayloadsToo) {
  EXPECT_EQ(emq({"enqueue", "work", "dev"}).exit_code, 0);
  EXPECT_EQ(emq({"enqueue", "work", "--", "--json"}).exit_code, 0);
  EXPECT_EQ(emq({"enqueue", "work", ""}).exit_code, 0);
  std::vector<std::string> payloads;
  for (int index = 0; index < 3; ++index) {
    const auto job = queue("work").claim().get();
    ASSERT_TRUE(job && *job);
    payloads.push_back((*job)->payload);
  }
  EXPECT_THAT(payloads, ElementsAre("dev", "--json", ""));
}

TEST_F(ToolEnqueue, BytesOfAFileAndOfAPipeStayAsTheyAre) {
  std::string bytes("\0\r\n\xff\x1b[31m tail\n", 15);
  const std::string path = server().folder() + "/payload";
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(emq({"enqueue", "jobs", "--file", path}).exit_code, 0);
  EXPECT_EQ(emq({"enqueue", "jobs"}, bytes).exit_code, 0);
  EXPECT_EQ(emq({"enqueue", "jobs", "-"}, bytes).exit_code, 0);
  EXPECT_THAT(take_all(), ElementsAre(bytes, bytes, bytes));
}

TEST_F(ToolEnqueue, AnEmptyPipeIsRefusedAndAnEmptyFileIsNot) {
  const ToolResult pipe = emq({"enqueue", "jobs"}, "");
  EXPECT_EQ(pipe.exit_code, 2);
  EXPECT_THAT(pipe.err, HasSubstr("empty"));
  EXPECT_EQ(counts().pending, 0);
  const std::string path = server().folder() + "/empty";
  std::ofstream(path).close();
  EXPECT_EQ(emq({"enqueue", "jobs", "--file", path}).exit_code, 0);
  EXPECT_EQ(counts().pending, 1);
}

TEST_F(ToolEnqueue, OneJobALine) {
  const ToolResult result = emq({"enqueue", "jobs", "--lines"}, "first\nsecond\n\nlast without an end");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "4 enqueued\n");
  EXPECT_THAT(take_all(), ElementsAre("first", "second", "", "last without an end"));
}

TEST_F(ToolEnqueue, NoLinesAreNoJobs) {
  const ToolResult result = emq({"enqueue", "jobs", "--lines", "--json"}, "");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json_of(result.out).at("enqueued"), 0);
}

TEST_F(ToolEnqueue, LinesMayEndWithNul) {
  EXPECT_EQ(emq({"enqueue", "jobs", "--lines", "--null"}, std::string("a\nb\0c\0", 6)).exit_code, 0);
  EXPECT_THAT(take_all(), ElementsAre("a\nb", "c"));
}

TEST_F(ToolEnqueue, ManyLinesKeepTheirOrder) {
  constexpr int kLines = 50'000;
  std::string input;
  for (int line = 0; line < kLines; ++line) {
    input += std::to_string(line) + "\n";
  }
  const ToolResult result = emq({"enqueue", "jobs", "--lines", "--print-ids"}, input);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(counts().pending, kLines);
  // The ids are those of the lines, one each.
  for (const int line : {0, 1, 999, 1000, 31'415, kLines - 1}) {
    const auto id = JobId::parse(result.out.substr(static_cast<std::size_t>(line) * 15, 14));
    ASSERT_TRUE(id);
    EXPECT_EQ(field(*id, "payload"), std::to_string(line));
  }
}

TEST_F(ToolEnqueue, AHugeLineIsOneJob) {
  const std::string huge(20'000'000, 'x');
  const ToolResult result = emq({"enqueue", "jobs", "--lines"}, "small\n" + huge + "\nsmall\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto payloads = take_all();
  ASSERT_EQ(payloads.size(), 3U);
  EXPECT_EQ(payloads[1].size(), huge.size());
  EXPECT_TRUE(payloads[1] == huge);
}

TEST_F(ToolEnqueue, LaterByDurationAndByInstant) {
  const auto now = std::chrono::time_point_cast<Milliseconds>(std::chrono::system_clock::now());
  EXPECT_EQ(emq({"enqueue", "jobs", "a", "--in", "1h"}).exit_code, 0);
  EXPECT_EQ(emq({"enqueue", "jobs", "b", "--at", "2099-07-02T09:30:00+02:00"}).exit_code, 0);
  EXPECT_EQ(emq({"enqueue", "jobs", "--lines", "--at", "4086660600001"}, "c\n").exit_code, 0);
  const auto listed = json_of(emq({"job", "ls", "jobs", "--state", "scheduled", "--json"}).out);
  ASSERT_EQ(listed.as_array().size(), 3U);
  EXPECT_EQ(listed.at(1).at("due"), "2099-07-02T07:30:00.000Z");
  EXPECT_EQ(listed.at(2).at("due"), "2099-07-02T07:30:00.001Z");
  const auto scores = client().command("ZRANGE", "emq:{jobs}:schedule", "0", "0", "WITHSCORES").get();
  ASSERT_TRUE(scores);
  const Value& first = (*scores)[0].is_aggregate() ? (*scores)[0][1] : (*scores)[1];
  EXPECT_NEAR(first.as_double().value_or(0), static_cast<double>((now + 1h).time_since_epoch().count()), 5000);
}

TEST_F(ToolEnqueue, AnIdIsAdmittedOnce) {
  const std::string id = "JOB0KHTOWnGLuC";
  EXPECT_EQ(emq({"enqueue", "jobs", "first", "--id", id}).out, id + "\n");
  const ToolResult again = emq({"enqueue", "jobs", "second", "--id", id, "--json"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(json_of(again.out).at("verdict"), "duplicate");
  EXPECT_EQ(field(JobId{"JOB0KHTOWnGLuC"}, "payload"), "first");
}

TEST_F(ToolEnqueue, ALaneIsServedAsALane) {
  EXPECT_EQ(emq({"enqueue", "jobs", "x", "--lane", "USR0KHTOWnGLuC"}).exit_code, 0);
  EXPECT_EQ(emq({"enqueue", "jobs", "--lines", "--lane", "USR0KHTOWnGLuC"}, "y\nz\n").exit_code, 0);
  EXPECT_EQ(counts().pending, 0);
  EXPECT_EQ(*queue().lane_depth(LaneId{"USR0KHTOWnGLuC"}).get(), 3);
  EXPECT_EQ((*queue().claim_lane().get())->payload, "x");
}

TEST_F(ToolEnqueue, HowAJobIsRunIsKeptInItsRow) {
  constexpr std::string_view kTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const ToolResult one =
      emq({"enqueue", "jobs", "x", "--max-attempts", "7", "--backoff", "fixed:250:jitter", "--timeout", "30s",
           "--expire", "1h", "--keep", "10m", "--traceparent", std::string(kTrace)});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const JobId id = JobId::parse(one.out.substr(0, 14)).value();
  EXPECT_EQ(field(id, "max_attempts"), "7");
  EXPECT_EQ(field(id, "backoff"), "fixed:250:jitter");
  EXPECT_EQ(field(id, "timeout"), "30000");
  EXPECT_EQ(field(id, "keep"), "600000");
  EXPECT_EQ(field(id, "traceparent"), kTrace);
  const auto now = std::chrono::time_point_cast<Milliseconds>(std::chrono::system_clock::now());
  EXPECT_NEAR(std::stod(field(id, "expires_at")), static_cast<double>((now + 1h).time_since_epoch().count()), 20000);
  const ToolResult lines = emq({"enqueue", "jobs", "--lines", "--print-ids", "--keep", "5s"}, "a\nb\n");
  ASSERT_EQ(lines.exit_code, 0) << lines.err;
  EXPECT_EQ(field(JobId::parse(lines.out.substr(0, 14)).value(), "keep"), "5000");
  EXPECT_EQ(field(JobId::parse(lines.out.substr(15, 14)).value(), "keep"), "5000");
}

TEST_F(ToolEnqueue, BadInputIsToldAndWritesNothing) {
  struct Row {
    std::vector<std::string> arguments;
    std::string_view named;
  };
  const std::vector<Row> rows = {
      {{"enqueue"}, "QUEUE"},
      {{"enqueue", "two words", "x"}, "two words"},
      {{"enqueue", "emq", "x"}, "emq"},
      {{"enqueue", "", "x"}, ""},
      {{"enqueue", std::string(129, 'q'), "x"}, "qqq"},
      {{"enqueue", "jobs", "x", "--in", "soon"}, "soon"},
      {{"enqueue", "jobs", "x", "--max-attempts", "0"}, "max_attempts must be 1 or more, got 0"},
      {{"enqueue", "jobs", "x", "--max-attempts", "-1"}, "-1"},
      {{"enqueue", "jobs", "x", "--backoff", "linear:3"}, "linear:3"},
      {{"enqueue", "jobs", "x", "--timeout", "0"}, "timeout must be 1ms"},
      {{"enqueue", "jobs", "x", "--in", "2h", "--expire", "1h"}, "expire must be more than in"},
      {{"enqueue", "jobs", "x", "--keep", "long"}, "long"},
      {{"enqueue", "jobs", "x", "--traceparent", "nope"}, "nope"},
      {{"enqueue", "jobs", "x", "--in", "-5s"}, "-5s"},
      {{"enqueue", "jobs", "x", "--in", "5"}, "5"},
      {{"enqueue", "jobs", "x", "--in", "5parsecs"}, "5parsecs"},
      {{"enqueue", "jobs", "x", "--in", "99999999999d"}, "100 years"},
      {{"enqueue", "jobs", "x", "--at", "tomorrow"}, "tomorrow"},
      {{"enqueue", "jobs", "x", "--at", "5s"}, "--in"},
      {{"enqueue", "jobs", "x", "--at", "2026-02-30T00:00:00Z"}, "2026-02-30"},
      {{"enqueue", "jobs", "x", "--at", "2026-07-02T09:30:00"}, "2026-07-02"},
      {{"enqueue", "jobs", "x", "--at", "1782984600"}, "milliseconds"},
      {{"enqueue", "jobs", "x", "--in", "5s", "--at", "2026-07-02T09:30:00Z"}, "--at"},
      {{"enqueue", "jobs", "x", "--id", "42"}, "42"},
      {{"enqueue", "jobs", "x", "--id", "USR0KHTOWnGLuC"}, "USR0KHTOWnGLuC"},
      {{"enqueue", "jobs", "x", "--lane", "fast"}, "fast"},
      {{"enqueue", "jobs", "x", "--file", "/etc/hostname"}, "--file"},
      {{"enqueue", "jobs", "--file", "/nowhere/at/all"}, "/nowhere/at/all"},
      {{"enqueue", "jobs", "--file", "/"}, "/"},
      {{"enqueue", "jobs", "x", "--lines"}, "--lines"},
      {{"enqueue", "jobs", "--lines", "--id", "JOB0KHTOWnGLuC"}, "--id"},
      {{"enqueue", "jobs", "--null"}, "--null"},
      {{"enqueue", "jobs", "x", "y"}, "y"},
      {{"enqueue", "jobs", "x", "--colour", "red"}, "--colour"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(::testing::PrintToString(row.arguments));
    const ToolResult result = emq(row.arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr(row.named));

    std::vector<std::string> arguments = row.arguments;
    arguments.emplace_back("--json");
    const ToolResult json = emq(arguments);
    EXPECT_EQ(json.exit_code, 2);
    EXPECT_EQ(json_of(json.err).at("error").at("exit"), 2);
  }
  const auto keys = client().command("KEYS", "emq:{*").get();
  ASSERT_TRUE(keys);
  EXPECT_EQ(keys->size(), 0U) << keys->to_string();
}

TEST_F(ToolEnqueue, AFullServerRefusesAndSaysHowFarItGot) {
  ASSERT_TRUE(client().command("CONFIG", "SET", "maxmemory", "6mb").get());
  std::string input;
  for (int line = 0; line < 3000; ++line) {
    input += std::string(10'000, 'x') + "\n";
  }
  const ToolResult result = emq({"enqueue", "jobs", "--lines"}, input);
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_THAT(result.err, HasSubstr("from line "));
  // The count that is told is that of the jobs.
  EXPECT_EQ(result.out, std::to_string(counts().pending) + " enqueued\n");
}

TEST_F(ToolEnqueue, AnInterruptEndsTheReadingAndTellsHowFar) {
  // A pipe that gives two lines and then nothing: a shell holds it open.
  const std::string fifo = server().folder() + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  Tool tool({"enqueue", "jobs", "--lines", "--file", fifo}, {}, {{"EMQ_URL", url()}});
  std::ofstream writer(fifo);
  writer << "a\nb\n" << std::flush;
  ASSERT_TRUE(comes_true([&] { return counts().pending == 2; }));
  tool.signal(SIGINT);
  const ToolResult result = tool.wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "2 enqueued\n");
  EXPECT_THAT(result.err, HasSubstr("interrupted"));
}

}  // namespace
}  // namespace echomq::test
