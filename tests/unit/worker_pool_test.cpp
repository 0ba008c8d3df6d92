#include "worker/pool.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>

#include <atomic>
#include <coroutine>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "worker/blocks.hpp"
#include "worker/inbox.hpp"

namespace {

using namespace std::chrono_literals;
using echomq::ClaimedJob;
using echomq::Job;
using echomq::Outcome;
using echomq::Queue;
using echomq::Token;
using echomq::worker::Clock;
using echomq::worker::Ended;
using echomq::worker::HandlerPool;
using echomq::worker::Inbox;
using echomq::worker::JobState;
using echomq::worker::Mail;

std::shared_ptr<JobState> job(const std::string& payload) {
  ClaimedJob claimed;
  claimed.token = Token(1);
  claimed.payload = payload;
  return std::make_shared<JobState>(Queue(nullptr), std::move(claimed));
}

void submit(HandlerPool& pool, std::shared_ptr<JobState> job) { pool.submit(std::span(&job, 1)); }

std::vector<Ended> wait_for(Inbox& inbox, std::size_t count) {
  std::vector<Ended> all;
  Mail mail;
  while (all.size() < count) {
    inbox.wait(mail, Clock::now() + 10s);
    if (mail.ended.empty())
      break;
    for (Ended& ended : mail.ended)
      all.push_back(std::move(ended));
  }
  return all;
}

TEST(HandlerPool, RunsEachJobOnceAndReportsItsOutcome) {
  auto inbox = std::make_shared<Inbox>();
  auto pool =
      HandlerPool::start(3, [](Job& seen) { return echomq::Done(std::string(seen.payload()) + "!"); }, inbox, nullptr);
  ASSERT_TRUE(pool);
  for (int i = 0; i < 100; ++i)
    submit(**pool, job(std::to_string(i)));
  std::set<std::string> results;
  for (const Ended& ended : wait_for(*inbox, 100))
    results.insert(ended.outcome.text);
  EXPECT_EQ(results.size(), 100U);
  EXPECT_EQ((*pool)->shutdown(), 0U);
}

TEST(HandlerPool, AJobThatNoThreadHasBegunCanBeTakenBack) {
  auto inbox = std::make_shared<Inbox>();
  std::promise<void> begun, go;
  auto pool = HandlerPool::start(
      1,
      [&](Job&) {
        begun.set_value();
        go.get_future().wait();
        return echomq::Done();
      },
      inbox, nullptr);
  ASSERT_TRUE(pool);
  const auto first = job("first"), second = job("second");
  submit(**pool, first);
  begun.get_future().wait();
  submit(**pool, second);
  EXPECT_FALSE((*pool)->withdraw(first.get()));
  EXPECT_TRUE((*pool)->withdraw(second.get()));
  EXPECT_FALSE((*pool)->withdraw(second.get()));
  go.set_value();
  EXPECT_EQ(wait_for(*inbox, 1).size(), 1U);
}

TEST(HandlerPool, AHandlerThatDoesNotReturnIsLeftAloneWithWhatItNeeds) {
  auto inbox = std::make_shared<Inbox>();
  auto begun = std::make_shared<std::promise<void>>();
  auto go = std::make_shared<std::promise<void>>();
  auto ended = std::make_shared<std::promise<std::string>>();
  auto pool = HandlerPool::start(
      2,
      [begun, go, ended](Job& seen) {
        begun->set_value();
        go->get_future().wait();
        ended->set_value(std::string(seen.payload()));
        return echomq::Done();
      },
      inbox, nullptr);
  ASSERT_TRUE(pool);
  submit(**pool, job("kept"));
  begun->get_future().wait();
  EXPECT_EQ((*pool)->shutdown(), 1U);
  pool->reset();
  (void)inbox->close();
  inbox.reset();
  go->set_value();
  EXPECT_EQ(ended->get_future().get(), "kept");
}

TEST(HandlerPool, BlockingHandlersGetAThreadEach) {
  auto inbox = std::make_shared<Inbox>();
  std::atomic<int> inside{0};
  std::atomic<bool> go{false};
  auto pool = HandlerPool::start(
      16,
      [&](Job&) {
        ++inside;
        while (!go)
          std::this_thread::sleep_for(1ms);
        return echomq::Done();
      },
      inbox, nullptr);
  ASSERT_TRUE(pool);
  std::vector<std::shared_ptr<JobState>> jobs;
  for (int i = 0; i < 16; ++i)
    jobs.push_back(job("x"));
  (*pool)->submit(jobs);
  const auto until = Clock::now() + 10s;
  while (inside < 16 && Clock::now() < until)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(inside, 16);
  go = true;
  EXPECT_EQ(wait_for(*inbox, 16).size(), 16U);
}

TEST(HandlerPool, AThreadThatIsGivenUpIsReplaced) {
  auto inbox = std::make_shared<Inbox>();
  std::promise<void> begun, go;
  auto pool = HandlerPool::start(
      1,
      [&](Job& seen) {
        if (seen.payload() == "stuck") {
          begun.set_value();
          go.get_future().wait();
        }
        return echomq::Done(std::string(seen.payload()));
      },
      inbox, nullptr);
  ASSERT_TRUE(pool);
  const auto stuck = job("stuck"), other = job("other");
  submit(**pool, stuck);
  begun.get_future().wait();
  submit(**pool, other);
  EXPECT_EQ((*pool)->abandon(other.get()), HandlerPool::Abandoned::nobody) << "it waits for a thread";
  EXPECT_EQ((*pool)->abandon(stuck.get()), HandlerPool::Abandoned::replaced);
  EXPECT_EQ((*pool)->abandon(stuck.get()), HandlerPool::Abandoned::nobody);
  std::vector<Ended> ended = wait_for(*inbox, 1);
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[0].outcome.text, "other");
  go.set_value();
  ended = wait_for(*inbox, 1);
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[0].outcome.text, "stuck") << "what it comes to is still told";
  for (const auto until = Clock::now() + 10s; (*pool)->seats() > 1 && Clock::now() < until;)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ((*pool)->seats(), 1U) << "its thread has ended";
}

