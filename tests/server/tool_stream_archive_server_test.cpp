// `emq stream archive`, `cat`, `grep` and `trim`.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "echomq/retention.hpp"
#include "echomq/stream.hpp"
#include "tool_fixture.hpp"

namespace echomq::test {
namespace {

class ToolStreamArchive : public ToolTest {
 protected:
  void SetUp() override {
    ToolTest::SetUp();
    char pattern[] = "/tmp/echomq-archive-XXXXXX";
    folder_ = ::mkdtemp(pattern);
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
    ToolTest::TearDown();
  }
  [[nodiscard]] Stream stream() { return client().stream(QueueName{"jobs"}, StreamName{"log"}); }
  void send(int count) {
    for (int i = 0; i < count; ++i) {
      const std::string text = "number " + std::to_string(sent_++);
      const Field fields[] = {{"text", text}, {"raw", std::string_view("\xff", 1)}};
      ASSERT_TRUE(stream().append(fields).get());
    }
  }
  static std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> out;
    for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
      out.push_back(text.substr(begin, end - begin));
    return out;
  }

  std::string folder_;
  int sent_ = 0;
};

TEST_F(ToolStreamArchive, FoldsOnceAndReadsBothAsOne) {
  send(30);
  const auto folded =
      emq({"--json", "stream", "archive", "jobs", "log", "--dir", folder_, "--once", "--keep-count", "5", "--exact"});
  ASSERT_EQ(folded.exit_code, 0) << folded.err;
  EXPECT_EQ(json_of(folded.out).at("folded"), 30);
  EXPECT_EQ(json_of(folded.out).at("trimmed"), 25);
  send(3);
  const auto all = emq({"stream", "cat", "jobs", "log", "--dir", folder_, "--json"});
  ASSERT_EQ(all.exit_code, 0) << all.err;
  const auto lines = lines_of(all.out);
  ASSERT_EQ(lines.size(), 33U);
  for (int i = 0; i < 33; ++i) {
    const auto record = json_of(lines[static_cast<std::size_t>(i)]);
    EXPECT_EQ(std::string_view(record.at("fields").at(0).at(1).as_string()), "number " + std::to_string(i));
    EXPECT_EQ(record.at("fields").at(1).at(1).at("base64"), "/w==");
  }
  EXPECT_EQ(lines_of(emq({"stream", "cat", "jobs", "log"}).out).size(), 8U) << "the live stream alone";
  // The archive alone needs no server.
  const auto offline = run_tool({"stream", "cat", "jobs", "log", "--dir", folder_, "--offline", "-r", "-n", "2"});
  ASSERT_EQ(offline.exit_code, 0) << offline.err;
  const auto newest = lines_of(offline.out);
  ASSERT_EQ(newest.size(), 2U);
  EXPECT_NE(newest[0].find("text=number 29"), std::string::npos);
  EXPECT_NE(newest[1].find("text=number 28"), std::string::npos);
  const auto sound = run_tool({"stream", "archive", "jobs", "log", "--dir", folder_, "--verify"});
  EXPECT_EQ(sound.exit_code, 0) << sound.out;
}

TEST_F(ToolStreamArchive, ReadsByTimeAndBehindAnId) {
  send(5);
  const std::string third(stream().read().get()->records.at(2).id->text());
  EXPECT_EQ(lines_of(emq({"stream", "cat", "jobs", "log", "--after", third}).out).size(), 2U);
  EXPECT_EQ(lines_of(emq({"stream", "cat", "jobs", "log", "--since", "10m"}).out).size(), 5U);
  EXPECT_EQ(lines_of(emq({"stream", "cat", "jobs", "log", "--until", "10m"}).out).size(), 0U);
  EXPECT_EQ(lines_of(emq({"stream", "cat", "jobs", "log", "--since", "2026-01-01T00:00:00Z"}).out).size(), 5U);
  EXPECT_EQ(emq({"stream", "cat", "jobs", "log", "--since", "tomorrow"}).exit_code, 2);
  EXPECT_EQ(emq({"stream", "cat", "jobs", "log", "--after", "nonsense"}).exit_code, 2);
}

TEST_F(ToolStreamArchive, FindsRecords) {
  send(30);
  ASSERT_EQ(
      emq({"stream", "archive", "jobs", "log", "--dir", folder_, "--once", "--keep-count", "0", "--exact"}).exit_code,
      0);
  send(5);
  const auto grep = [&](std::vector<std::string> arguments) {
    std::vector<std::string> words = {"stream", "grep"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    for (const char* const word : {"jobs", "log", "--dir"})
      words.emplace_back(word);
    words.push_back(folder_);
    return emq(words);
  };
  EXPECT_EQ(lines_of(grep({"number 1.$"}).out).size(), 10U);
  EXPECT_EQ(grep({"-c", "text=number 3"}).out, "6\n") << "3 and 30 to 34, in the files and on the stream";
  EXPECT_EQ(grep({"-F", "-c", "number 1.$"}).exit_code, 3);
  EXPECT_EQ(grep({"-i", "-c", "NUMBER 7"}).out, "1\n");
  EXPECT_EQ(grep({"-c", "--field", "text", "^number 7$"}).out, "1\n");
  EXPECT_EQ(grep({"-c", "--field", "raw", "number"}).exit_code, 3);
  EXPECT_EQ(grep({"("}).exit_code, 2);
}

TEST_F(ToolStreamArchive, TrimsOnceOrForTheFleet) {
  send(20);
  EXPECT_EQ(emq({"stream", "trim", "jobs", "log"}).exit_code, 2) << "nothing said of what is kept";
  const auto trimmed = emq({"stream", "trim", "jobs", "log", "--keep-count", "15", "--exact", "--json"});
  EXPECT_EQ(json_of(trimmed.out).at("removed"), 5);
  ASSERT_TRUE(client().command("XGROUP", "CREATE", "emq:{jobs}:stream:log", "g", "0").get());
  const auto held = emq({"stream", "trim", "jobs", "log", "--keep-count", "1", "--exact", "--groups", "g", "--json"});
  EXPECT_EQ(json_of(held.out).at("held_by"), "groups");
  EXPECT_EQ(emq({"stream", "trim", "jobs", "log", "--show"}).exit_code, 3);
  ASSERT_EQ(emq({"stream", "trim", "jobs", "log", "--keep-age", "2h", "--keep-bytes", "1kb", "--groups", "all",
                 "--hard-count", "9", "--store"})
                .exit_code,
            0);
  EXPECT_EQ(emq({"stream", "trim", "jobs", "log", "--show"}).out,
            "{\"keep\":{\"age_ms\":7200000,\"bytes\":1024},\"hard\":{\"count\":9},\"groups\":\"all\"}\n");
  EXPECT_TRUE(get_retention(stream()).get().value());
  EXPECT_EQ(emq({"stream", "trim", "jobs", "log", "--clear"}).exit_code, 0);
  EXPECT_FALSE(get_retention(stream()).get().value());
}

TEST_F(ToolStreamArchive, AFailureOnTheWayIsToldAndIsTheExitCode) {
  send(10);
  Tool tool({"stream", "archive", "jobs", "log", "--dir", folder_, "--every", "20ms", "--json"}, {},
            {{"EMQ_URL", url()}});
  EXPECT_TRUE(comes_true([&] {
    const auto mark = stream().archived().get();
    return mark && *mark;
  }));
  // What counts as archived is damaged: nothing can be folded any more.
  for (const auto& file : std::filesystem::directory_iterator(folder_)) {
    if (file.path().extension() == ".zst")
      std::filesystem::resize_file(file.path(), std::filesystem::file_size(file.path()) - 1);
  }
  send(1);
  EXPECT_TRUE(comes_true([&] { return tool.err().find("watermark") != std::string::npos; })) << tool.err();
  tool.signal(SIGTERM);
  const auto ended = tool.wait();
  EXPECT_EQ(ended.exit_code, 1) << ended.out;
  EXPECT_GE(json_of(ended.out).at("errors").as_int64(), 1);
  const auto said = lines_of(ended.err);
  ASSERT_GE(said.size(), 2U) << ended.err;
  EXPECT_EQ(json_of(said.front()).at("warning").at("code"), "stream.archive_failed");
  EXPECT_EQ(json_of(said.back()).at("error").at("code"), "archive_broken");
}

TEST_F(ToolStreamArchive, VerifyKnowsWhatTheServerCountsAsArchived) {
  for (int round = 0; round < 3; ++round) {
    send(10);
    ASSERT_EQ(emq({"stream", "archive", "jobs", "log", "--dir", folder_, "--once", "--segment-bytes", "1"}).exit_code,
              0);
  }
  const std::vector<std::string> verify = {"stream", "archive", "jobs", "log", "--dir", folder_, "--verify", "--json"};
  const auto whole = emq(verify);
  EXPECT_EQ(whole.exit_code, 0) << whole.out;
  EXPECT_EQ(json_of(whole.out).at("watermark").as_string(), std::string(stream().archived().get().value()->text()));
  // The newest file is gone: what is left is sound by itself.
  std::vector<std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(folder_)) {
    if (file.path().extension() == ".zst")
      files.push_back(file.path().string());
  }
  ASSERT_EQ(files.size(), 3U);
  std::filesystem::remove(*std::ranges::max_element(files));
  const auto lost = emq(verify);
  EXPECT_EQ(lost.exit_code, 1) << lost.out;
  EXPECT_EQ(json_of(lost.out).at("faults").as_array().size(), 1U);
  EXPECT_EQ(json_of(lost.out).at("records"), 20);
  auto offline = verify;
  offline.emplace_back("--offline");
  EXPECT_EQ(emq(offline).exit_code, 0);
  const auto unreachable = run_tool(verify, {}, {{"EMQ_URL", "valkey://127.0.0.1:1"}});
  EXPECT_EQ(unreachable.exit_code, 0);
  EXPECT_EQ(json_of(unreachable.err).at("warning").at("code"), "watermark_not_compared");
}

TEST_F(ToolStreamArchive, AnArchiveOfAnotherStreamIsRefused) {
  send(3);
  ASSERT_EQ(emq({"stream", "archive", "jobs", "log", "--dir", folder_, "--once"}).exit_code, 0);
  const Field field{"k", "v"};
  ASSERT_TRUE(client().stream("jobs", "other").append({&field, 1}).get());
  EXPECT_EQ(emq({"stream", "archive", "jobs", "other", "--dir", folder_, "--once"}).exit_code, 1);
  EXPECT_EQ(emq({"stream", "archive", "jobs", "other", "--dir", folder_, "--verify"}).exit_code, 1);
  EXPECT_EQ(emq({"stream", "cat", "jobs", "other", "--dir", folder_}).exit_code, 1);
  const auto offline = run_tool({"stream", "cat", "jobs", "other", "--dir", folder_, "--offline", "--json"});
  EXPECT_EQ(offline.exit_code, 1);
  EXPECT_EQ(offline.out, "");
  EXPECT_EQ(json_of(offline.err).at("error").at("code"), "archive_broken");
}

TEST_F(ToolStreamArchive, WhatWouldBePassedOverIsRefused) {
  send(5);
  const auto refused = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "stream");
    return emq(arguments).exit_code == 2;
  };
  EXPECT_TRUE(refused({"archive", "jobs", "log", "--dir", folder_, "--once", "--groups", "g"}));
  EXPECT_TRUE(refused({"archive", "jobs", "log", "--dir", folder_, "--once", "--exact"}));
  EXPECT_TRUE(refused({"archive", "jobs", "log", "--dir", folder_, "--verify", "--once"}));
  EXPECT_TRUE(refused({"archive", "jobs", "log", "--dir", folder_, "--verify", "--keep-count", "1"}));
  EXPECT_TRUE(refused({"archive", "jobs", "log", "--dir", folder_, "--once", "--offline"}));
  EXPECT_TRUE(refused({"trim", "jobs", "log", "--show", "--clear"}));
  EXPECT_TRUE(refused({"trim", "jobs", "log", "--show", "--keep-count", "1"}));
  EXPECT_TRUE(refused({"trim", "jobs", "log", "--clear", "--store"}));
  EXPECT_TRUE(refused({"trim", "jobs", "log", "--clear", "--keep-age", "1h"}));
  EXPECT_EQ(stream().length().get().value(), 5U);
}

