// Admission on a real server: every way in, batches and their parts, rows that stand in the way, a full server.
#include <algorithm>
#include <set>

#include "server/queue_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(QueueServerTest, AJobIsExactlyItsThreeFields) {
  const auto admission = queue().enqueue(std::string_view("a\0b\r\n\xff", 6)).get();
  ASSERT_TRUE(admission) << admission.error().message();
  EXPECT_EQ(admission->verdict, Admitted::enqueued);
  EXPECT_TRUE(admission->id.is_job());
  const auto row = queue().job(admission->id).get().value().value();
  EXPECT_EQ(row.fields.size(), 3U);
  EXPECT_EQ(*row.find("state"), "pending");
  EXPECT_EQ(*row.find("attempts"), "0");
  EXPECT_EQ(*row.find("payload"), std::string("a\0b\r\n\xff", 6));
  EXPECT_EQ(row.find("group"), nullptr);
  EXPECT_THAT(places(admission->id), ElementsAre("pending"));
  EXPECT_EQ(queue().job(kJobA).get().value(), std::nullopt);
}

TEST_F(QueueServerTest, ALoopOfEnqueuesIsOnePipelineInOrder) {
  std::vector<Reply<Admission>> replies;
  for (int i = 0; i < 1000; ++i)
    replies.push_back(queue().enqueue(std::to_string(i)));
  std::vector<JobId> ids;
  for (auto& reply : replies)
    ids.push_back(reply.get().value().id);
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
  EXPECT_LT(client().stats().writes, 500U);
  auto newest = queue().browse(1000).get().value();
  std::reverse(newest.begin(), newest.end());
  EXPECT_EQ(newest, ids);
  EXPECT_EQ(queue().claim().get().value().value().payload, "0");
}

TEST_F(QueueServerTest, ADuplicateChangesNothing) {
  ASSERT_TRUE(queue().enqueue("first", {.id = kJobA}).get());
  const std::string before = digest();
  EXPECT_EQ(queue().enqueue("second", {.id = kJobA}).get()->verdict, Admitted::duplicate);
  EXPECT_EQ(queue().enqueue_in("second", 5ms, {.id = kJobA}).get()->verdict, Admitted::duplicate);
  EXPECT_EQ(queue().enqueue("second", {.id = kJobA, .lane = kLaneX}).get()->verdict, Admitted::duplicate);
  EXPECT_EQ(queue().enqueue_in("second", 5ms, {.id = kJobA, .lane = kLaneX}).get()->verdict, Admitted::duplicate);
  EXPECT_EQ(digest(), before);
}

/// A row that is in no set, and whose state names none, refused the same id for ever, silently.
TEST_F(QueueServerTest, ARowThatIsInNoSetIsReportedAndNotCalledADuplicate) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  raw("ZREM", "emq:{q}:pending", kJobA.text());
  raw("HSET", "emq:{q}:job:" + std::string(kJobA.text()), "state", "nonsense");
  const auto single = queue().enqueue("p", {.id = kJobA}).get();
  ASSERT_FALSE(single);
  EXPECT_TRUE(single.error().is(Errc::broken_state));
  EXPECT_THAT(single.error().text, HasSubstr(std::string(kJobA.text())));
  const NewJob jobs[] = {{"p", kJobA}, {"p", kJobB}};
  const auto many = queue().enqueue_many(jobs).get().value();
  EXPECT_TRUE(many[0].error().is(Errc::broken_state));
  EXPECT_EQ(many[1]->verdict, Admitted::enqueued);
  EXPECT_TRUE(queue().enqueue_in("p", 5ms, {.id = kJobA, .lane = kLaneX}).get().error().is(Errc::broken_state));
  ASSERT_TRUE(queue().remove(kJobA).get());
  EXPECT_EQ(queue().enqueue("p", {.id = kJobA}).get()->verdict, Admitted::enqueued);
}