TEST(HandlerPool, AHandlerWhoseThreadCannotBeReplacedIsToldToBe) {
  auto inbox = std::make_shared<Inbox>();
  std::promise<void> begun, go;
  auto pool = HandlerPool::start(
      1,
      [&](Job& seen) {
        if (seen.payload() == "stuck") {
          begun.set_value();
          go.get_future().wait();
        }
        return echomq::Done(std::string(seen.payload()));
      },
      inbox, nullptr);
  ASSERT_TRUE(pool);
  const auto stuck = job("stuck");
  submit(**pool, stuck);
  begun.get_future().wait();
  // No thread can be started: its stack would not fit.
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_getattr_default_np(&attributes), 0);
  std::size_t before = 0;
  ASSERT_EQ(pthread_attr_getstacksize(&attributes, &before), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, std::size_t{1} << 47U), 0);
  ASSERT_EQ(pthread_setattr_default_np(&attributes), 0);
  EXPECT_EQ((*pool)->abandon(stuck.get()), HandlerPool::Abandoned::stuck);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, before), 0);
  ASSERT_EQ(pthread_setattr_default_np(&attributes), 0);
  pthread_attr_destroy(&attributes);
  EXPECT_EQ((*pool)->seats(), 1U);
  submit(**pool, job("other"));
  go.set_value();
  const std::vector<Ended> ended = wait_for(*inbox, 2);
  ASSERT_EQ(ended.size(), 2U);
  EXPECT_EQ(ended[1].outcome.text, "other") << "its thread goes on with the next job";
}

echomq::Task<Outcome> echo_later(Job& seen) { co_return echomq::Done(std::string(seen.payload())); }

