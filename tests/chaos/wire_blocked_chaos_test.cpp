// A worker that sleeps in BLPOP survives whatever ends the sleep. Elsewhere "UNBLOCKED ... instance state changed" ended
// its loop.
#include <atomic>
#include <thread>

#include "echomq/worker.hpp"
#include "wire_chaos.hpp"

namespace echomq::test {
namespace {

class Blocked : public WireChaos {
 protected:
  void SetUp() override {
    WireChaos::SetUp();
    WorkerOptions options;
    options.beat = 30s;  // only a wake-up is quick
    auto started = Worker::start(
        client().queue(name_),
        [this](Job&) {
          ++done_;
          return Done();
        },
        options);
    ASSERT_TRUE(started) << started.error().message();
    worker_.emplace(*std::move(started));
    ASSERT_NE(parked_connection(), "");
  }
  void TearDown() override {
    worker_.reset();
    WireChaos::TearDown();
  }

  // The CLIENT ID of the connection that is in BLPOP; waits for it.
  [[nodiscard]] std::string parked_connection() {
    for (int attempt = 0; attempt < 1000; ++attempt) {
      const Value list = ask("CLIENT", "LIST");
      const std::string text(list.as_text().value_or(""));
      for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = text.find('\n', begin);
        const std::string line = text.substr(begin, end - begin);
        if (line.find(" cmd=blpop ") != std::string::npos && line.find(" flags=b") != std::string::npos) {
          return line.substr(3, line.find(' ') - 3);
        }
        begin = end == std::string::npos ? text.size() : end + 1;
      }
      std::this_thread::sleep_for(10ms);
    }
    return {};
  }
  // One more job is picked up quickly.
  [[nodiscard]] bool works() {
    const int before = done_;
    const auto admitted = direct().queue(name_).enqueue("payload").get();
    EXPECT_TRUE(admitted) << admitted.error().message();
    for (int attempt = 0; attempt < 1000; ++attempt) {
      if (done_ == before + 1) {
        return true;
      }
      std::this_thread::sleep_for(10ms);
    }
    return false;
  }

  const QueueName name_{"parked"};
  std::atomic<int> done_{0};
  std::optional<Worker> worker_;
};

TEST_F(Blocked, ClientUnblockErrorDoesNotEndTheLoop) {
  for (int round = 0; round < 5; ++round) {
    SCOPED_TRACE(round);
    const std::string id = parked_connection();
    ASSERT_NE(id, "");
    EXPECT_EQ(ask_number("CLIENT", "UNBLOCK", id, "ERROR"), 1);
    EXPECT_TRUE(works());
  }
  EXPECT_GE(client().stats().unblocked_errors, 5U);
  EXPECT_EQ(client().stats().reconnects, 0U);
}

TEST_F(Blocked, ClientUnblockTimeoutIsNoError) {
  const std::string id = parked_connection();
  EXPECT_EQ(ask_number("CLIENT", "UNBLOCK", id, "TIMEOUT"), 1);
  EXPECT_TRUE(works());
  EXPECT_EQ(client().stats().unblocked_errors, 0U);
}

TEST_F(Blocked, AKilledConnectionComesBack) {
  const std::string id = parked_connection();
  EXPECT_EQ(ask_number("CLIENT", "KILL", "ID", id), 1);
  EXPECT_TRUE(works());
}

TEST_F(Blocked, TheMasterBecomesAReplicaAndAMasterAgain) {
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    ASSERT_NE(parked_connection(), "");
    // Of nobody: the data stays, writes are refused.
    (void)ask("REPLICAOF", "127.0.0.1", "1");
    std::this_thread::sleep_for(300ms);
    (void)ask("REPLICAOF", "NO", "ONE");
    EXPECT_TRUE(works());
  }
  EXPECT_GE(client().stats().unblocked_errors + worker_->stats().errors, 1U);
}

TEST_F(Blocked, TheLinkIsHeldCutAndRefused) {
  proxy().hold();
  std::this_thread::sleep_for(100ms);
  proxy().refuse_new(true);
  EXPECT_GE(proxy().cut(), 1U);
  std::this_thread::sleep_for(300ms);
  proxy().heal();
  EXPECT_TRUE(works());
}

}  // namespace
}  // namespace echomq::test
