// Server URLs: what is understood, what is refused, and that a password never shows.
#include <gtest/gtest.h>

#include "wire/url.hpp"

namespace echomq {
namespace {

TEST(Url, TakesTheUsualForms) {
  const auto plain = wire::parse_url("valkey://127.0.0.1:6390");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->endpoint.host, "127.0.0.1");
  EXPECT_EQ(plain->endpoint.port, 6390);
  EXPECT_FALSE(plain->database);

  const auto full = wire::parse_url("redis://app:s%2Fec%40ret@cache.example:7000/3");
  ASSERT_TRUE(full);
  EXPECT_EQ(full->user, "app");
  EXPECT_EQ(full->password, "s/ec@ret");
  EXPECT_EQ(full->endpoint.host, "cache.example");
  EXPECT_EQ(full->endpoint.port, 7000);
  EXPECT_EQ(full->database, 3U);
  EXPECT_EQ(full->endpoint.to_string(), "valkey://cache.example:7000");

  const auto v6 = wire::parse_url("valkey://[::1]:6379");
  ASSERT_TRUE(v6);
  EXPECT_EQ(v6->endpoint.host, "::1");
  EXPECT_EQ(v6->endpoint.to_string(), "valkey://[::1]:6379");

  const auto local = wire::parse_url("unix:///tmp/server.sock?db=2");
  ASSERT_TRUE(local);
  EXPECT_EQ(local->endpoint.socket_path, "/tmp/server.sock");
  EXPECT_EQ(local->database, 2U);

  const auto bare = wire::parse_url("valkey://");
  ASSERT_TRUE(bare);
  EXPECT_EQ(bare->endpoint.to_string(), "valkey://127.0.0.1:6379");
}

TEST(Url, TakesTheNodesOfACluster) {
  const auto nodes = wire::parse_url("valkey+cluster://app:p%40w@a:7000,b,[::1]:7002/0");
  ASSERT_TRUE(nodes) << nodes.error().message();
  ASSERT_EQ(nodes->seeds.size(), 3U);
  EXPECT_EQ(nodes->endpoint, nodes->seeds[0]);
  EXPECT_EQ(nodes->seeds[1].port, 6379);
  EXPECT_EQ(nodes->user, "app");
  EXPECT_EQ(nodes->password, "p@w");
  EXPECT_EQ(nodes->to_string(), "valkey+cluster://a:7000,b:6379,[::1]:7002");
  EXPECT_TRUE(wire::parse_url("valkey://a:7000")->seeds.empty());
}

TEST(Url, RefusesWhatItDoesNotUnderstandAndNamesIt) {
  struct Row {
    const char* url;
    const char* names;
  };
  for (const Row& row :
       {Row{"", "scheme"}, Row{"localhost:6379", "scheme"}, Row{"http://x", "http"}, Row{"valkey://h:0", "0"},
        Row{"valkey://h:65536", "65536"}, Row{"valkey://h:x", "x"}, Row{"valkey://h:", "port"},
        Row{"valkey://h/abc", "abc"}, Row{"unix://relative", "relative"}, Row{"valkey://h?mode=x", "mode=x"},
        Row{"valkey://[::1", "]"}, Row{"valkey://a%2@h", "%"}, Row{"valkeys://h", "valkeys"},
        Row{"valkey+cluster://", "empty"}, Row{"valkey+cluster://a,,b", "empty"}, Row{"valkey+cluster://a,b:x", "x"},
        Row{"valkey+cluster://a,b/1", "database 0"}, Row{"valkey+cluster://a?db=3", "database 0"},
        Row{"valkey://a:1,b:2", "1,b:2"}}) {
    const auto parsed = wire::parse_url(row.url);
    ASSERT_FALSE(parsed) << row.url;
    EXPECT_TRUE(parsed.error().is(Errc::invalid_url)) << row.url;
    EXPECT_NE(parsed.error().text.find(row.names), std::string::npos) << row.url << ": " << parsed.error().text;
  }
}

TEST(Url, NeverShowsAPassword) {
  for (const char* url : {"valkey://u:hunter2@h:x", "valkey://u:hunter2/3@h/abc", "valkey://u:hunter2@h?hm=1",
                          "unix://u:hunter2@relative"}) {
    const auto parsed = wire::parse_url(url);
    ASSERT_FALSE(parsed) << url;
    EXPECT_EQ(parsed.error().message().find("hunter2"), std::string::npos) << parsed.error().message();
  }
}

}  // namespace
}  // namespace echomq