TEST(HandlerPool, CoroutinesEndTheSameWay) {
  auto inbox = std::make_shared<Inbox>();
  auto pool = HandlerPool::start(2, echomq::AsyncHandler(&echo_later), inbox, nullptr);
  ASSERT_TRUE(pool);
  for (int i = 0; i < 100; ++i)
    submit(**pool, job(std::to_string(i)));
  std::set<std::string> results;
  for (const Ended& ended : wait_for(*inbox, 100))
    results.insert(ended.outcome.text);
  EXPECT_EQ(results.size(), 100U);
  EXPECT_EQ((*pool)->shutdown(), 0U);
}

TEST(HandlerPool, ACoroutineBeginsWhenThereIsASlot) {
  auto inbox = std::make_shared<Inbox>();
  std::atomic<int> inside{0}, most{0};
  std::mutex mutex;
  std::vector<std::coroutine_handle<>> asleep;
  struct Sleep {
    std::mutex& mutex;
    std::vector<std::coroutine_handle<>>& asleep;
    [[nodiscard]] bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> handle) const {
      const std::lock_guard lock(mutex);
      asleep.push_back(handle);
    }
    void await_resume() const noexcept {}
  };
  const auto wake_all = [&] {
    std::vector<std::coroutine_handle<>> handles;
    {
      const std::lock_guard lock(mutex);
      handles.swap(asleep);
    }
    for (const std::coroutine_handle<> handle : handles)
      handle.resume();
    return handles.size();
  };
  auto pool = HandlerPool::start(3, echomq::AsyncHandler([&](Job&) -> echomq::Task<Outcome> {
                                   const int now = ++inside;
                                   int seen = most;
                                   while (now > seen && !most.compare_exchange_weak(seen, now)) {
                                   }
                                   co_await Sleep{mutex, asleep};
                                   --inside;
                                   co_return echomq::Done();
                                 }),
                                 inbox, nullptr, {}, 2);
  ASSERT_TRUE(pool);
  std::vector<std::shared_ptr<JobState>> jobs;
  for (int i = 0; i < 20; ++i) {
    jobs.push_back(job("x"));
    submit(**pool, jobs.back());
  }
  const auto until = Clock::now() + 10s;
  const auto wait_for_two = [&] {
    while (inside < 2 && Clock::now() < until)
      std::this_thread::sleep_for(1ms);
  };
  wait_for_two();
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(inside, 2);
  EXPECT_TRUE((*pool)->withdraw(jobs.back().get())) << "what waits can be taken back";
  EXPECT_EQ((*pool)->abandon(jobs[0].get()), HandlerPool::Abandoned::nobody) << "no thread runs it";
  const auto three = [&] {
    while (inside < 3 && Clock::now() < until)
      std::this_thread::sleep_for(1ms);
    return inside.load();
  };
  EXPECT_EQ(three(), 3) << "the slot of one that was given up is free";
  std::size_t woken = 0;
  while (woken < 19 && Clock::now() < until) {
    woken += wake_all();
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(wait_for(*inbox, 19).size(), 19U);
  EXPECT_EQ(most, 3) << "two, and the one without a slot";
  EXPECT_EQ((*pool)->shutdown(), 0U);
}

/// Waits for its bell; says when it has begun to.
struct Attendant {
  std::atomic<int> inside{0};
  std::atomic<int> left{0};
  [[nodiscard]] std::function<void(int)> function() {
    return [this](int bell) {
      ++inside;
      pollfd ring{bell, POLLIN, 0};
      (void)::poll(&ring, 1, 10'000);
      ++left;
    };
  }
};

bool eventually(const std::function<bool()>& holds) {
  for (const auto until = Clock::now() + 5s; Clock::now() < until; std::this_thread::sleep_for(1ms)) {
    if (holds())
      return true;
  }
  return holds();
}

TEST(HandlerPool, FromACertainMomentOnNothingBegins) {
  auto inbox = std::make_shared<Inbox>();
  std::promise<void> begun, go;
  auto pool = HandlerPool::start(
      2,
      [&](Job& seen) {
        if (seen.payload() == "first") {
          begun.set_value();
          go.get_future().wait();
        }
        return echomq::Done(std::string(seen.payload()));
      },
      inbox, nullptr);
  ASSERT_TRUE(pool);
  submit(**pool, job("first"));
  begun.get_future().wait();
  (*pool)->begin_no_more();
  const auto second = job("second");
  submit(**pool, second);
  go.set_value();
  const std::vector<Ended> ended = wait_for(*inbox, 1);
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[0].outcome.text, "first");
  std::this_thread::sleep_for(20ms);
  EXPECT_TRUE((*pool)->withdraw(second.get())) << "nobody has begun it";
  EXPECT_EQ((*pool)->begun(), 1U);
}

