// What the exchange tests share: a server of their own, our client, and the Node peer, on the same queue `q`.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/queue.hpp"
#include "echomq/testing/private_server.hpp"
#include "interop/node_peer.hpp"

namespace echomq::interop {

using namespace std::chrono_literals;

class ExchangeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = testing::PrivateServer::start({.listen = testing::Listen::unix_socket});
    ASSERT_TRUE(started) << started.error().message();
    server_.emplace(*std::move(started));
    auto opened = Client::open(server_->url());
    ASSERT_TRUE(opened) << opened.error().message();
    client_.emplace(*std::move(opened));
    queue_.emplace(client_->queue("q"));
    peer_.emplace(server_->url());
  }

  [[nodiscard]] testing::PrivateServer& server() { return *server_; }
  [[nodiscard]] Client& client() { return *client_; }
  [[nodiscard]] Queue& queue() { return *queue_; }
  [[nodiscard]] NodePeer& peer() { return *peer_; }

  /// The peer's answer to a verb on `q`.
  json::value ask(std::string_view verb, json::object args = {}) { return peer_->ask(verb, "q", std::move(args)); }

  [[nodiscard]] JobId enqueued(std::string_view payload, EnqueueOptions options = {}) {
    return queue().enqueue(payload, options).get().value().id;
  }
  /// A job that the peer has admitted.
  [[nodiscard]] JobId enqueued_by_peer(const json::value& payload) {
    const std::string id = peer().mint("JOB");
    EXPECT_EQ(ask("enqueue", {{"id", id}, {"payload", payload}}), ok("enqueued"));
    return JobId::parse(id).value();
  }
  [[nodiscard]] ClaimedJob claimed(ClaimOptions options = {}) {
    auto job = queue().claim(options).get().value();
    if (!job)
      throw std::runtime_error("nothing to claim");
    return *std::move(job);
  }
  /// The error of a settle that has to be refused.
  template <typename T>
  [[nodiscard]] Errc refusal(Reply<T> reply) {
    const Result<T> result = reply.get();
    EXPECT_FALSE(result);
    return result ? Errc{} : static_cast<Errc>(result.error().code.value());
  }
  [[nodiscard]] QueueCounts counts() { return queue().counts().get().value(); }
  /// Both speakers read the same four sets and counters, and these.
  void expect_counts(const QueueCounts& expected) {
    const QueueCounts ours = counts();
    EXPECT_EQ(numbers(ours), numbers(expected));
    const json::object theirs =
        ask("get_counts", {{"states", {"pending", "active", "schedule", "dead", "completed", "failed"}}})
            .at("ok")
            .as_object();
    const std::vector<std::int64_t> read = {theirs.at("pending").as_int64(),   theirs.at("active").as_int64(),
                                            theirs.at("schedule").as_int64(),  theirs.at("dead").as_int64(),
                                            theirs.at("completed").as_int64(), theirs.at("failed").as_int64()};
    EXPECT_EQ(read, numbers(expected));
  }

  [[nodiscard]] static json::value ok(json::value value) { return json::object{{"ok", std::move(value)}}; }
  [[nodiscard]] static json::value error(json::value value) { return json::object{{"error", std::move(value)}}; }
  [[nodiscard]] static json::string text(const BrandedId& id) { return json::string(id.text()); }

 private:
  [[nodiscard]] static std::vector<std::int64_t> numbers(const QueueCounts& c) {
    return {c.pending, c.active, c.scheduled, c.dead, c.completed, c.failed};
  }

  std::optional<testing::PrivateServer> server_;
  std::optional<Client> client_;
  std::optional<Queue> queue_;
  std::optional<NodePeer> peer_;
};

}  // namespace echomq::interop
