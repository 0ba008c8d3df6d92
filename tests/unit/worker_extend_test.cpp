// A lease that its handler extends: until when the renewals need not come, whatever becomes of the calls.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <utility>

#include "unit/queue_fake_core.hpp"
#include "worker/job.hpp"

namespace echomq::test {
namespace {

using namespace std::chrono_literals;
using worker::Clock;
using worker::TimePoint;

class WorkerExtend : public ::testing::Test {
 protected:
  [[nodiscard]] std::chrono::seconds left() const {
    return std::chrono::duration_cast<std::chrono::seconds>(state_->extended_until.load() - Clock::now() + 500ms);
  }
  [[nodiscard]] bool none() const { return state_->extended_until.load() == TimePoint::min(); }

  FakeQueue queue_;
  const std::shared_ptr<worker::JobState> state_ = std::make_shared<worker::JobState>(
      queue_.queue, ClaimedJob{.id = kJobA, .token = Token(1), .payload = {}, .lane = {}});
  Job job_{state_};
};

TEST_F(WorkerExtend, ItCountsFromBeforeItsCallAndIsTakenBackWhenThatFails) {
  auto extension = job_.extend_async(3600s);
  EXPECT_EQ(left(), 3600s);
  queue_.core->refuse(Error(Errc::outcome_unknown, "lost"));
  EXPECT_FALSE(extension.get());
  EXPECT_TRUE(none());

  extension = job_.extend_async(3600s);
  queue_.core->answer(":1\r\n");
  EXPECT_TRUE(extension.get());
  EXPECT_EQ(left(), 3600s);
  extension = job_.extend_async(7200s);
  EXPECT_EQ(left(), 7200s);
  queue_.core->answer("-EMQSTALE extend token mismatch\r\n");
  EXPECT_FALSE(extension.get());
  EXPECT_EQ(left(), 3600s);
}

// It may have been carried out, and the server's lease is over long before what the earlier one gave.
TEST_F(WorkerExtend, AShorterOneWhoseAnswerIsLostLeavesNoMoreThanItAskedFor) {
  auto longer = job_.extend_async(3600s);
  queue_.core->answer(":1\r\n");
  EXPECT_TRUE(longer.get());
  auto shorter = job_.extend_async(60s);
  EXPECT_EQ(left(), 60s);
  queue_.core->refuse(Error(Errc::outcome_unknown, "lost"));
  EXPECT_FALSE(shorter.get());
  EXPECT_EQ(left(), 60s);
}

// What the second took back was what the first had only asked for.
TEST_F(WorkerExtend, OfTwoThatFailNothingIsLeft) {
  auto first = job_.extend_async(3600s);
  auto second = job_.extend_async(7200s);
  queue_.core->refuse(Error(Errc::outcome_unknown, "lost"));
  queue_.core->refuse(Error(Errc::outcome_unknown, "lost"));
  EXPECT_FALSE(first.get());
  EXPECT_FALSE(second.get());
  EXPECT_TRUE(none());
}

TEST_F(WorkerExtend, OneThatWasWithdrawnAndComesToNothingIsTakenBack) {
  auto extension = job_.extend_async(3600s);
  extension.cancel();
  EXPECT_TRUE(extension.get().error().is(Errc::cancelled));
  queue_.core->refuse(Error(Errc::timeout, "not written before its deadline"));
  EXPECT_TRUE(none());
}

TEST_F(WorkerExtend, ItIsSentPastTheInFlightBound) {
  auto extension = job_.extend_async(60s);
  EXPECT_TRUE(queue_.core->last().never_refused);
  queue_.core->answer(":1\r\n");
  EXPECT_TRUE(extension.get());
}

}  // namespace
}  // namespace echomq::test
