// Slots of requests, and what a cluster says about its slots.
#include "wire/request_keys.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "keyspace/slot.hpp"
#include "resp/encode.hpp"
#include "wire/request.hpp"
#include "wire/slot_map.hpp"

namespace echomq {
namespace {

using Words = std::vector<std::string_view>;

std::string encoded(const std::vector<Words>& commands) {
  std::string bytes;
  resp::CommandWriter writer(bytes);
  for (const Words& words : commands)
    writer.command(words);
  return bytes;
}
Result<std::uint32_t> slot_of(const Words& words) { return wire::slot_of_request(encoded({words})); }

TEST(RequestKeys, FindsTheKeysOfEveryShape) {
  const std::uint32_t q = keyspace::slot("{q}");
  for (const Words& words : std::vector<Words>{
           {"GET", "{q}a"},
           {"get", "{q}a"},
           {"SET", "{q}a", "{other}"},
           {"DEL", "{q}a", "{q}b", "{q}c"},
           {"MSET", "{q}a", "{x}", "{q}b", "{y}"},
           {"BLPOP", "{q}a", "{q}b", "20"},
           {"RENAME", "{q}a", "{q}b"},
           {"BITOP", "AND", "{q}a", "{q}b"},
           {"EVALSHA", "0123", "2", "{q}a", "{q}b", "{other}", "{another}"},
           {"EVAL", "return 1", "1", "{q}a", "{x}"},
           {"ZUNIONSTORE", "{q}a", "2", "{q}b", "{q}c", "WEIGHTS", "1", "2"},
           {"ZUNION", "2", "{q}b", "{q}c", "WITHSCORES"},
           {"XREAD", "COUNT", "1", "STREAMS", "{q}a", "{q}b", "0", "0"},
           {"XREADGROUP", "GROUP", "g", "c", "STREAMS", "{q}a", ">"},
           {"SORT", "{q}a", "LIMIT", "0", "1", "STORE", "{q}b"},
           {"OBJECT", "ENCODING", "{q}a"},
           {"XGROUP", "CREATE", "{q}a", "g", "$"},
           {"XINFO", "STREAM", "{q}a"},
           {"MEMORY", "USAGE", "{q}a"},
           {"SPUBLISH", "{q}a", "{x}"},
           {"SOMETHING.NEW", "{q}a", "{x}"},
           {"ACOMMANDWITHANAMEFARTOOLONGTOBEINANYTABLE", "{q}a"},
       }) {
    const auto slot = slot_of(words);
    ASSERT_TRUE(slot) << words[0] << ": " << slot.error().message();
    EXPECT_EQ(*slot, q) << words[0];
  }
}

TEST(RequestKeys, KnowsWhatHasNoKeys) {
  for (const Words& words : std::vector<Words>{{"PING"},
                                               {"ping", "{q}"},
                                               {"SCRIPT", "LOAD", "{q}"},
                                               {"EVALSHA", "0123", "0", "{x}", "{y}"},
                                               {"PUBLISH", "{x}", "{y}"},
                                               {"OBJECT", "HELP"},
                                               {"MEMORY", "STATS"},
                                               {"CLIENT", "KILL", "ID", "1"}}) {
    const auto slot = slot_of(words);
    ASSERT_TRUE(slot) << words[0];
    EXPECT_EQ(*slot, detail::Call::kAnySlot) << words[0];
  }
}

TEST(RequestKeys, RefusesKeysOfTwoSlotsAndNamesThem) {
  for (const Words& words : std::vector<Words>{{"MGET", "{a}1", "{a}2", "{b}3"},
                                               {"EVALSHA", "0123", "2", "{a}1", "{b}3"},
                                               {"SORT", "{a}1", "STORE", "{b}3"},
                                               {"ZUNIONSTORE", "{a}1", "1", "{b}3"}}) {
    const auto slot = slot_of(words);
    ASSERT_FALSE(slot) << words[0];
    EXPECT_TRUE(slot.error().is(Errc::cross_slot));
    EXPECT_NE(slot.error().text.find("'{a}1'"), std::string::npos) << slot.error().text;
    EXPECT_NE(slot.error().text.find("'{b}3'"), std::string::npos) << slot.error().text;
  }
  // Two tags of one slot are one slot.
  std::string twin;
  for (int i = 0; twin.empty(); ++i) {
    if (keyspace::slot(std::to_string(i)) == keyspace::slot("a"))
      twin = std::to_string(i);
  }
  EXPECT_TRUE(slot_of({"MGET", "a", twin}));
}

TEST(RequestKeys, LooksAtEveryCommandOfATransaction) {
  const std::string one = encoded({{"MULTI"}, {"SET", "{a}1", "x"}, {"GET", "{a}2"}, {"EXEC"}});
  EXPECT_EQ(wire::slot_of_request(one).value(), keyspace::slot("a"));
  EXPECT_EQ(wire::commands_of_request(one), 4U);
  EXPECT_TRUE(wire::is_transaction(one));
  EXPECT_EQ(wire::request_behind(one, 0), one);
  EXPECT_EQ(wire::request_behind(one, 1), encoded({{"SET", "{a}1", "x"}, {"GET", "{a}2"}, {"EXEC"}}));
  EXPECT_EQ(wire::request_behind(one, 3), encoded({{"EXEC"}}));
  EXPECT_EQ(wire::request_behind(one, 4), "");
  EXPECT_FALSE(wire::is_transaction(encoded({{"MULTIPLE"}, {"EXEC"}})));
  const auto two = wire::slot_of_request(encoded({{"MULTI"}, {"SET", "{a}1", "x"}, {"GET", "{b}2"}, {"EXEC"}}));
  ASSERT_FALSE(two);
  EXPECT_TRUE(two.error().is(Errc::cross_slot));
}

TEST(SlotMap, ReadsMoved) {
  const wire::Endpoint from{"10.0.0.7", 7000, ""};
  const auto plain = wire::parse_moved("MOVED 3999 127.0.0.1:6381", from);
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->slot, 3999U);
  EXPECT_EQ(plain->to.to_string(), "valkey://127.0.0.1:6381");
  EXPECT_EQ(wire::parse_moved("MOVED 1 :6381", from)->to.to_string(), "valkey://10.0.0.7:6381");
  EXPECT_EQ(wire::parse_moved("MOVED 1 ::1:6381", from)->to.to_string(), "valkey://[::1]:6381");
  EXPECT_EQ(wire::parse_moved("MOVED 1 node-1.example:6381", from)->to.host, "node-1.example");
  for (const char* text : {"ASK 1 h:1", "MOVED", "MOVED 1", "MOVED 16384 h:1", "MOVED x h:1", "MOVED 1 h",
                           "MOVED 1 h:", "MOVED 1 h:0", "MOVED 1 h:65536", "MOVED 1 h:1x", ""})
    EXPECT_FALSE(wire::parse_moved(text, from)) << text;
}

TEST(SlotMap, ReadsAsk) {
  const wire::Endpoint from{"10.0.0.7", 7000, ""};
  const auto ask = wire::parse_ask("ASK 3999 127.0.0.1:6381", from);
  ASSERT_TRUE(ask);
  EXPECT_EQ(ask->slot, 3999U);
  EXPECT_TRUE(ask->ask);
  EXPECT_EQ(ask->to.to_string(), "valkey://127.0.0.1:6381");
  EXPECT_FALSE(wire::parse_moved("MOVED 3999 127.0.0.1:6381", from)->ask);
  for (const char* text : {"MOVED 1 h:1", "ASK", "ASK 1", "ASK 16384 h:1", "ASK 1 h", ""})
    EXPECT_FALSE(wire::parse_ask(text, from)) << text;
}

TEST(SlotMap, ReadsClusterSlots) {
  const wire::Endpoint from{"seed", 7000, ""};
  const auto read = [&](const std::string& bytes) { return wire::parse_cluster_slots(resp::View(bytes), from); };
  const auto ranges = read(
      "*3\r\n"
      "*4\r\n:0\r\n:5460\r\n*4\r\n$9\r\n127.0.0.1\r\n:7001\r\n$2\r\nid\r\n*0\r\n*3\r\n$1\r\nr\r\n:7004\r\n$2\r\nid\r\n"
      "*3\r\n:5461\r\n:5461\r\n*3\r\n$0\r\n\r\n:7002\r\n$2\r\nid\r\n"
      "*3\r\n:5462\r\n:16383\r\n*3\r\n$1\r\n?\r\n:7003\r\n$2\r\nid\r\n");
  ASSERT_TRUE(ranges) << ranges.error().message();
  ASSERT_EQ(ranges->size(), 2U);  // the third node's address is unknown
  EXPECT_EQ((*ranges)[0].last, 5460U);
  EXPECT_EQ((*ranges)[0].owner.to_string(), "valkey://127.0.0.1:7001");
  EXPECT_EQ((*ranges)[1].first, 5461U);
  EXPECT_EQ((*ranges)[1].owner.to_string(), "valkey://seed:7002");
  EXPECT_TRUE(read("*0\r\n")->empty());

  EXPECT_TRUE(read("-ERR This instance has cluster support disabled\r\n").error().is(Errc::boot_refused));
  EXPECT_TRUE(read("-NOPERM no\r\n").error().is(Errc::no_permission));
  for (const char* bytes : {"+OK\r\n", "*1\r\n:1\r\n", "*1\r\n*3\r\n:5\r\n:4\r\n*2\r\n+h\r\n:1\r\n",
                            "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n+h\r\n:1\r\n", "*1\r\n*2\r\n:0\r\n:1\r\n",
                            "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n+h\r\n:65536\r\n"})
    EXPECT_TRUE(read(bytes).error().is(Errc::protocol_error)) << bytes;
}

// What a script may not do was a mere error of the server.
TEST(ServerError, AScriptWithoutPermissionIsOneAndMayHaveWritten) {
  const Error error = wire::to_error("ERR ACL failure in script: User ro has no permissions to run the 'time' command");
  EXPECT_TRUE(error.is(Errc::no_permission));
  EXPECT_EQ(error.repeat, Repeat::unsafe);
}

}  // namespace
}  // namespace echomq
