// The wake hub against a server that is not there: what becomes of a claim that waits behind a BLPOP.
#include "client/wake_hub.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "client/wake_hubs.hpp"
#include "support/played_node.hpp"
#include "wire/request.hpp"

namespace echomq {
namespace {

using namespace std::chrono_literals;

/// Runs nothing until it is told.
class Held final : public detail::Target {
 public:
  void post(Continuation continuation) override {
    const std::lock_guard lock(mutex_);
    held_.push_back(continuation);
  }
  void run() {
    std::vector<Continuation> now;
    {
      const std::lock_guard lock(mutex_);
      now.swap(held_);
    }
    for (const Continuation& one : now)
      one();
  }

 private:
  std::mutex mutex_;
  std::vector<Continuation> held_;
};

class WakeHubTest : public ::testing::Test {
 protected:
  WakeHubTest() {
    client::WakeHub::Ways ways;
    ways.park = [this](const std::shared_ptr<client::WakeHub>& hub) {
      wire::LinkSettings settings;
      settings.endpoint.socket_path = "/nowhere/at/all";
      settings.parks = true;
      link_ = std::make_shared<wire::Link>(
          io_, settings, counters_, [](LogLevel, std::string_view, std::string_view) {}, nullptr, hub.get());
      return link_;
    };
    ways.beside = [this](const wire::Link&) { return link_; };
    ways.later = [](std::chrono::milliseconds, const std::function<void()>&) {};
    ways.push_back = [](detail::Call* call) { call->release(); };
    ways.misplaced = [this](const wire::Link&) { return std::exchange(moved_, false); };
    ways.find = [] {};
    hub_ = std::make_shared<client::WakeHub>(std::move(ways), counters_, &target_);
  }
  ~WakeHubTest() override {
    hub_->close(Error(Errc::client_closed, "the test is over", Repeat::safe));
    work_.reset();
    thread_.join();
    target_.run();  // what the end of the link has told
  }

  [[nodiscard]] static auto make_claim() {
    const std::array<std::string_view, 1> parts = {"PING"};
    auto decode = [](const wire::Answer&) -> Result<void> { return {}; };
    detail::CallOf<void>* call = wire::BoundCall<void, decltype(decode)>::make(parts, decode);
    call->retain();  // one reference is the hub's
    return detail::CallPointer<detail::CallOf<void>>(call);
  }

  bool moved_ = false;
  boost::asio::io_context io_;
  wire::Counters counters_;
  Held target_;
  std::shared_ptr<wire::Link> link_;
  std::shared_ptr<client::WakeHub> hub_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{io_.get_executor()};
  std::thread thread_{[this] { io_.run(); }};
};

// Whoever hears that the client is closed claims nothing any more.
TEST_F(WakeHubTest, AClaimWhoseListHasMovedDoesNotHearThatTheClientIsClosed) {
  const auto watch = hub_->watch("emq:{q}:wake", [] {});
  const auto claim = make_claim();
  watch->park_with(claim.get(), 10s);
  moved_ = true;
  hub_->look_again();
  ASSERT_TRUE(claim->wait(detail::Clock::now() + 10s));
  const Result<void> answer = claim->take();
  ASSERT_FALSE(answer);
  EXPECT_TRUE(answer.error().is(Errc::disconnected)) << answer.error().message();
}

// A connection that is opened after the client has closed would be closed by nobody, and keep its loop running.
TEST_F(WakeHubTest, AWatchThatBeginsAfterTheEndOpensNothing) {
  client::WakeHubs hubs(false, [this](std::uint32_t) { return hub_; });
  hubs.close(Error(Errc::client_closed, "the client is closed", Repeat::safe));
  const auto watch = hubs.watch("emq:{q}:wake", [] {});
  const auto claim = make_claim();
  watch->park_with(claim.get(), 10s);
  EXPECT_EQ(link_, nullptr);
  ASSERT_TRUE(claim->done());
  const Result<void> answer = claim->take();
  ASSERT_FALSE(answer);
  EXPECT_TRUE(answer.error().is(Errc::client_closed)) << answer.error().message();
}

// The claim's end is known at once, that of the BLPOP before it when the executor comes to it.
TEST_F(WakeHubTest, AWorkerThatParksAnewBeforeTheHubHasHeardStaysParked) {
  const auto watch = hub_->watch("emq:{q}:wake", [] {});
  const auto first = make_claim();
  watch->park_with(first.get(), 1s);  // long enough to be sent in its first half
  ASSERT_TRUE(first->wait(detail::Clock::now() + 10s));
  EXPECT_FALSE(first->take());
  const auto second = make_claim();
  watch->park_with(second.get(), 10s);
  std::this_thread::sleep_for(50ms);
  target_.run();
  for (int look = 0; look < 5000 && link_->pending() != 2; ++look)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(link_->pending(), 2U);  // a BLPOP, and the claim behind it
}

// The queue that had joined was not waited for until the BLPOP without it had ended by itself.
TEST(WakeHubPlayed, AnUnblockThatIsLostWithItsConnectionIsSentAgain) {
  test::PlayedNode parked_at, beside_it;
  for (test::PlayedNode* const node : {&parked_at, &beside_it})
    node->begin([](const auto&) { return std::optional<std::string>(); }, [] { return std::string("*0\r\n"); });
  boost::asio::io_context io;
  auto work = boost::asio::make_work_guard(io);
  std::thread thread([&] { io.run(); });
  wire::Counters counters;
  Held target;
  const auto connect = [&](const test::PlayedNode& node, wire::LinkObserver* observer) {
    wire::LinkSettings settings;
    settings.endpoint.host = "127.0.0.1";
    settings.endpoint.port = node.port();
    settings.boot.accepted_versions = {"echomq:3.0.0"};
    settings.parks = observer != nullptr;
    settings.lasts = observer == nullptr;
    return std::make_shared<wire::Link>(
        io, settings, counters, [](LogLevel, std::string_view, std::string_view) {}, nullptr, observer);
  };
  const auto beside = connect(beside_it, nullptr);
  beside->start();
  EXPECT_TRUE(beside->wait_live(detail::Clock::now() + 5s));
  client::WakeHub::Ways ways;
  ways.park = [&](const std::shared_ptr<client::WakeHub>& hub) { return connect(parked_at, hub.get()); };
  ways.beside = [&](const wire::Link&) { return beside; };
  ways.later = [](std::chrono::milliseconds, const std::function<void()>&) {};
  ways.push_back = [](detail::Call* call) { call->release(); };
  const auto hub = std::make_shared<client::WakeHub>(std::move(ways), counters, &target);
  {
    const auto first = hub->watch("emq:{q}:wake", [] {});
    first->park(true);
    EXPECT_TRUE(parked_at.was_asked("BLPOP emq:{q}:wake 020.000", 5s));
    const auto second = hub->watch("emq:{r}:wake", [] {});
    second->park(true);
    EXPECT_TRUE(beside_it.was_asked("CLIENT UNBLOCK 1", 5s));
    beside_it.drop();
    const auto times = [&] { return std::ranges::count(beside_it.asked(), "CLIENT UNBLOCK 1"); };
    for (int look = 0; look < 5000 && times() < 2; ++look)
      std::this_thread::sleep_for(1ms);
    EXPECT_EQ(times(), 2);
  }
  const Error over(Errc::client_closed, "the test is over", Repeat::safe);
  hub->close(over);
  beside->close(over);
  work.reset();
  thread.join();
  target.run();
}

}  // namespace
}  // namespace echomq
