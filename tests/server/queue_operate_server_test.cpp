// What operators do to jobs and read of them, on a real server.
#include <condition_variable>
#include <mutex>

#include "server/queue_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(QueueServerTest, RemoveRespectsLocksAndOnlyItsOwnDedupKey) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  ASSERT_TRUE(queue().add_log(kJobA, "line").get());
  raw("SET", "emq:{q}:de:mine", kJobA.text());
  raw("SET", "emq:{q}:de:other", kJobB.text());
  raw("SET", "emq:{q}:job:" + std::string(kJobA.text()) + ":lock", "1");
  EXPECT_TRUE(queue().remove(kJobA).get().error().is(Errc::job_locked));
  raw("DEL", "emq:{q}:job:" + std::string(kJobA.text()) + ":lock");
  EXPECT_EQ(queue().dedup_holder(DedupId{"mine"}).get().value(), kJobA.text());
  ASSERT_TRUE(queue().remove(kJobA, DedupId{"mine"}).get());
  EXPECT_TRUE(queue().remove(kJobA, DedupId{"mine"}).get().error().is(Errc::job_gone));
  EXPECT_EQ(queue().dedup_holder(DedupId{"mine"}).get().value(), std::nullopt);
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  ASSERT_TRUE(queue().remove(kJobA, DedupId{"other"}).get());
  EXPECT_EQ(queue().dedup_holder(DedupId{"other"}).get().value(), kJobB.text());
  EXPECT_EQ(queue().state(kJobA).get().value(), JobState::absent);
  EXPECT_EQ(raw("KEYS", "emq:{q}:job:*").size(), 0U);
}

TEST_F(QueueServerTest, LogsKeepTheNewestLines) {
  EXPECT_TRUE(queue().logs(kJobA).get().error().is(Errc::job_gone));
  EXPECT_TRUE(queue().add_log(kJobA, "x").get().error().is(Errc::job_gone));
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  EXPECT_THAT(queue().logs(kJobA).get().value(), IsEmpty());
  EXPECT_EQ(queue().add_log(kJobA, "one").get().value(), 1);
  EXPECT_EQ(queue().add_log(kJobA, std::string_view("\0\n", 2)).get().value(), 2);
  EXPECT_EQ(queue().add_log(kJobA, "three", 2).get().value(), 2);
  EXPECT_THAT(queue().logs(kJobA).get().value(), ElementsAre(std::string("\0\n", 2), "three"));
}

TEST_F(QueueServerTest, PayloadAndProgressCanBeReplaced) {
  EXPECT_TRUE(queue().update_data(kJobA, "x").get().error().is(Errc::job_gone));
  EXPECT_TRUE(queue().update_progress(kJobA, "x").get().error().is(Errc::job_gone));
  ASSERT_TRUE(queue().enqueue("old", {.id = kJobA}).get());
  ASSERT_TRUE(queue().update_data(kJobA, "new").get());
  EXPECT_EQ(queue().claim().get().value().value().payload, "new");
}

TEST_F(QueueServerTest, EventsAreHeard) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> heard;
  SubscriptionHandlers handlers;
  handlers.on_message = [&](std::string_view, std::string_view message) {
    const std::lock_guard lock(mutex);
    heard.emplace_back(message);
    changed.notify_all();
  };
  const auto subscription = client().subscribe("emq:{q}:events", handlers).get();
  ASSERT_TRUE(subscription) << subscription.error().message();
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  ASSERT_TRUE(queue().update_progress(kJobA, "50").get());
  const std::pair<std::string_view, std::string_view> extra[] = {{"error", "line 1\nline \"2\""}};
  EXPECT_EQ(queue().publish("failed", kJobA, extra).get().value(), 1);
  std::unique_lock lock(mutex);
  ASSERT_TRUE(changed.wait_for(lock, 10s, [&] { return heard.size() == 2; }));
  EXPECT_THAT(heard[0], ::testing::HasSubstr("\"progress\":\"50\""));
  EXPECT_EQ(heard[1], R"({"event":"failed","job":"JOB0NgWEfAE00A","error":"line 1\nline \"2\""})");
}

TEST_F(QueueServerTest, CountsAreToldInTheOrderAsked) {
  const Token token = claimed(kJobA);
  ASSERT_TRUE(queue().complete(kJobA, token).get());
  (void)claimed(kJobB);
  ASSERT_TRUE(queue().enqueue_in("p", 1h).get());
  ASSERT_TRUE(queue().enqueue("p").get());
  ASSERT_TRUE(queue().enqueue("p").get());
  const auto counts = queue().counts().get().value();
  EXPECT_EQ(counts.pending, 2);
  EXPECT_EQ(counts.active, 1);
  EXPECT_EQ(counts.scheduled, 1);
  EXPECT_EQ(counts.dead, 0);
  EXPECT_EQ(counts.completed, 1);
  EXPECT_EQ(counts.failed, 0);
  const std::string_view names[] = {"completed", "schedule", "failed", "pending", "pending"};
  EXPECT_THAT(queue().counts_of(names).get().value(), ElementsAre(1, 1, 0, 2, 2));
  EXPECT_THAT(queue().counts_of({}).get().value(), IsEmpty());
  EXPECT_EQ(queue().metric(Metric::completed).get()->count, 1);
  EXPECT_EQ(queue().metric(Metric::completed).get()->data_points, 0);
}

