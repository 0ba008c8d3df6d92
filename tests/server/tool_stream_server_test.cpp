// `emq stream`.
#include "echomq/stream.hpp"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <set>

#include "support/proxy.hpp"
#include "tool_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::HasSubstr;

class ToolStream : public ToolTest {
 protected:
  [[nodiscard]] Stream stream() { return client().stream("orders", StreamName{"placed"}); }
  [[nodiscard]] static std::string line_of(std::string text) {
    EXPECT_TRUE(text.ends_with('\n'));
    return text.substr(0, text.find('\n'));
  }
  [[nodiscard]] std::string append(std::vector<std::string> fields) {
    std::vector<std::string> arguments = {"stream", "append", "orders", "placed"};
    arguments.insert(arguments.end(), fields.begin(), fields.end());
    const ToolResult result = emq(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return line_of(result.out);
  }
};

TEST_F(ToolStream, AppendsAndReads) {
  const std::string first = append({"customer=7", "note=a=b"});
  EXPECT_EQ(first.substr(0, 3), "EVT");
  const std::string second = append({"customer=8", "tag=x", "tag=y", std::string("raw=\xff\xfe")});
  ToolResult result = emq({"stream", "read", "orders", "placed", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  auto rows = json_of(result.out).as_array();
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].at("id"), first.c_str());
  EXPECT_EQ(rows[0].at("fields").at("note"), "a=b");
  EXPECT_EQ(rows[1].at("fields").at("tag"), (boost::json::array{"x", "y"}));
  EXPECT_EQ(rows[1].at("fields").at("raw_base64"), "//4=");
  result = emq({"stream", "read", "orders", "placed", "--after", first});
  EXPECT_THAT(result.out, HasSubstr(second + " customer=8 tag=x"));
  EXPECT_EQ(result.out.find(first), std::string::npos);
  result = emq({"stream", "read", "orders", "placed", "-r", "-n", "1"});
  EXPECT_THAT(result.out, HasSubstr(second));
  EXPECT_EQ(emq({"stream", "read", "orders", "placed", "--since", "1h"}).out.find("customer=7") != std::string::npos,
            true);
  EXPECT_EQ(emq({"stream", "read", "orders", "placed", "--until", "1h"}).out, "");
  EXPECT_EQ(emq({"stream", "read", "orders", "none", "--json"}).out, "[]\n");
  // Older than the top: refused, nothing written.
  EXPECT_EQ(emq({"stream", "append", "orders", "placed", "a=b", "--id", first}).exit_code, 5);
  EXPECT_EQ(emq({"stream", "append", "orders", "placed", "novalue"}).exit_code, 2);
  EXPECT_EQ(emq({"stream", "read", "orders", "placed", "--since", "soon"}).exit_code, 2);
  EXPECT_EQ(emq({"stream", "read", "no queue", "placed"}).exit_code, 2);
  EXPECT_EQ(stream().length().get().value_or(0), 2U);
}

TEST_F(ToolStream, AppendsTheLinesOfAPipeInTheirOrder) {
  std::string input;
  for (int i = 0; i < 10'000; ++i)
    input += "line " + std::to_string(i) + "\n";
  const ToolResult result = emq({"stream", "append", "orders", "placed", "--lines=text"}, input);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "10000 appended\n");
  int next = 0;
  auto page = stream().read().get();
  while (page) {
    for (const Record& record : page->records)
      ASSERT_EQ(*record.find("text"), "line " + std::to_string(next++));
    if (!page->rest)
      break;
    page = stream().read(page->rest->first, page->rest->second).get();
  }
  EXPECT_EQ(next, 10'000);
}

TEST_F(ToolStream, AnInterruptEndsTheReadingAndWhatIsToldStands) {
  std::string input;
  for (int i = 0; i < 1'000'000; ++i)
    input += std::to_string(i) + "\n";
  Tool tool({"stream", "append", "orders", "placed", "--lines"}, input, {{"EMQ_URL", url()}});
  ASSERT_TRUE(comes_true([&] {
    const auto info = stream().info().get();
    return info && info->length > 0;
  }));
  tool.signal(SIGINT);
  const ToolResult result = tool.wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("interrupted (nothing behind line "));
  const auto info = stream().info().get();
  ASSERT_TRUE(info);
  EXPECT_LT(info->length, 1'000'000U);
  EXPECT_EQ(result.out, std::to_string(info->length) + " appended\n");
}

// The server is full in the middle of them. Whatever it had taken by then, what is told is what stands.
TEST_F(ToolStream, TellsWhichLinesOfAPipeWereNotAppended) {
  const std::string padding(4'000, 'x');
  std::string input;
  for (int i = 1; i <= 12'000; ++i)
    input += std::to_string(i) + " " + padding + "\n";
  (void)append({"text=0 first"});
  const std::string info(client().command("INFO", "memory").get()->as_text().value_or(""));
  const auto used = std::stoll(info.substr(info.find("used_memory:") + 12));
  ASSERT_TRUE(client().command("CONFIG", "SET", "maxmemory", std::to_string(used + 10'000'000)).get());
  const ToolResult result = emq({"stream", "append", "orders", "placed", "--lines=text", "--json"}, input);
  ASSERT_TRUE(client().command("CONFIG", "SET", "maxmemory", "0").get());
  EXPECT_EQ(result.exit_code, 5) << result.err;
  const auto told = json_of(result.out);
  std::set<std::uint64_t> not_appended;
  for (const char* const kind : {"failed", "unknown"}) {
    std::uint64_t count = 0;
    for (const auto& range : told.at(std::string(kind) + "_lines").as_array()) {
      for (auto line = range.at(0).to_number<std::uint64_t>(); line <= range.at(1).to_number<std::uint64_t>(); ++line) {
        not_appended.insert(line);
        ++count;
      }
    }
    EXPECT_EQ(told.at(kind).to_number<std::uint64_t>(), count);
  }
  ASSERT_EQ(told.at("unknown"), 0) << "no answer was lost";
  const auto lines = told.at("lines").to_number<std::uint64_t>();
  EXPECT_LT(lines, 12'000U) << "nothing more is sent once one has failed";
  ASSERT_FALSE(not_appended.empty());
  EXPECT_EQ(told.at("appended").to_number<std::uint64_t>() + not_appended.size(), lines);
  std::set<std::uint64_t> stand;
  for (auto page = stream().read().get(); page; page = stream().read(page->rest->first, page->rest->second).get()) {
    for (const Record& record : page->records)
      stand.insert(std::stoull(*record.find("text")));
    if (!page->rest)
      break;
  }
  for (std::uint64_t line = 1; line <= 12'000; ++line)
    ASSERT_EQ(stand.contains(line), line <= lines && !not_appended.contains(line)) << line;
  const std::string message(json_of(result.err).at("error").at("message").as_string());
  EXPECT_THAT(message, HasSubstr("(line " + std::to_string(*not_appended.begin()) + ";"));
  EXPECT_THAT(message, HasSubstr("nothing behind line " + std::to_string(lines) + " was sent"));
}

TEST_F(ToolStream, WhatWasReadBeforeAFailureIsOneJsonValueAllTheSame) {
  const std::string value(1'000, 'v');
  std::vector<Reply<EventId>> sent;
  for (int i = 0; i < 3'000; ++i) {
    const Field field{"k", value};
    sent.push_back(stream().append({&field, 1}));
  }
  for (auto& one : sent)
    ASSERT_TRUE(one.get());
  // Behind the first page nothing comes any more.
  std::atomic<Proxy*> proxy = nullptr;
  std::uint64_t passed = 0;  // on the proxy's thread
  ProxyOptions options;
  options.tap = [&](std::uint64_t, Direction direction, std::string_view bytes) {
    passed += direction == Direction::to_client ? bytes.size() : 0;
    if (passed > 1'500'000) {
      proxy.load()->refuse_new(true);
      proxy.load()->cut();
    }
  };
  Proxy between(url(), std::move(options));
  proxy = &between;
  const ToolResult result =
      run_tool({"stream", "read", "orders", "placed", "-n", "0", "--json"}, {}, {{"EMQ_URL", between.url()}});
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_EQ(json_of(result.out).as_array().size(), 1'000U);
  EXPECT_THAT(result.err, HasSubstr("\"error\""));
}

// Whoever reads too slowly is waited for: the records stay on the server, not in the memory of the tool.
TEST_F(ToolStream, ATailWaitsForASlowReader) {
  constexpr int kRecords = 60'000;
  const std::string value(200, 'v');
  std::vector<Reply<EventId>> sent;
  for (int i = 0; i < kRecords; ++i) {
    const Field field{"k", value};
    sent.push_back(stream().append({&field, 1}));
  }
  for (auto& one : sent)
    ASSERT_TRUE(one.get());
  const auto pages = [&] {
    const std::string info(client().command("INFO", "commandstats").get()->as_text().value_or(""));
    std::int64_t calls = 0;
    for (const std::string before : {"cmdstat_xrange:calls=", "cmdstat_xread:calls="}) {
      const auto at = info.find(before);
      calls += at == std::string::npos ? 0 : std::stoll(info.substr(at + before.size()));
    }
    return calls;
  };
  const std::string command = "EMQ_URL=" + url() + " exec " + ECHOMQ_EMQ_PATH +
                              " stream tail orders placed --since head -n " + std::to_string(kRecords) + " 2>/dev/null";
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  // Without a bound it reads all 60,000 in a second or two.
  EXPECT_TRUE(comes_true([&] { return pages() >= 10; }));
  std::int64_t last = -1;
  for (int quiet = 0; quiet < 5;) {
    std::this_thread::sleep_for(200ms);
    const std::int64_t now = pages();
    quiet = now == last ? quiet + 1 : 0;
    last = now;
  }
  EXPECT_LE(last, 60) << "of the 120 that it takes to read all";
  std::string text;
  char piece[65536];
  for (std::size_t count; (count = std::fread(piece, 1, sizeof(piece), pipe)) > 0;)
    text.append(piece, count);
  EXPECT_EQ(::pclose(pipe), 0);
  EXPECT_EQ(std::ranges::count(text, '\n'), kRecords);
}

TEST_F(ToolStream, AStreamThatIsNotThereIsThree) {
  EXPECT_EQ(emq({"stream", "read", "orders", "placed"}).exit_code, 3);
  EXPECT_EQ(emq({"stream", "group", "list", "orders", "placed"}).exit_code, 3);
  (void)append({"n=1"});
  EXPECT_EQ(emq({"stream", "read", "orders", "placed", "--until", "1h"}).exit_code, 0);
  EXPECT_EQ(emq({"stream", "group", "list", "orders", "placed"}).exit_code, 0);
}

TEST_F(ToolStream, TellsWhatThereIs) {
  EXPECT_EQ(emq({"stream", "info", "orders", "placed"}).exit_code, 3);
  const std::string receipt = append({"a=b"});
  EXPECT_EQ(emq({"stream", "group", "create", "orders", "placed", "mail", "--from", "head"}).out, "created\n");
  ToolResult result = emq({"stream", "info", "orders", "placed", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto info = json_of(result.out);
  EXPECT_EQ(info.at("length"), 1);
  EXPECT_EQ(info.at("oldest"), info.at("top"));
  EXPECT_EQ(info.at("groups").at(0).at("group"), "mail");
  EXPECT_EQ(info.at("groups").at(0).at("lag"), 1);
  result = emq({"stream", "ls", "orders", "--json"});
  EXPECT_EQ(json_of(result.out).at(0).at("stream"), "placed") << result.err;
}

TEST_F(ToolStream, LooksAfterGroups) {
  const std::string first = append({"n=1"});
  (void)append({"n=2"});
  EXPECT_EQ(emq({"stream", "group", "create", "orders", "placed", "mail", "--from", first}).out, "created\n");
  EXPECT_THAT(emq({"stream", "group", "create", "orders", "placed", "mail"}).out, HasSubstr("there already"));
  const StreamGroup group = *stream().group("mail");
  auto entries = group.read_new("c1").get();
  ASSERT_TRUE(entries);
  ASSERT_EQ(entries->size(), 1U);
  EXPECT_EQ(*entries->front().record->find("n"), "2");
  ToolResult result = emq({"stream", "group", "pending", "orders", "placed", "mail", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json_of(result.out).at(0).at("consumer"), "c1");
  EXPECT_EQ(json_of(result.out).at(0).at("deliveries"), 1);
  EXPECT_EQ(emq({"stream", "group", "pending", "orders", "placed", "mail", "--idle", "1h", "--json"}).out, "[]\n");
  result = emq({"stream", "group", "consumers", "orders", "placed", "mail", "--json"});
  EXPECT_EQ(json_of(result.out).at(0).at("pending"), 1);
  // What is pending is not given up without a word.
  result = emq({"stream", "group", "remove", "orders", "placed", "mail", "--consumer", "c1"});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, HasSubstr("1 entries are pending"));
  EXPECT_EQ(emq({"stream", "group", "remove", "orders", "placed", "mail"}).exit_code, 5);
  // A name that was not set is not the whole group.
  EXPECT_EQ(emq({"stream", "group", "remove", "orders", "placed", "mail", "--consumer", "", "--force"}).exit_code, 2);
  EXPECT_EQ(emq({"stream", "group", "reset", "orders", "placed", "mail", "--to", "head"}).exit_code, 0);
  entries = group.read_new("c1").get();
  ASSERT_TRUE(entries);
  EXPECT_EQ(entries->size(), 2U);
  EXPECT_EQ(emq({"stream", "group", "reset", "orders", "placed", "mail", "--to", "1h"}).exit_code, 0);
  entries = group.read_new("c1").get();
  ASSERT_TRUE(entries);
  EXPECT_EQ(entries->size(), 2U) << "all of the last hour";
  EXPECT_EQ(emq({"stream", "group", "remove", "orders", "placed", "mail", "--consumer", "c2"}).exit_code, 3);
  EXPECT_EQ(emq({"stream", "group", "remove", "orders", "placed", "mail", "--consumer", "c1", "--force"}).exit_code, 0);
  EXPECT_EQ(emq({"stream", "group", "remove", "orders", "placed", "mail"}).out, "removed\n");
  EXPECT_EQ(emq({"stream", "group", "list", "orders", "placed", "--json"}).out, "[]\n");
  EXPECT_EQ(emq({"stream", "group", "remove", "orders", "placed", "mail"}).exit_code, 3);
  EXPECT_EQ(emq({"stream", "group", "reset", "orders", "placed", "mail", "--to", "head"}).exit_code, 3);
  EXPECT_EQ(emq({"stream", "group", "reset", "orders", "nothere", "mail", "--to", "head"}).exit_code, 3);
}

TEST_F(ToolStream, FollowsStreamsAndPatterns) {
  (void)append({"n=old"});
  Tool by_name({"stream", "tail", "orders", "placed", "sent", "-n", "2", "--json"}, {}, {{"EMQ_URL", url()}});
  // With --json nothing is said; it follows once it waits on the server, where nobody else does yet.
  EXPECT_TRUE(comes_true([&] {
    const auto list = client().command("CLIENT", "LIST").get();
    return list && list->as_text().value_or("").find("cmd=xread") != std::string_view::npos;
  }));
  Tool by_pattern({"stream", "tail", "orders", "--match", "eu.>", "-n", "2"}, {}, {{"EMQ_URL", url()}});
  Tool from_head({"stream", "tail", "orders", "placed", "--since", "head", "-n", "1"}, {}, {{"EMQ_URL", url()}});
  EXPECT_THAT(from_head.wait().out, HasSubstr("n=old"));
  EXPECT_TRUE(comes_true([&] { return by_pattern.err().find("following") != std::string::npos; }));
  std::this_thread::sleep_for(200ms);
  (void)append({"n=1"});
  EXPECT_EQ(emq({"stream", "append", "orders", "sent", "n=2"}).exit_code, 0);
  EXPECT_EQ(emq({"stream", "append", "orders", "eu.placed", "n=3", "--listed"}).exit_code, 0);
  EXPECT_EQ(emq({"stream", "append", "orders", "eu.sent", "n=4", "--listed"}).exit_code, 0);
  const ToolResult named = by_name.wait();
  EXPECT_EQ(named.exit_code, 0) << named.err;
  EXPECT_THAT(named.out, HasSubstr("\"n\":\"1\""));
  EXPECT_THAT(named.out, HasSubstr("\"stream\":\"sent\""));
  const ToolResult matched = by_pattern.wait();
  EXPECT_EQ(matched.exit_code, 0) << matched.err;
  EXPECT_THAT(matched.out, HasSubstr("eu.placed"));
  EXPECT_THAT(matched.out, HasSubstr("n=4"));
  EXPECT_EQ(emq({"stream", "tail", "orders"}).exit_code, 2);
  EXPECT_EQ(emq({"stream", "tail", "orders", "--match", "eu..x"}).exit_code, 2);
}

TEST_F(ToolStream, AppendsOnce) {
  const std::string first = append({"n=1", "--once", "request 7"});
  EXPECT_EQ(append({"n=2", "--once", "request 7"}), first);
  EXPECT_EQ(stream().length().get().value_or(0), 1U);
  EXPECT_EQ(emq({"stream", "append", "orders", "placed", "n=3", "--once", ""}).exit_code, 2);
  EXPECT_EQ(stream().length().get().value_or(0), 1U);
}

}  // namespace
}  // namespace echomq::test