TEST_F(QueueServerTest, ADuplicateOfAJobInAnyStateIsADuplicate) {
  const Token token = claimed(kJobA);
  EXPECT_EQ(queue().enqueue("p", {.id = kJobA}).get()->verdict, Admitted::duplicate);
  ASSERT_TRUE(queue().delay(kJobA, token, 1h).get());
  EXPECT_EQ(queue().enqueue("p", {.id = kJobA}).get()->verdict, Admitted::duplicate);
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobB, .lane = kLaneX}).get());
  EXPECT_EQ(queue().enqueue("p", {.id = kJobB}).get()->verdict, Admitted::duplicate);
  raw("HSET", "emq:{q}:job:" + std::string(kJobC.text()), "state", "awaiting_children", "attempts", "0");
  EXPECT_EQ(queue().enqueue("p", {.id = kJobC}).get()->verdict, Admitted::duplicate);
}

TEST_F(QueueServerTest, ScheduledJobsWaitForTheirTime) {
  ASSERT_TRUE(queue().enqueue_in("soon", 1s, {.id = kJobA}).get());
  ASSERT_TRUE(queue().enqueue_at("past", Instant(1ms), {.id = kJobB}).get());
  EXPECT_EQ(queue().claim().get().value(), std::nullopt);
  EXPECT_EQ(queue().promote().get().value(), 1);
  EXPECT_EQ(queue().claim().get().value().value().id, kJobB);
  std::this_thread::sleep_for(1005ms);
  EXPECT_EQ(queue().promote().get().value(), 1);
  EXPECT_EQ(queue().claim().get().value().value().id, kJobA);
}

TEST_F(QueueServerTest, AScheduledJobOfALaneIsPromotedIntoIt) {
  ASSERT_TRUE(queue().enqueue_in("p", 0ms, {.id = kJobA, .lane = kLaneX}).get());
  EXPECT_EQ(queue().state(kJobA).get().value(), JobState::scheduled);
  EXPECT_EQ(field(kJobA, "group"), kLaneX.text());
  EXPECT_EQ(queue().promote().get().value(), 1);
  EXPECT_EQ(queue().state(kJobA).get().value(), JobState::waiting_in_lane);
  const auto job = queue().claim_lane().get().value().value();
  EXPECT_EQ(job.id, kJobA);
  EXPECT_EQ(job.lane, kLaneX);
}

TEST_F(QueueServerTest, ManyJobsGoInAsFewScriptsAndComeOutInOrder) {
  constexpr std::size_t kJobs = 10'000;
  std::vector<std::string> payloads;
  for (std::size_t i = 0; i < kJobs; ++i)
    payloads.push_back("payload " + std::to_string(i));
  std::vector<NewJob> jobs;
  for (const std::string& payload : payloads)
    jobs.push_back({.payload = payload});
  const std::uint64_t before = client().stats().script_calls;
  const auto results = queue().enqueue_many(jobs).get().value();
  EXPECT_EQ(client().stats().script_calls - before, kJobs / 250);
  ASSERT_EQ(results.size(), kJobs);
  std::set<JobId> ids;
  for (std::size_t i = 0; i < kJobs; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error().message();
    EXPECT_EQ(results[i]->verdict, Admitted::enqueued);
    ids.insert(results[i]->id);
  }
  EXPECT_EQ(ids.size(), kJobs);
  EXPECT_EQ(queue().pending_size().get().value(), kJobs);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto job = queue().claim().get().value().value();
    EXPECT_EQ(job.id, results[i]->id);
    EXPECT_EQ(job.payload, payloads[i]);
  }
}

TEST_F(QueueServerTest, ABatchHasAVerdictForEachJob) {
  ASSERT_TRUE(queue().enqueue("first", {.id = kJobB}).get());
  const NewJob jobs[] = {{"1", kJobA}, {"2", kJobA}, {"3", JobId{"ORD0NgWEfAE00C"}}, {"4", kJobB}, {"5"}};
  const auto results = queue().enqueue_many(jobs).get().value();
  EXPECT_EQ(results[0]->verdict, Admitted::enqueued);
  EXPECT_EQ(results[1]->verdict, Admitted::duplicate);
  EXPECT_TRUE(results[2].error().is(Errc::wrong_kind));
  EXPECT_EQ(results[3]->verdict, Admitted::duplicate);
  EXPECT_EQ(results[4]->verdict, Admitted::enqueued);
  EXPECT_EQ(field(kJobA, "payload"), "1");
  EXPECT_EQ(queue().pending_size().get().value(), 3);
}

