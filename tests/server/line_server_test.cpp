// Connections that end before their client does, while callers wait for what was asked over them.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "client/core.hpp"
#include "echomq/client.hpp"
#include "echomq/testing/private_server.hpp"
#include "wire/request.hpp"

namespace echomq {
namespace {

using namespace std::chrono_literals;

[[nodiscard]] Result<bool> read_popped(const wire::Answer& answer) { return !answer.view.is_null(); }
using Pop = wire::BoundCall<bool, decltype(&read_popped)>;

class LineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = testing::PrivateServer::start({});
    ASSERT_TRUE(started) << started.error().message();
    server_ = std::make_unique<testing::PrivateServer>(*std::move(started));
    auto client = Client::open(server_->url(), {.backoff_initial = 2s, .node_lease = NodeLease::never});
    ASSERT_TRUE(client) << client.error().message();
    client_ = std::make_unique<Client>(*std::move(client));
  }

  std::unique_ptr<testing::PrivateServer> server_;
  std::unique_ptr<Client> client_;
};

// Whoever waits may look at the call's source when the connection, which nothing else holds, has gone.
TEST_F(LineTest, ACallDoesNotPointToAConnectionThatEndsBeforeTheClient) {
  const auto line = client_->core()->line(0);
  ASSERT_TRUE(line);
  const std::array<std::string_view, 3> parts = {"BLPOP", "nobody:pushes", "20"};
  Pop* call = Pop::make(parts, &read_popped);
  call->retain();
  const detail::CallPointer<detail::CallOf<bool>> mine(call);
  line->submit(call, {.deadline = 30s});
  EXPECT_EQ(call->source, nullptr);
  line->close();
  ASSERT_TRUE(call->wait(detail::Clock::now() + 10s));
  EXPECT_TRUE(call->take().error().is(Errc::client_closed));
}

// The connection of subscriptions may be given up for another one: what withdraws them is not the connection itself.
TEST_F(LineTest, ASubscriptionThatWasNotAskedForYetIsWithdrawn) {
  server_->kill();
  bool withdrawn = false;
  std::string others;
  // A try to connect that fails may answer before.
  for (int i = 0; i < 10 && !withdrawn; ++i) {
    Reply<Subscription> waiting = client_->subscribe("a channel", {.on_message = [](auto, auto) {}});
    waiting.cancel();
    const auto answer = waiting.get();
    ASSERT_FALSE(answer);
    withdrawn = answer.error().is(Errc::cancelled);
    others += withdrawn ? "" : answer.error().message() + "; ";
  }
  EXPECT_TRUE(withdrawn) << others;
}

}  // namespace
}  // namespace echomq
