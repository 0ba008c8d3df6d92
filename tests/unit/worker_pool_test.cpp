#include "worker/pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

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
    (*pool)->submit(job(std::to_string(i)));
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
  (*pool)->submit(first);
  begun.get_future().wait();
  (*pool)->submit(second);
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
  (*pool)->submit(job("kept"));
  begun->get_future().wait();
  EXPECT_EQ((*pool)->shutdown(), 1U);
  pool->reset();
  (void)inbox->close();
  inbox.reset();
  go->set_value();
  EXPECT_EQ(ended->get_future().get(), "kept");
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