TEST(HandlerPool, AThreadThatAttendsIsCalledAwayForAJobAndComesBack) {
  Attendant attendant;  // outlives the pool
  auto inbox = std::make_shared<Inbox>();
  auto pool =
      HandlerPool::start(1, [](Job& seen) { return echomq::Done(std::string(seen.payload())); }, inbox, nullptr);
  ASSERT_TRUE(pool);
  (*pool)->lend(attendant.function());
  for (int round = 1; round <= 20; ++round) {
    ASSERT_TRUE(eventually([&] { return attendant.inside == round; }));
    EXPECT_EQ(attendant.left, round - 1);
    submit(**pool, job("x"));
    ASSERT_EQ(wait_for(*inbox, 1).size(), 1U);
    EXPECT_EQ(attendant.left, round);
  }
}

TEST(HandlerPool, AThreadThatAttendsIsLeftAloneWhileAnotherIsIdle) {
  Attendant attendant;  // outlives the pool
  auto inbox = std::make_shared<Inbox>();
  auto pool =
      HandlerPool::start(2, [](Job& seen) { return echomq::Done(std::string(seen.payload())); }, inbox, nullptr);
  ASSERT_TRUE(pool);
  (*pool)->lend(attendant.function());
  ASSERT_TRUE(eventually([&] { return attendant.inside == 1; }));
  for (int i = 0; i < 20; ++i) {
    submit(**pool, job("x"));
    ASSERT_EQ(wait_for(*inbox, 1).size(), 1U);
    std::this_thread::sleep_for(3ms);
  }
  // On a busy machine the other one may not be idle again after its pause; with each job it would be 20 times.
  const int called_away = attendant.left;
  EXPECT_LT(called_away, 10);
  EXPECT_EQ((*pool)->shutdown(), 0U) << "and is called away at the end";
  EXPECT_EQ(attendant.left, attendant.inside);
}

TEST(HandlerPool, WhatBeginsWhereAThreadAttendsIsRunByThatThread) {
  auto inbox = std::make_shared<Inbox>();
  std::thread::id ran_on;
  auto pool = HandlerPool::start(
      3,
      [&](Job& seen) {
        ran_on = std::this_thread::get_id();
        return echomq::Done(std::string(seen.payload()));
      },
      inbox, nullptr);
  ASSERT_TRUE(pool);
  EXPECT_FALSE(HandlerPool::attends(nullptr)) << "this thread is none of the pool's";
  for (int i = 0; i < 20; ++i) {
    std::promise<std::thread::id> attended_on;
    std::promise<bool> attends, attends_still;
    (*pool)->lend([&](int) {
      attends.set_value(HandlerPool::attends(nullptr));
      HandlerPool::begin_here(job("begun"));
      attends_still.set_value(HandlerPool::attends(nullptr));
      attended_on.set_value(std::this_thread::get_id());
    });
    const std::vector<Ended> ended = wait_for(*inbox, 1);
    ASSERT_EQ(ended.size(), 1U);
    EXPECT_EQ(ended[0].outcome.text, "begun");
    EXPECT_TRUE(attends.get_future().get());
    EXPECT_FALSE(attends_still.get_future().get()) << "one job at a time";
    EXPECT_EQ(attended_on.get_future().get(), ran_on);
  }
  EXPECT_EQ((*pool)->begun(), 20U);
}

