// What the tests of the queue's verbs share: a server of their own, a client, and raw looks past the API.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/queue.hpp"
#include "echomq/testing/private_server.hpp"

namespace echomq::test {

using namespace std::chrono_literals;

inline constexpr JobId kJobA{"JOB0NgWEfAE00A"};
inline constexpr JobId kJobB{"JOB0NgWEfAE00B"};
inline constexpr JobId kJobC{"JOB0NgWEfAE00C"};
inline constexpr LaneId kLaneX{"PRT0NgWEfAE00X"};
inline constexpr LaneId kLaneY{"PRT0NgWEfAE00Y"};

class QueueServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = echomq::testing::PrivateServer::start(server_options());
    ASSERT_TRUE(started) << started.error().message();
    server_.emplace(*std::move(started));
    auto opened = Client::open(server_->url());
    ASSERT_TRUE(opened) << opened.error().message();
    client_.emplace(*std::move(opened));
    queue_.emplace(client_->queue("q"));
  }
  [[nodiscard]] virtual echomq::testing::PrivateServerOptions server_options() const {
    return {.listen = echomq::testing::Listen::unix_socket};
  }

  [[nodiscard]] Client& client() { return *client_; }
  [[nodiscard]] Queue& queue() { return *queue_; }
  [[nodiscard]] echomq::testing::PrivateServer& server() { return *server_; }

  template <typename... Parts>
  Value raw(const Parts&... parts) {
    auto reply = client_->command(parts...).get();
    EXPECT_TRUE(reply) << reply.error().message();
    return reply ? *std::move(reply) : Value();
  }
  [[nodiscard]] std::string text(const Value& value) { return std::string(value.as_text().value_or("(no text)")); }
  [[nodiscard]] std::string digest() { return text(raw("DEBUG", "DIGEST")); }
  /// A field of a job's row, "(no text)" when it has none.
  [[nodiscard]] std::string field(JobId id, std::string_view name) {
    return text(raw("HGET", "emq:{q}:job:" + std::string(id.text()), name));
  }
  /// The sets of the queue that hold the job.
  [[nodiscard]] std::vector<std::string> places(JobId id, std::optional<LaneId> lane = {}) {
    std::vector<std::string> sets = {"pending", "active", "schedule", "dead"};
    if (lane)
      sets.push_back("g:" + std::string(lane->text()) + ":pending");
    std::vector<std::string> found;
    for (const std::string& set : sets) {
      if (!raw("ZSCORE", "emq:{q}:" + set, id.text()).is_null())
        found.push_back(set);
    }
    return found;
  }
  /// A claimed job of that id.
  [[nodiscard]] Token claimed(JobId id, ClaimOptions options = {}) {
    EXPECT_TRUE(queue().enqueue("payload", {.id = id}).get());
    const auto job = queue().claim(options).get();
    EXPECT_TRUE(job && *job && (*job)->id == id);
    return job && *job ? (*job)->token : Token();
  }

 private:
  std::optional<echomq::testing::PrivateServer> server_;
  std::optional<Client> client_;
  std::optional<Queue> queue_;
};

}  // namespace echomq::test
