// `emq stream`.
#include "echomq/stream.hpp"

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
}

}  // namespace
}  // namespace echomq::test
