// `Tail`: streams that come and go between the rounds of its XREAD, played step by step by an executor of the test's own.
#include "echomq/tail.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "bus_fixture.hpp"
#include "support/bounds.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;

/// Runs continuations on a thread of its own; held, it keeps them until the test takes one. Must outlive its client.
class StepExecutor {
 public:
  StepExecutor() : thread_([this] { run(); }) {}
  StepExecutor(const StepExecutor&) = delete;
  StepExecutor& operator=(const StepExecutor&) = delete;
  ~StepExecutor() {
    {
      const std::lock_guard lock(mutex_);
      held_ = false;
      stopping_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }
  [[nodiscard]] Post post() {
    return [this](Continuation one) {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(one);
      changed_.notify_all();
    };
  }
  /// Once it has returned none runs.
  void hold() {
    std::unique_lock lock(mutex_);
    held_ = true;
    changed_.wait(lock, [this] { return !runs_; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  [[nodiscard]] bool wait(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 10s, [&] { return waiting_.size() >= count; });
  }
  /// One of those that it keeps, on this thread.
  void run_one(std::size_t which) {
    std::unique_lock lock(mutex_);
    const Continuation one = waiting_.at(which);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(which));
    lock.unlock();
    one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || (!held_ && !waiting_.empty()); });
      if (waiting_.empty())
        return;
      const Continuation one = waiting_.front();
      waiting_.pop_front();
      runs_ = true;
      lock.unlock();
      one();
      lock.lock();
      runs_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Continuation> waiting_;  // guarded by mutex_, as are the next three
  bool held_ = false;
  bool runs_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

class HeardByTail {
 public:
  [[nodiscard]] TailHandler handler() {
    return [this](const TailMessage& message) {
      const std::lock_guard lock(mutex_);
      values_.push_back(*message.record.find("k"));
      changed_.notify_all();
    };
  }
  [[nodiscard]] std::vector<std::string> wait(std::size_t count, std::chrono::milliseconds limit = 10s) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, limit, [&] { return values_.size() >= count; });
    return values_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> values_;  // guarded by mutex_
};

class BusTailRounds : public BusServerTest {
 protected:
  /// Whether the server has a client that waits, such as an XREAD.
  [[nodiscard]] bool one_waits() {
    return raw("INFO", "clients").as_text().value_or("").find("blocked_clients:1") != std::string_view::npos;
  }
  [[nodiscard]] static bool soon(const std::function<bool()>& condition, std::chrono::milliseconds limit = 10s) {
    for (const auto until = std::chrono::steady_clock::now() + limit; std::chrono::steady_clock::now() < until;) {
      if (condition())
        return true;
      std::this_thread::sleep_for(1ms);
    }
    return condition();
  }
};

// What the XREAD brought that had been asked for the tail before it moved the new one's place past all that it had yet to read.
TEST_F(BusTailRounds, AStreamThatLeftAndComesAgainFromThePastIsReadFromThere) {
  StepExecutor executor;
  const Client process = open({.executor = executor.post()});
  for (const char* value : {"1", "2", "3"})
    append(value);
  HeardByTail kept;
  HeardByTail before;
  HeardByTail after;
  const auto keeps = Tail::start(process.stream("q", "other"), kept.handler());
  auto leaves = Tail::start(process.stream("q", "s"), before.handler());
  ASSERT_TRUE(keeps && leaves);
  append("4");
  ASSERT_THAT(before.wait(1), ElementsAre("4"));
  ASSERT_TRUE(soon([&] { return one_waits(); }));
  executor.hold();
  append("5");
  ASSERT_TRUE(executor.wait(1)) << "the XREAD has ended, and nobody has looked at what it brought";
  leaves->stop();
  const auto comes = Tail::start(process.stream("q", "s"), after.handler(), "0");
  ASSERT_TRUE(comes);
  executor.release();
  EXPECT_THAT(after.wait(5), ElementsAre("1", "2", "3", "4", "5"));
  EXPECT_EQ(comes->stats().gaps, 0U);
}

// An answer to CLIENT UNBLOCK that came behind the next XREAD took the wake of whoever had come since with it: his stream was read
// when that XREAD had waited for its five seconds.
TEST_F(BusTailRounds, AStreamThatComesWhileAWakeIsUnansweredIsReadAtOnce) {
  StepExecutor executor;
  const Client process = open({.executor = executor.post()});
  HeardByTail first;
  HeardByTail others;
  const auto tail = Tail::start(process.stream("q", "s"), first.handler());
  ASSERT_TRUE(tail);
  append("1");
  ASSERT_THAT(first.wait(1), ElementsAre("1"));
  std::vector<Tail> more;
  const auto follow = [&](const std::string& name) {
    auto started = Tail::start(process.stream("q", *StreamName::parse(name)), others.handler());
    ASSERT_TRUE(started) << started.error().message();
    more.push_back(*std::move(started));
  };
  bool asked = false;
  for (std::size_t i = 0; i < 10 && !asked; ++i) {
    ASSERT_TRUE(soon([&] { return one_waits(); }));
    executor.hold();
    follow("wakes" + std::to_string(i));
    // That the XREAD has ended, and what CLIENT UNBLOCK says: in either order.
    ASSERT_TRUE(executor.wait(2));
    executor.run_one(i % 2);
    asked = soon([&] { return one_waits(); }, 500ms);
    if (!asked)
      executor.release();
  }
  ASSERT_TRUE(asked) << "the next XREAD is on the server, and the answer of before it is not looked at";
  follow("late");
  executor.release();
  const auto begin = std::chrono::steady_clock::now();
  append(client().stream("q", "late"), "2");
  EXPECT_THAT(others.wait(1), ElementsAre("2"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, bound(2s));
}

// Between two rounds the end of the client was told to nobody.
TEST_F(BusTailRounds, AClientThatClosesBetweenTwoRoundsIsTold) {
  StepExecutor executor;
  Client process = open({.executor = executor.post()});
  // Without a connection to wait on it asks ten times a second.
  std::vector<std::unique_ptr<client::Line>> lines;
  while (auto line = process.core()->line(detail::Call::kAnySlot))
    lines.push_back(std::move(line));
  std::atomic<int> told = 0;
  TailOptions options;
  options.on_error = [&](const Stream&, const Error& why) { told += why.is(Errc::client_closed) ? 1 : 0; };
  HeardByTail heard;
  const auto tail = Tail::start(process.stream("q", "s"), heard.handler(), {}, std::move(options));
  ASSERT_TRUE(tail);
  append("1");
  ASSERT_THAT(heard.wait(1), ElementsAre("1"));
  executor.hold();
  ASSERT_TRUE(executor.wait(1));
  process.close();
  executor.release();
  EXPECT_TRUE(soon([&] { return told == 1; })) << told;
}

}  // namespace
}  // namespace echomq::test