TEST_F(QueueServerTest, BrowseShowsTheNewestFirst) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobC}).get());
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobB}).get());
  EXPECT_THAT(queue().browse(2).get().value(), ElementsAre(kJobC, kJobB));
  EXPECT_EQ(queue().browse(10).get()->size(), 3U);
}

TEST_F(QueueServerTest, EveryStateHasItsName) {
  EXPECT_EQ(queue().state(kJobA).get().value(), JobState::absent);
  const Token token = claimed(kJobA);
  EXPECT_EQ(queue().state(kJobA).get().value(), JobState::active);
  raw("ZREM", "emq:{q}:active", kJobA.text());
  EXPECT_EQ(queue().state(kJobA).get().value(), JobState::unknown);
  ASSERT_TRUE(queue().complete(kJobA, token).get());
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobB, .lane = kLaneX}).get());
  EXPECT_EQ(queue().state(kJobB).get().value(), JobState::waiting_in_lane);
  // A peer's reprocess puts a lane job into the flat set: there it is pending.
  raw("ZREM", "emq:{q}:g:" + std::string(kLaneX.text()) + ":pending", kJobB.text());
  raw("ZADD", "emq:{q}:pending", "0", kJobB.text());
  EXPECT_EQ(queue().state(kJobB).get().value(), JobState::pending);
  raw("HSET", "emq:{q}:job:" + std::string(kJobC.text()), "state", "awaiting_children");
  EXPECT_EQ(queue().state(kJobC).get().value(), JobState::awaiting_children);
  EXPECT_EQ(to_string(JobState::waiting_in_lane), "waiting_in_lane");
  EXPECT_EQ(to_string(JobState::unknown), "unknown");
}

TEST_F(QueueServerTest, LimitsOfTheQueueCanBeRead) {
  EXPECT_TRUE(queue().check_concurrency().get());
  EXPECT_EQ(queue().global_rate_limit().get().value(), 0);
  raw("HSET", "emq:{q}:meta", "concurrency", "1", "max", "5");
  (void)claimed(kJobA);
  EXPECT_TRUE(queue().check_concurrency().get().error().is(Errc::concurrency_ceiling));
  EXPECT_EQ(queue().global_rate_limit().get().value(), 5);
  raw("SET", "emq:{q}:limiter", "5", "PX", "60000");
  EXPECT_GT(queue().rate_limit_ttl().get().value(), 50s);
  EXPECT_EQ(queue().rate_limit_ttl(6).get().value(), 0ms);
  raw("HSET", "emq:{q}:meta", "max", "many");
  EXPECT_TRUE(queue().global_rate_limit().get().error().is(Errc::protocol_error));
}

TEST_F(QueueServerTest, DepthsOfMoreLanesThanOneScriptTakes) {
  std::vector<LaneId> lanes;
  for (std::uint64_t i = 0; i < 2500; ++i)
    lanes.emplace_back(BrandedId::encode("PRT", i).value());
  ASSERT_TRUE(queue().enqueue("p", {.lane = lanes[0]}).get());
  ASSERT_TRUE(queue().enqueue("p", {.lane = lanes[2499]}).get());
  const auto depths = queue().lane_depths(lanes).get().value();
  ASSERT_EQ(depths.size(), 2500U);
  EXPECT_EQ(depths[0], 1);
  EXPECT_EQ(depths[1], 0);
  EXPECT_EQ(depths[2499], 1);
}

TEST_F(QueueServerTest, AKeyOfAnotherTypeIsTheServersError) {
  raw("SET", "emq:{q}:pending", "text");
  const auto error = queue().enqueue("p", {.id = kJobA}).get().error();
  EXPECT_TRUE(error.is(Errc::server_error)) << error.message();
  EXPECT_THAT(error.text, ::testing::HasSubstr("WRONGTYPE"));
  EXPECT_TRUE(queue().pending_size().get().error().is(Errc::server_error));
  EXPECT_TRUE(queue().state(kJobA).get().error().is(Errc::server_error));
}

TEST_F(QueueServerTest, AfterCloseEveryVerbSaysSo) {
  client().close();
  EXPECT_TRUE(queue().enqueue("p", {.id = kJobA}).get().error().is(Errc::client_closed));
  EXPECT_TRUE(queue().claim().get().error().is(Errc::client_closed));
  EXPECT_TRUE(queue().complete(kJobA, Token(1)).get().error().is(Errc::client_closed));
  EXPECT_TRUE(queue().state(kJobA).get().error().is(Errc::client_closed));
  EXPECT_TRUE(queue().logs(kJobA).get().error().is(Errc::client_closed));
  EXPECT_EQ(queue().name(), QueueName{"q"});
}

}  // namespace
}  // namespace echomq::test
