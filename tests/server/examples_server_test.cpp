// The examples that end by themselves: they run, and say what their texts promise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "echomq/testing/private_server.hpp"

#ifndef ECHOMQ_EXAMPLES_PATH
#define ECHOMQ_EXAMPLES_PATH ""  // some trees build none
#endif

namespace echomq::test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class Examples : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string_view(ECHOMQ_EXAMPLES_PATH).empty())
      GTEST_SKIP() << "this tree builds no examples";
    auto server = testing::PrivateServer::start();
    ASSERT_TRUE(server) << server.error().message();
    server_.emplace(*std::move(server));
  }

  /// Standard output of the example; both it and its exit code count.
  [[nodiscard]] std::string run(const std::string& name) {
    const std::string command = "timeout 60 " ECHOMQ_EXAMPLES_PATH "/" + name + " '" + server_->url() + "'";
    std::FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr)
      return {};
    std::string out;
    std::array<char, 4096> bytes{};
    for (std::size_t read = 0; (read = std::fread(bytes.data(), 1, bytes.size(), pipe)) > 0;)
      out.append(bytes.data(), read);
    EXPECT_EQ(::pclose(pipe), 0) << command;
    return out;
  }

  std::optional<testing::PrivateServer> server_;
};

TEST_F(Examples, TypedJobs) {
  const std::string out = run("typed_jobs");
  EXPECT_THAT(out, HasSubstr("total 1749\n"));
  EXPECT_THAT(out, HasSubstr("an order of nothing\n"));
  EXPECT_THAT(out, HasSubstr("the payload cannot be decoded: codec failed: no JSON, at byte "));
  EXPECT_THAT(out, HasSubstr("orders: 1 done, 2 dead, "));
  EXPECT_THAT(out, HasSubstr("\nechomq_jobs_settled_total{queue=\"orders\",verdict=\"dead\"} 2\n"));
  EXPECT_THAT(out, HasSubstr("\nechomq_job_run_seconds_count{queue=\"orders\"} 3\n"));
}

TEST_F(Examples, TracedJobs) {
  const std::string out = run("traced_jobs");
  EXPECT_THAT(out, HasSubstr("span \"process mails\" of trace 0af7651916cd43dd8448eb211c80319c, ok\n"));
  EXPECT_THAT(out, HasSubstr("span \"process mails\" of trace 0af7651916cd43dd8448eb211c80319c, to nobody\n"));
}

TEST_F(Examples, NearCache) {
  const std::string out = run("near_cache");
  const std::string mine = "Ada, by the loader\n";
  const std::string theirs = "Ada, by the other's load\n";
  const std::string head = "loading USR0NgWEfAE00A\n";
  const std::string tail = "1 row of team.7 dropped\nloading USR0NgWEfAE00A\n";
  // Which of the two loads is theirs to settle; one does.
  EXPECT_THAT(out, AnyOf(head + mine + theirs + tail, head + theirs + mine + tail));
}

TEST_F(Examples, Subjects) {
  const std::string out = run("subjects");
  EXPECT_THAT(out, HasSubstr("orders.eu.placed: order ORD"));
  EXPECT_THAT(out, HasSubstr("orders.eu.paid: order ORD"));
  EXPECT_THAT(out, HasSubstr("2 records of Europe\n"));
}

TEST_F(Examples, WarmCache) {
  const std::string out = run("warm_cache");
  EXPECT_THAT(out,
              HasSubstr("first read: Alice, from fill\nsecond read: Alice, from hit\nnobody: nothing, from fill\n"));
  EXPECT_THAT(out, HasSubstr("after a write: Alice B., from hit\n"));
  EXPECT_THAT(out, HasSubstr("filled from the stream: 1 rows\nfrom the stream: Bob, from hit\n"));
}

}  // namespace
}  // namespace echomq::test
