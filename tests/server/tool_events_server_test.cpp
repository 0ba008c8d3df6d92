// `emq events tail` and `emq job cancel`.
#include "echomq/event_log.hpp"
#include "tool_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::HasSubstr;

class ToolEvents : public ToolTest {
 protected:
  /// Publishes until the tool, which may not listen yet, has ended or printed a line.
  void publish_until_heard(const Tool& tool, std::string_view event, const JobId& id) {
    const auto extra = std::vector<std::pair<std::string_view, std::string_view>>{{"error", "esc \x1b[2J"}};
    EXPECT_TRUE(comes_true([&] {
      (void)queue().publish(event, id, extra).get();
      return !tool.out().empty();
    }));
  }
};

TEST_F(ToolEvents, TailsAQueue) {
  const JobId id = add("x");
  Tool tool({"events", "tail", "--queue", "jobs", "--count", "1"}, {}, {{"EMQ_URL", url()}});
  publish_until_heard(tool, "failed", id);
  const ToolResult result = tool.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(" jobs failed " + std::string(id.text()) + " error=esc \\x1b[2J\n"));
  EXPECT_THAT(result.err, HasSubstr("listening to 1 queue"));
}

TEST_F(ToolEvents, TailsWhatThereIsAsJson) {
  const JobId id = add("x");
  Tool tool({"events", "tail", "-n", "1", "--json"}, {}, {{"EMQ_URL", url()}});
  publish_until_heard(tool, "completed", id);
  const ToolResult result = tool.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto value = json_of(result.out);
  EXPECT_EQ(value.at("queue"), "jobs");
  EXPECT_EQ(value.at("event"), "completed");
  EXPECT_EQ(value.at("job").as_string(), id.text());
  EXPECT_TRUE(value.at("extra").as_object().contains("error"));
}

TEST_F(ToolEvents, SaysWhenThereIsNoQueue) {
  EXPECT_EQ(emq({"events", "tail"}).exit_code, 3);
  EXPECT_EQ(emq({"events", "tail", "--queue", "no queue"}).exit_code, 2);
}

TEST_F(ToolEvents, KeepsALogAndReadsIt) {
  ToolResult result = emq({"events", "keep", "jobs", "--most", "1000", "--age", "7d", "--claims"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "jobs: on\n");
  const JobId first = add("a");
  const JobId second = add("b");
  ASSERT_TRUE(queue().claim().get().value());
  result = emq({"events", "log", "jobs"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(" opened\n"));
  EXPECT_THAT(result.out, HasSubstr(" added " + std::string(second.text()) + " attempts=0\n"));
  EXPECT_THAT(result.out, HasSubstr(" active " + std::string(first.text()) + " attempts=1\n"));
  result = emq({"events", "log", "jobs", "--since", "1h", "-n", "2", "--json"});
  const std::string last = result.out.substr(result.out.find('\n') + 1);
  const auto value = json_of(last);
  EXPECT_EQ(value.at("event"), "added");
  EXPECT_EQ(value.at("job").as_string(), first.text());
  // Behind that one.
  const std::string cursor(value.at("cursor").as_string());
  EXPECT_THAT(cursor, HasSubstr(":2"));
  result = emq({"events", "log", "jobs", "--cursor", cursor, "-n", "1", "--follow", "--json"});
  EXPECT_EQ(json_of(result.out).at("job").as_string(), second.text());
  EXPECT_EQ(emq({"events", "log", "jobs", "--until", "1h"}).out, "");
  EXPECT_EQ(emq({"events", "keep", "jobs", "--off", "--json"}).exit_code, 0);
  result = emq({"events", "log", "jobs"});
  EXPECT_THAT(result.err, HasSubstr("the log of jobs is off"));
  EXPECT_EQ(emq({"events", "keep", "jobs", "--forget"}).out, "jobs: off, as before\n");
  EXPECT_EQ(emq({"events", "log", "jobs", "--cursor", "x"}).exit_code, 2);
}

TEST_F(ToolEvents, WhatIsNotNamedStaysAsItIs) {
  const EventLog log(client(), "jobs");
  ASSERT_EQ(emq({"events", "keep", "jobs", "--most", "1000", "--age", "7d", "--claims"}).exit_code, 0);
  ASSERT_EQ(emq({"events", "keep", "jobs", "--most", "500"}).exit_code, 0);
  LogInfo info = log.info().get().value();
  EXPECT_EQ(info.most, 500U);
  EXPECT_EQ(info.age, std::chrono::hours(7 * 24));
  EXPECT_TRUE(info.claims);
  ASSERT_EQ(emq({"events", "keep", "jobs", "--age", "any", "--no-claims"}).exit_code, 0);
  info = log.info().get().value();
  EXPECT_EQ(info.most, 500U);
  EXPECT_FALSE(info.age);
  EXPECT_FALSE(info.claims);
  EXPECT_EQ(emq({"events", "keep", "jobs", "--off", "--most", "5"}).exit_code, 2);
  EXPECT_EQ(emq({"events", "keep", "jobs", "--forget", "--claims"}).exit_code, 2);
  EXPECT_EQ(emq({"events", "keep", "jobs", "--claims", "--no-claims"}).exit_code, 2);
  EXPECT_TRUE(log.info().get().value().on);
}

TEST_F(ToolEvents, CancelsJobs) {
  const JobId running = add("a");
  const JobId waiting = add("b");
  ASSERT_TRUE(queue().claim().get().value());
  const JobId gone("JOB0NgWEfAE00A");
  const auto text = [](const JobId& id) { return std::string(id.text()); };
  ToolResult result = emq({"job", "cancel", "jobs", text(waiting), text(running)});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(text(waiting) + " cancelled\n"));
  EXPECT_THAT(result.out, HasSubstr(text(running) + " requested"));
  EXPECT_EQ(field(waiting, "last_error"), "cancelled");
  EXPECT_EQ(field(running, "cancel"), "1");
  result = emq({"job", "cancel", "jobs", text(gone), text(waiting), "--json"});
  EXPECT_EQ(result.exit_code, 3);
  const auto value = json_of(result.out);
  EXPECT_EQ(value.at(0).at("result"), "job_gone");
  EXPECT_EQ(value.at(1).at("result"), "cancelled");
  ASSERT_TRUE(queue().retry(running, Token(1), {.max_attempts = 1, .error = "broken"}).get());
  result = emq({"job", "cancel", "jobs", text(running)});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.out, HasSubstr("dead already"));
}

}  // namespace
}  // namespace echomq::test
