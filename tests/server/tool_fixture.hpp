// What the tests of the tool share: a server of their own, a client past the tool, and JSON out of text.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/queue.hpp"
#include "echomq/testing/private_server.hpp"
#include "support/tool.hpp"

namespace echomq::test {

using namespace std::chrono_literals;

class ToolTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = echomq::testing::PrivateServer::start(server_options());
    ASSERT_TRUE(started) << started.error().message();
    server_.emplace(*std::move(started));
    auto opened = Client::open(server_->tcp_url(), {.name = "test"});
    ASSERT_TRUE(opened) << opened.error().message();
    client_.emplace(*std::move(opened));
  }
  void TearDown() override {
    client_.reset();
    server_.reset();
  }
  [[nodiscard]] virtual echomq::testing::PrivateServerOptions server_options() const { return {}; }

  [[nodiscard]] echomq::testing::PrivateServer& server() { return *server_; }
  [[nodiscard]] Client& client() { return *client_; }
  [[nodiscard]] Queue queue(const QueueName& name = "jobs") { return client_->queue(name); }
  [[nodiscard]] std::string url() const { return server_->tcp_url(); }

  /// `emq arguments...` against the server.
  [[nodiscard]] ToolResult emq(std::vector<std::string> arguments, std::optional<std::string> input = {}) {
    return run_tool(std::move(arguments), std::move(input), {{"EMQ_URL", url()}});
  }
  [[nodiscard]] static boost::json::value json_of(const std::string& text) {
    boost::system::error_code error;
    boost::json::value value = boost::json::parse(text, error);
    EXPECT_FALSE(error) << "not one JSON value: " << text;
    return value;
  }
  [[nodiscard]] JobId add(std::string_view payload, EnqueueOptions options = {}) {
    const auto admitted = queue().enqueue(payload, options).get();
    EXPECT_TRUE(admitted) << admitted.error().message();
    return admitted ? admitted->id : JobId();
  }
  [[nodiscard]] QueueCounts counts() {
    const auto counts = queue().counts().get();
    EXPECT_TRUE(counts) << counts.error().message();
    return counts ? *counts : QueueCounts();
  }
  [[nodiscard]] std::string field(const JobId& id, std::string_view name) {
    const auto row = queue().job(id).get();
    if (!row || !*row) {
      return "(no row)";
    }
    const std::string* value = (*row)->find(name);
    return value == nullptr ? "(none)" : *value;
  }
  /// All payloads of the pending set, in order; the jobs are claimed by it.
  [[nodiscard]] std::vector<std::string> take_all() {
    std::vector<std::string> out;
    for (;;) {
      auto job = queue().claim().get();
      if (!job || !*job) {
        return out;
      }
      out.push_back((*job)->payload);
    }
  }
  template <typename Condition>
  [[nodiscard]] static bool comes_true(Condition condition, std::chrono::milliseconds limit = 10s) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until) {
        return false;
      }
      std::this_thread::sleep_for(5ms);
    }
    return true;
  }

 private:
  std::optional<echomq::testing::PrivateServer> server_;
  std::optional<Client> client_;
};

}  // namespace echomq::test
