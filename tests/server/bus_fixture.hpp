// What the tests of streams share: a server of their own, a client, raw looks past the API, and a client whose clock is off.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bus/state.hpp"
#include "client/core.hpp"
#include "echomq/client.hpp"
#include "echomq/group_consumer.hpp"
#include "echomq/stream.hpp"
#include "echomq/testing/private_server.hpp"

namespace echomq::test {

using namespace std::chrono_literals;

inline const std::string kKey = "emq:{q}:stream:s";

/// A core over another client's whose ids are minted `skew` ahead of the clock.
class SkewedCore final : public client::Core {
 public:
  SkewedCore(const Client& client, Milliseconds skew) : inner_(client.core()), skew_(skew) {}

  void submit(detail::Call* call, wire::CallSettings settings) override { inner_->submit(call, settings); }
  Result<BrandedId> mint(std::string_view brand) override {
    const auto now = std::chrono::time_point_cast<Milliseconds>(std::chrono::system_clock::now());
    inner_->mint_past(now + skew_ - 1ms);
    return inner_->mint(brand);
  }
  std::optional<std::uint16_t> node_id() const override { return inner_->node_id(); }
  std::unique_ptr<client::WakeWatch> watch(std::string, std::function<void()>) override { return nullptr; }
  void mint_past(UnixMillis time) override { inner_->mint_past(time); }
  detail::Source* source() noexcept override { return inner_->source(); }
  detail::Target* continuations() noexcept override { return inner_->continuations(); }
  void after(std::chrono::milliseconds wait, std::function<void()> function) override {
    inner_->after(wait, std::move(function));
  }
  void post(Continuation continuation) override { inner_->post(continuation); }
  void log(LogLevel, std::string_view, std::span<const LogField>) override {}
  void count_id_collision() override {}
  const ClientOptions& options() const override { return inner_->options(); }
  bool closed() const override { return inner_->closed(); }

 private:
  const std::shared_ptr<client::Core> inner_;
  const Milliseconds skew_;
};

/// The stream `s` of queue `q`, written by a host whose clock is ahead.
[[nodiscard]] inline Stream skewed_stream(const Client& client, Milliseconds skew) {
  return Stream(std::make_shared<const Stream::State>(QueueName{"q"}, StreamName{"s"},
                                                      std::make_shared<SkewedCore>(client, skew)));
}

/// A record of one field.
struct One {
  explicit One(std::string text) : value(std::move(text)), field{"k", value}, record{{&field, 1}} {}
  One(const One&) = delete;
  One& operator=(const One&) = delete;

  std::string value;
  Field field;
  NewRecord record;
  [[nodiscard]] std::span<const Field> fields() const { return record.fields; }
};

class BusServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = echomq::testing::PrivateServer::start({.listen = echomq::testing::Listen::unix_socket});
    ASSERT_TRUE(started) << started.error().message();
    server_.emplace(*std::move(started));
    client_.emplace(open());
    stream_.emplace(client_->stream(QueueName{"q"}, StreamName{"s"}));
  }

  [[nodiscard]] Client open(ClientOptions options = {}) {
    auto opened = Client::open(server_->url(), std::move(options));
    EXPECT_TRUE(opened) << opened.error().message();
    return *std::move(opened);
  }
  [[nodiscard]] Client& client() { return *client_; }
  [[nodiscard]] Stream& stream() { return *stream_; }
  [[nodiscard]] echomq::testing::PrivateServer& server() { return *server_; }

  template <typename... Parts>
  Value raw(const Parts&... parts) {
    auto reply = client_->command(parts...).get();
    EXPECT_TRUE(reply) << reply.error().message();
    return reply ? *std::move(reply) : Value();
  }

  /// Appends one field `k`; the receipt.
  EventId append(std::string_view value, AppendOptions options = {}) { return append(stream(), value, options); }
  EventId append(const Stream& to, std::string_view value, AppendOptions options = {}) {
    const Field field{"k", value};
    const auto id = to.append({&field, 1}, options).get();
    EXPECT_TRUE(id) << id.error().message();
    return id.value_or(EventId());
  }
  /// All records.
  [[nodiscard]] std::vector<Record> all() {
    std::vector<Record> records;
    auto page = stream().read().get();
    for (;;) {
      EXPECT_TRUE(page) << page.error().message();
      if (!page)
        return records;
      std::move(page->records.begin(), page->records.end(), std::back_inserter(records));
      if (!page->rest)
        return records;
      page = stream().read(page->rest->first, page->rest->second).get();
    }
  }
  /// The values of field `k`.
  [[nodiscard]] std::vector<std::string> values() {
    std::vector<std::string> out;
    for (const Record& record : all())
      out.push_back(*record.find("k"));
    return out;
  }

 private:
  std::optional<echomq::testing::PrivateServer> server_;
  std::optional<Client> client_;
  std::optional<Stream> stream_;
};

}  // namespace echomq::test