TEST(HandlerPool, AnAttendantThatFindsNoIdleThreadWaitsForOne) {
  Attendant first, second;  // outlive the pool
  auto inbox = std::make_shared<Inbox>();
  std::promise<void> begun, go;
  auto pool = HandlerPool::start(
      1,
      [&](Job&) {
        begun.set_value();
        go.get_future().wait();
        return echomq::Done();
      },
      inbox, nullptr);
  ASSERT_TRUE(pool);
  submit(**pool, job("x"));
  begun.get_future().wait();
  (*pool)->lend(first.function());
  (*pool)->lend(second.function());
  go.set_value();
  EXPECT_TRUE(eventually([&] { return second.inside == 1; }));
  EXPECT_EQ(first.inside, 0) << "it was replaced before";
}

TEST(Blocks, AreUsedAgainAndOutliveTheirPool) {
  auto blocks = std::make_shared<echomq::worker::Blocks>();
  const echomq::worker::BlockAllocator<JobState> allocator(blocks);
  auto first = std::allocate_shared<JobState>(allocator, Queue(nullptr), ClaimedJob());
  const JobState* where = first.get();
  first.reset();
  auto second = std::allocate_shared<JobState>(allocator, Queue(nullptr), ClaimedJob());
  EXPECT_EQ(second.get(), where);
  blocks.reset();
  second.reset();
}

TEST(StopSwitch, TheFirstCauseStandsAndALateTokenIsStopped) {
  echomq::worker::StopSwitch off;
  EXPECT_EQ(off.cause(), echomq::StopCause::none);
  const std::stop_token early = off.token();
  EXPECT_FALSE(early.stop_requested());
  off.request(echomq::StopCause::timeout);
  off.request(echomq::StopCause::worker_stopped);
  EXPECT_EQ(off.cause(), echomq::StopCause::timeout);
  EXPECT_TRUE(early.stop_requested());
  echomq::worker::StopSwitch never_asked;
  never_asked.request(echomq::StopCause::cancelled);
  EXPECT_TRUE(never_asked.token().stop_requested());
}

TEST(Inbox, AReaderThatWaitsForManyEndsIsNotWokenForFew) {
  Inbox inbox;
  inbox.ended(job("x"), Outcome());
  Mail mail;
  const auto start = Clock::now();
  inbox.wait(mail, start + 30ms, 2);
  EXPECT_GE(Clock::now() - start, 30ms);
  EXPECT_EQ(mail.ended.size(), 1U) << "time gives what there is";
  inbox.ended(job("x"), Outcome());
  inbox.ended(job("x"), Outcome());
  inbox.wait(mail, Clock::time_point::max(), 2);
  EXPECT_EQ(mail.ended.size(), 2U);
}

TEST(Inbox, GivesAllMailAtOnceAndTheEarliestStop) {
  Inbox inbox;
  inbox.woken();
  inbox.woken();
  inbox.stop_by(Clock::time_point(5s));
  inbox.stop_by(Clock::time_point(3s));
  inbox.ended(job("x"), Outcome());
  Mail mail;
  inbox.wait(mail, Clock::time_point::max());
  EXPECT_EQ(mail.wakes, 2U);
  EXPECT_EQ(mail.ended.size(), 1U);
  EXPECT_EQ(mail.stop_by, Clock::time_point(3s));
  inbox.wait(mail, Clock::now() + 1ms);
  EXPECT_EQ(mail.wakes, 0U);
  EXPECT_TRUE(mail.ended.empty());
  EXPECT_FALSE(mail.stop_by);
}

TEST(Inbox, WakesASleepingReader) {
  Inbox inbox;
  Mail mail;
  std::thread poster([&] {
    std::this_thread::sleep_for(20ms);
    inbox.woken();
  });
  inbox.wait(mail, Clock::time_point::max());
  poster.join();
  EXPECT_EQ(mail.wakes, 1U);
}

TEST(Inbox, AClosedBoxRunsWhatIsPostedOnThePostersThread) {
  auto inbox = std::make_shared<Inbox>();
  (void)inbox->close();
  EXPECT_TRUE(inbox->closed());
  bool ran = false;
  inbox->post(echomq::Continuation([](void* flag) noexcept { *static_cast<bool*>(flag) = true; }, &ran));
  EXPECT_TRUE(ran);
}

}  // namespace