TEST_F(ToolStreamArchive, AStreamThatIsNotThereIsThree) {
  EXPECT_EQ(emq({"stream", "cat", "jobs", "log"}).exit_code, 3);
  EXPECT_EQ(emq({"stream", "cat", "jobs", "log", "--dir", folder_}).exit_code, 3);
  EXPECT_EQ(emq({"stream", "trim", "jobs", "log", "--keep-count", "1"}).exit_code, 3);
  send(3);
  EXPECT_EQ(emq({"stream", "cat", "jobs", "log", "--until", "10m"}).exit_code, 0) << "it is there";
  EXPECT_EQ(emq({"stream", "trim", "jobs", "log", "--keep-count", "5"}).exit_code, 0);
  ASSERT_EQ(emq({"stream", "archive", "jobs", "log", "--dir", folder_, "--once"}).exit_code, 0);
  ASSERT_TRUE(client().command("DEL", "emq:{jobs}:stream:log").get());
  EXPECT_EQ(emq({"stream", "cat", "jobs", "log", "--dir", folder_, "--until", "10m"}).exit_code, 0) << "its archive is";
}

TEST_F(ToolStreamArchive, RunsUntilItIsAskedToEnd) {
  send(10);
  Tool tool({"stream", "archive", "jobs", "log", "--dir", folder_, "--every", "50ms", "--json"}, {},
            {{"EMQ_URL", url()}});
  const auto archived_all = [&] {
    const auto mark = stream().archived().get();
    const auto newest = stream().read("-", "+", {.count = 1, .direction = Direction::newest_first}).get();
    return mark && *mark && newest && !newest->records.empty() && **mark == *newest->records[0].id;
  };
  EXPECT_TRUE(comes_true(archived_all));
  const auto second = emq({"stream", "archive", "jobs", "log", "--dir", folder_, "--once"});
  EXPECT_EQ(second.exit_code, 5) << second.err;
  send(10);
  EXPECT_TRUE(comes_true(archived_all));
  tool.signal(SIGTERM);
  const auto ended = tool.wait();
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(json_of(ended.out).at("folded"), 20);
  EXPECT_EQ(emq({"stream", "archive", "jobs", "log", "--dir", folder_, "--once"}).exit_code, 0)
      << "the lease was given back";
}

}  // namespace
}  // namespace echomq::test
