// What the fault tests of the wire share: a server, a proxy before it, a client through the proxy, one past it, and the
// question where each job is.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/queue.hpp"
#include "echomq/testing/private_server.hpp"
#include "support/proxy.hpp"

namespace echomq::test {

using namespace std::chrono_literals;

/// Quick to notice and to come back, so that a test of a thousand cuts does not wait.
[[nodiscard]] inline ClientOptions hasty() {
  ClientOptions options;
  options.backoff_initial = 1ms;
  options.backoff_max = 10ms;
  options.deadline = 5s;
  options.heartbeat = 1h;  // no PING of its own among the bytes that a test counts
  return options;
}

/// Names of one length, so that all conversations about them have one too.
[[nodiscard]] inline QueueName numbered(std::string_view word, int number) {
  const std::string digits = std::to_string(10000 + number);
  return *QueueName::parse(std::string(word) + digits.substr(1));
}

/// Bytes in both directions since the last `reset()`.
class ByteCount {
 public:
  void add(Direction direction, std::size_t bytes) {
    const std::lock_guard guard(mutex_);
    (direction == Direction::to_server ? to_server_ : to_client_) += bytes;
  }
  void reset() {
    const std::lock_guard guard(mutex_);
    to_server_ = to_client_ = 0;
  }
  [[nodiscard]] std::uint64_t of(Direction direction) const {
    const std::lock_guard guard(mutex_);
    return direction == Direction::to_server ? to_server_ : to_client_;
  }

 private:
  mutable std::mutex mutex_;
  std::uint64_t to_server_ = 0;
  std::uint64_t to_client_ = 0;
};

/// A client that sees the server only through a proxy, and another one that sees it as it is.
class WireChaos : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = echomq::testing::PrivateServer::start(server_options());
    ASSERT_TRUE(started) << started.error().message();
    server_.emplace(*std::move(started));
    proxy_.emplace(server_->tcp_url(),
                   ProxyOptions{.tap = [this](std::uint64_t, Direction direction, std::string_view bytes) {
                     count_.add(direction, bytes.size());
                   }});
    auto through = Client::open(proxy_->url(), client_options());
    ASSERT_TRUE(through) << through.error().message();
    client_.emplace(*std::move(through));
    auto past = Client::open(server_->tcp_url(), {.name = "direct"});
    ASSERT_TRUE(past) << past.error().message();
    direct_.emplace(*std::move(past));
  }
  void TearDown() override {
    client_.reset();
    direct_.reset();
    proxy_.reset();
    server_.reset();
  }
  [[nodiscard]] virtual echomq::testing::PrivateServerOptions server_options() const { return {}; }
  [[nodiscard]] virtual ClientOptions client_options() const { return hasty(); }

  [[nodiscard]] Client& client() { return *client_; }
  [[nodiscard]] Client& direct() { return *direct_; }
  [[nodiscard]] Proxy& proxy() { return *proxy_; }
  [[nodiscard]] echomq::testing::PrivateServer& server() { return *server_; }

  /// The answer of a command past the proxy.
  template <typename... Parts>
  [[nodiscard]] Value ask(const Parts&... parts) {
    auto answer = direct_->command(parts...).get();
    EXPECT_TRUE(answer) << answer.error().message();
    return answer ? *std::move(answer) : Value();
  }
  template <typename... Parts>
  [[nodiscard]] std::int64_t ask_number(const Parts&... parts) {
    return ask(parts...).as_integer().value_or(-1);
  }

  /// Where a job is: every set that has it, and "row" with the row's state.
  [[nodiscard]] std::multiset<std::string> places(const QueueName& queue, const JobId& id) {
    const std::string base = "emq:{" + std::string(queue.text()) + "}:";
    std::multiset<std::string> out;
    for (const std::string_view set : {"pending", "active", "schedule", "dead"}) {
      if (!ask("ZSCORE", base + std::string(set), id.text()).is_null()) {
        out.emplace(set);
      }
    }
    return out;
  }

  /// Waits until the client's link works again, so that a fault strikes the call that it is meant for.
  void ready() {
    for (int attempt = 0; attempt < 500; ++attempt) {
      if (client_->command("PING").get()) {
        return;
      }
      std::this_thread::sleep_for(2ms);
    }
    FAIL() << "the client does not come back";
  }

  /// How many bytes `call` sends and gets on a link that is up and whole.
  template <typename Call>
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> measure(Call call) {
    ready();
    count_.reset();
    call();
    return {count_.of(Direction::to_server), count_.of(Direction::to_client)};
  }

 private:
  ByteCount count_;
  std::optional<echomq::testing::PrivateServer> server_;
  std::optional<Proxy> proxy_;
  std::optional<Client> client_;
  std::optional<Client> direct_;
};

}  // namespace echomq::test
