// Wakes that are gathered, kept for a moment, and done by whoever comes first.
#include "result/late_wakes.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "worker/inbox.hpp"
#include "worker/job.hpp"
#include "worker/pool.hpp"

namespace echomq::late_wakes_test {
namespace {

using namespace std::chrono_literals;
using echomq::Job;
using echomq::detail::HeldWakes;
using echomq::detail::LateWakes;
using echomq::detail::WakeLater;
using Clock = std::chrono::steady_clock;
using Word = LateWakes::Word;

/// Waits until the thread that writes its number there sleeps in the kernel.
void await_sleep(const std::atomic<pid_t>& thread) {
  for (const auto until = Clock::now() + 10s; Clock::now() < until; std::this_thread::sleep_for(100us)) {
    if (thread == 0)
      continue;
    std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
    const std::string text{std::istreambuf_iterator<char>(stat), {}};
    if (const auto name_end = text.rfind(')'); name_end != std::string::npos && text.substr(name_end + 2, 1) == "S")
      return;
  }
}

/// Sleeps on a word of its own until it is woken.
class Sleeper {
 public:
  Sleeper() { await_sleep(number_); }
  ~Sleeper() {
    while (!woken(1ms))
      echomq::detail::futex_wake_all(word);
    thread_.join();
  }
  [[nodiscard]] bool woken(Clock::duration within = 10s) const {
    return woken_.wait_for(within) == std::future_status::ready;
  }

  Word word{1};

 private:
  std::atomic<pid_t> number_{0};
  std::promise<void> told_;
  std::future<void> woken_ = told_.get_future();
  std::thread thread_{[this] {
    number_ = ::gettid();
    (void)echomq::detail::futex_wait(word, 1, Clock::now() + 60s);
    told_.set_value();
  }};
};

TEST(LateWakes, OneScopeInsideOfAnotherLeavesItsWakesToThat) {
  Sleeper sleeper;
  {
    WakeLater outer;
    {
      WakeLater inner;
      WakeLater::wake(sleeper.word);
    }
    EXPECT_EQ(outer.gathered().size(), 1U);
    EXPECT_FALSE(sleeper.woken(20ms));
  }
  EXPECT_TRUE(sleeper.woken());
}

TEST(LateWakes, WhatIsHeldIsWokenWhenItsHolderComesToIt) {
  const auto late = std::make_shared<LateWakes>();
  Sleeper sleeper;
  {
    HeldWakes held;
    {
      WakeLater scope;
      WakeLater::wake(sleeper.word);
      held.hold(scope, late);
    }
    EXPECT_FALSE(sleeper.woken(20ms));
  }
  EXPECT_TRUE(sleeper.woken());
}

TEST(LateWakes, OrWhenTheyRingBeforeThat) {
  LateWakes late;
  Sleeper first, second;
  const std::array<Word*, 1> one = {&first.word};
  const std::array<Word*, 1> other = {&second.word};
  ASSERT_TRUE(late.keep(one));
  ASSERT_TRUE(late.keep(other));
  late.wake(other);
  EXPECT_TRUE(second.woken());
  EXPECT_FALSE(first.woken(20ms)) << "it is still kept";
  late.ring();
  EXPECT_TRUE(first.woken());
}

TEST(LateWakes, TheEndWakesAllAndKeepsNothingMore) {
  LateWakes late;
  Sleeper sleeper;
  const std::array<Word*, 1> words = {&sleeper.word};
  ASSERT_TRUE(late.keep(words));
  late.close();
  EXPECT_TRUE(sleeper.woken());
  EXPECT_FALSE(late.keep(words));
}

TEST(LateWakes, WhereNobodyKeepsThemTheyAreDoneAtOnce) {
  const auto late = std::make_shared<LateWakes>();
  late->close();
  Sleeper sleeper;
  WakeLater scope;
  WakeLater::wake(sleeper.word);
  HeldWakes held;
  held.hold(scope, late);
  EXPECT_TRUE(sleeper.woken());
}

/// A pool whose thread attends; the attendant puts something into the inbox, whose reader sleeps, and begins a job.
class LateWakesPool : public ::testing::Test {
 protected:
  using Inbox = echomq::worker::Inbox;
  using HandlerPool = echomq::worker::HandlerPool;

  LateWakesPool() {
    handler_ = [this](Job&) {
      if (holds_) {
        begun_.set_value();
        go_.get_future().wait();
      }
      return echomq::Done();
    };
  }
  void start(std::size_t threads) {
    auto pool = HandlerPool::start(threads, handler_, inbox_, nullptr);
    ASSERT_TRUE(pool);
    pool_ = std::move(*pool);
    // Runs that do nothing, until the average says so.
    for (int i = 0; i < 1000 && (i == 0 || pool_->mean_run() >= 50us); ++i) {
      std::shared_ptr<JobState> one = job();
      pool_->submit(std::span(&one, 1));
      echomq::worker::Mail ended;
      while (ended.ended.empty())
        inbox_->wait(ended, Clock::now() + 60s);
    }
    holds_ = true;
    reader_ = std::thread([this] {
      number_ = ::gettid();
      echomq::worker::Mail mail;
      while (wakes_ == 0) {
        inbox_->wait(mail, Clock::now() + 60s);
        wakes_ += mail.wakes;
      }
    });
    await_sleep(number_);
    pool_->lend(
        [this](int) {
          inbox_->woken();
          HandlerPool::begin_here(job());
        },
        late_);
    begun_.get_future().wait();
  }
  [[nodiscard]] bool read(Clock::duration within) const {
    for (const auto until = Clock::now() + within; Clock::now() < until && wakes_ == 0;)
      std::this_thread::sleep_for(1ms);
    return wakes_ == 1;
  }
  void end_run() { go_.set_value(); }
  ~LateWakesPool() override {
    inbox_->woken();
    if (reader_.joinable())
      reader_.join();
  }

  const std::shared_ptr<LateWakes> late_ = std::make_shared<LateWakes>();

 private:
  using JobState = echomq::worker::JobState;
  [[nodiscard]] static std::shared_ptr<JobState> job() {
    echomq::ClaimedJob claimed;
    claimed.token = echomq::Token(1);
    return std::make_shared<JobState>(echomq::Queue(nullptr), std::move(claimed));
  }

  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  echomq::Handler handler_;
  std::atomic<bool> holds_{false};
  std::promise<void> begun_, go_;
  std::atomic<std::uint64_t> wakes_{0};
  std::atomic<pid_t> number_{0};
  std::thread reader_;
  std::unique_ptr<HandlerPool> pool_;
};

TEST_F(LateWakesPool, AShortRunComesBeforeTheReader) {
  start(1);
  EXPECT_FALSE(read(20ms));
  end_run();
  EXPECT_TRUE(read(10s));
}

TEST_F(LateWakesPool, WhichIsWokenInTimeWhenTheRunIsNotShort) {
  start(1);
  EXPECT_FALSE(read(20ms));
  late_->ring();
  EXPECT_TRUE(read(10s));
  end_run();
}

TEST_F(LateWakesPool, WhereAnotherThreadIsIdleItIsWokenAtOnce) {
  start(2);
  EXPECT_TRUE(read(10s));
  end_run();
}

}  // namespace
}  // namespace echomq::late_wakes_test