TEST_F(QueueServerTest, ABatchCanGoToALaneOrBeScheduled) {
  const std::vector<NewJob> jobs(300, NewJob{"p"});
  ASSERT_TRUE(queue().enqueue_many(jobs, {.lane = kLaneX}).get());
  ASSERT_TRUE(queue().enqueue_many(jobs, {.in = 1h}).get());
  ASSERT_TRUE(queue().enqueue_many(jobs, {.lane = kLaneY, .at = Instant(1ms)}).get());
  const LaneId lanes[] = {kLaneX, kLaneY};
  EXPECT_THAT(queue().lane_depths(lanes).get().value(), ElementsAre(300, 0));
  EXPECT_EQ(queue().counts().get()->scheduled, 600);
  EXPECT_EQ(queue().promote(1000).get().value(), 300);
  EXPECT_THAT(queue().lane_depths(lanes).get().value(), ElementsAre(300, 300));
}

/// Payloads of very different sizes: chunks are bounded by bytes as well, and a large one does not fail.
TEST_F(QueueServerTest, LargePayloadsTravelInSmallerChunks) {
  const std::string large(300'000, 'x');
  std::vector<NewJob> jobs(10, NewJob{large});
  const std::string huge(5'000'000, 'y');
  jobs.push_back({huge});
  const auto results = queue().enqueue_many(jobs).get().value();
  EXPECT_TRUE(std::all_of(results.begin(), results.end(), [](const auto& one) { return one.has_value(); }));
  EXPECT_EQ(queue().job(results.back()->id).get().value().value().find("payload")->size(), huge.size());
}

TEST_F(QueueServerTest, AFlushOfTheScriptsIsNotNoticed) {
  for (int round = 0; round < 20; ++round) {
    raw("SCRIPT", "FLUSH");
    auto single = queue().enqueue("p");
    const std::vector<NewJob> jobs(600, NewJob{"p"});
    auto many = queue().enqueue_many(jobs);
    ASSERT_TRUE(single.get());
    const auto results = many.get().value();
    for (const auto& one : results)
      EXPECT_EQ(one.value().verdict, Admitted::enqueued);
  }
  EXPECT_EQ(queue().pending_size().get().value(), 20 * 601);
}

class FullServerTest : public QueueServerTest {
 protected:
  [[nodiscard]] echomq::testing::PrivateServerOptions server_options() const override {
    return {.listen = echomq::testing::Listen::unix_socket, .max_memory = "8mb"};
  }
};

/// At maxmemory a job system must still let jobs go: refusing to settle would keep it full for ever.
TEST_F(FullServerTest, AdmissionIsRefusedByNameAndWhatFreesMemoryGoesOn) {
  const std::string large(100'000, 'x');
  std::vector<JobId> admitted;
  std::optional<Error> refusal;
  while (!refusal && admitted.size() < 1000) {
    const auto admission = queue().enqueue(large).get();
    if (admission) {
      admitted.push_back(admission->id);
    } else {
      refusal = admission.error();
    }
  }
  ASSERT_TRUE(refusal);
  EXPECT_TRUE(refusal->is(Errc::out_of_memory)) << refusal->message();
  const std::vector<NewJob> jobs(2, NewJob{large});
  const auto refused = queue().enqueue_many(jobs).get().value();
  for (const auto& one : refused)
    EXPECT_TRUE(one.error().is(Errc::out_of_memory));
  EXPECT_TRUE(queue().enqueue_in(large, 1h).get().error().is(Errc::out_of_memory));
  ASSERT_GT(admitted.size(), 5U);

  const auto first = queue().claim().get().value().value();
  EXPECT_TRUE(queue().extend(first.id, first.token, 1min).get());
  EXPECT_TRUE(queue().complete(first.id, first.token).get());
  const auto second = queue().claim().get().value().value();
  EXPECT_TRUE(queue().retry(second.id, second.token, {.delay = 0ms, .error = "full"}).get());
  const auto third = queue().claim().get().value().value();
  EXPECT_TRUE(queue().hand_back(third.id, third.token).get());
  EXPECT_TRUE(queue().promote().get());
  EXPECT_TRUE(queue().reap().get());
  EXPECT_TRUE(queue().remove(third.id).get());
}

}  // namespace
}  // namespace echomq::test
