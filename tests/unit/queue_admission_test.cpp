// Admission against answers that a server rarely gives: taken ids, lost answers, chunks that fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "queue/admit_call.hpp"
#include "queue/admit_many.hpp"
#include "unit/queue_fake_core.hpp"

namespace echomq::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(QueueAdmission, SendsTheCanonicalScripts) {
  FakeQueue f;
  f.core->next_ids = {1, 2};
  auto minted = f.queue.enqueue("p");
  EXPECT_EQ(f.core->last().script, "enqueue");
  EXPECT_EQ(f.core->last().repeat, Repeat::safe);
  EXPECT_THAT(std::vector(f.core->last().parts.begin() + 2, f.core->last().parts.end()),
              ElementsAre("2", "emq:{q}:job:JOB00000000001", "emq:{q}:pending", "JOB00000000001", "p"));

  auto scheduled = f.queue.enqueue_in("", Milliseconds(5), {.id = kJobA});
  EXPECT_EQ(f.core->last().script, "schedule");
  EXPECT_THAT(std::vector(f.core->last().parts.begin() + 2, f.core->last().parts.end()),
              ElementsAre("2", "emq:{q}:job:JOB0NgWEfAE00A", "emq:{q}:schedule", "JOB0NgWEfAE00A", "", "in", "5"));

  auto lane = f.queue.enqueue("p", {.id = kJobA, .lane = kLane});
  EXPECT_EQ(f.core->last().script, "genqueue");
  EXPECT_THAT(std::vector(f.core->last().parts.begin() + 2, f.core->last().parts.end()),
              ElementsAre("7", "emq:{q}:job:JOB0NgWEfAE00A", "emq:{q}:g:PRT0NgWEfAE00X:pending", "emq:{q}:ring",
                          "emq:{q}:paused", "emq:{q}:glimit", "emq:{q}:gactive", "emq:{q}:wake", "JOB0NgWEfAE00A", "p",
                          "PRT0NgWEfAE00X"));

  auto later_in_lane = f.queue.enqueue_at("p", Instant(Milliseconds(-7)), {.id = kJobA, .lane = kLane});
  EXPECT_EQ(f.core->last().script, "admit");
  EXPECT_THAT(std::vector(f.core->last().parts.begin() + 11, f.core->last().parts.end()),
              ElementsAre("emq:{q}:", "PRT0NgWEfAE00X", "at", "-7", "JOB0NgWEfAE00A", "p"));
}

TEST(QueueAdmission, AFreshIdThatIsTakenIsMintedAgain) {
  FakeQueue f;
  f.core->next_ids = {1, 2};
  // The payload holds the id as well: only the id itself may change.
  auto reply = f.queue.enqueue("about JOB00000000001");
  f.core->answer(":0\r\n");
  ASSERT_FALSE(reply.ready());
  EXPECT_EQ(f.core->collisions, 1);
  EXPECT_EQ(f.core->last().script, "enqueue");
  EXPECT_THAT(std::vector(f.core->last().parts.begin() + 3, f.core->last().parts.end()),
              ElementsAre("emq:{q}:job:JOB00000000002", "emq:{q}:pending", "JOB00000000002", "about JOB00000000001"));
  f.core->answer(":1\r\n");
  const auto admission = reply.get();
  ASSERT_TRUE(admission.has_value());
  EXPECT_EQ(admission->id.text(), "JOB00000000002");
  EXPECT_EQ(admission->verdict, Admitted::enqueued);
}

TEST(QueueAdmission, AScheduledLaneJobIsMintedAgainToo) {
  FakeQueue f;
  f.core->next_ids = {1, 2};
  auto reply = f.queue.enqueue_in("p", Milliseconds(1), {.lane = kLane});
  f.core->answer("*1\r\n:0\r\n");
  EXPECT_EQ(f.core->last().script, "admit");
  EXPECT_EQ(f.core->last().parts.at(3), "emq:{q}:pending");
  EXPECT_EQ(f.core->last().parts.at(15), "JOB00000000002");
  f.core->answer("*1\r\n:1\r\n");
  EXPECT_EQ(reply.get()->id.text(), "JOB00000000002");
}

TEST(QueueAdmission, CollisionsAreBounded) {
  FakeQueue f;
  f.core->next_ids = {1, 2, 3, 4, 5, 6};
  auto reply = f.queue.enqueue("p");
  for (int i = 0; i < queue::kMostCollisions; ++i)
    f.core->answer(":0\r\n");
  const auto admission = reply.get();
  ASSERT_FALSE(admission.has_value());
  EXPECT_TRUE(admission.error().is(Errc::minter_exhausted));
  EXPECT_THAT(admission.error().text, HasSubstr("JOB00000000004"));
  EXPECT_EQ(f.core->collisions, queue::kMostCollisions);
}

TEST(QueueAdmission, AMinterThatStopsBetweenTwoAttemptsIsTold) {
  FakeQueue f;
  f.core->next_ids = {1};
  auto reply = f.queue.enqueue("p");
  f.core->answer(":0\r\n");
  EXPECT_TRUE(reply.get().error().is(Errc::node_lease_lost));
}

TEST(QueueAdmission, AfterALostAnswerADuplicateOfAFreshIdIsTheFirstAttempt) {
  FakeQueue f;
  f.core->next_ids = {1};
  auto reply = f.queue.enqueue("p");
  f.core->answer(":0\r\n", true);
  EXPECT_EQ(reply.get()->verdict, Admitted::enqueued);
  EXPECT_EQ(f.core->collisions, 0);
}

TEST(QueueAdmission, ADuplicateOfAChosenIdIsLookedAt) {
  FakeQueue f;
  auto reply = f.queue.enqueue("p", {.id = kJobA});
  f.core->answer(":0\r\n");
  EXPECT_EQ(f.core->last().script, "state_lookup");
  EXPECT_THAT(std::vector(f.core->last().parts.begin() + 2, f.core->last().parts.end()),
              ElementsAre("5", "emq:{q}:pending", "emq:{q}:active", "emq:{q}:schedule", "emq:{q}:dead",
                          "emq:{q}:job:JOB0NgWEfAE00A", "JOB0NgWEfAE00A"));
  f.core->answer("$6\r\nactive\r\n");
  EXPECT_EQ(reply.get()->verdict, Admitted::duplicate);
}

TEST(QueueAdmission, AfterALostAnswerADuplicateOfAChosenIdIsPresent) {
  FakeQueue f;
  auto reply = f.queue.enqueue("p", {.id = kJobA});
  f.core->answer(":0\r\n", true);
  f.core->answer("$7\r\npending\r\n");
  EXPECT_EQ(reply.get()->verdict, Admitted::present);
}

TEST(QueueAdmission, ARowInNoSetIsNotSilentlyADuplicate) {
  FakeQueue f;
  auto reply = f.queue.enqueue("p", {.id = kJobA});
  f.core->answer(":0\r\n");
  f.core->answer("$7\r\nunknown\r\n");
  const auto admission = reply.get();
  ASSERT_FALSE(admission.has_value());
  EXPECT_TRUE(admission.error().is(Errc::broken_state));
  EXPECT_THAT(admission.error().text, HasSubstr("JOB0NgWEfAE00A"));
}

TEST(QueueAdmission, ALookThatFailsLeavesTheDuplicateCertain) {
  FakeQueue f;
  auto reply = f.queue.enqueue("p", {.id = kJobA});
  f.core->answer(":0\r\n");
  f.core->refuse(Error(Errc::timeout, "late"));
  EXPECT_EQ(reply.get()->verdict, Admitted::duplicate);
}

TEST(QueueAdmission, RefusalsKeepTheServersText) {
  FakeQueue f;
  auto reply = f.queue.enqueue("p", {.id = JobId{"ORD0NgWEfAE00A"}});
  f.core->answer("-EMQKIND job id must be JOB-namespaced\r\n");
  const auto admission = reply.get();
  EXPECT_TRUE(admission.error().is(Errc::wrong_kind));
  EXPECT_EQ(admission.error().text, "EMQKIND job id must be JOB-namespaced");
}

TEST(QueueAdmission, AReplyOfAnotherShapeIsAProtocolError) {
  FakeQueue f;
  auto reply = f.queue.enqueue("p", {.id = kJobA});
  f.core->answer("+OK\r\n");
  EXPECT_TRUE(reply.get().error().is(Errc::protocol_error));
}

TEST(QueueAdmission, TheSecondRequestKeepsTheDeadlineOfTheFirst) {
  FakeQueue f;
  auto reply = f.queue.enqueue("p", {.id = kJobA, .deadline = Milliseconds(1)});
  std::this_thread::sleep_for(Milliseconds(3));
  f.core->answer(":0\r\n");
  EXPECT_EQ(f.core->waiting(), 1U);  // the fake core does not end late calls; the real one does, at once
  f.core->refuse(Error(Errc::timeout, "late"));
  EXPECT_EQ(reply.get()->verdict, Admitted::duplicate);
}

/// The ids of a chunk that was sent.
std::vector<std::string> ids_of(const FakeCore::Sent& sent) {
  std::vector<std::string> ids;
  for (std::size_t i = 15; i < sent.parts.size(); i += 2)
    ids.push_back(sent.parts[i]);
  return ids;
}

std::string verdicts(std::initializer_list<int> numbers) {
  std::string frame = "*" + std::to_string(numbers.size()) + "\r\n";
  for (const int number : numbers)
    frame += ":" + std::to_string(number) + "\r\n";
  return frame;
}

TEST(QueueAdmitMany, EachJobHasItsOwnVerdict) {
  FakeQueue f;
  f.core->next_ids = {1};
  const std::vector<NewJob> jobs = {{"a", kJobA}, {"b", kJobA}, {"c", JobId{"ORD0NgWEfAE00A"}}, {"d"}, {"e", kJobB}};
  auto reply = f.queue.enqueue_many(jobs);
  EXPECT_EQ(f.core->last().script, "admit");
  EXPECT_THAT(ids_of(f.core->last()),
              ElementsAre("JOB0NgWEfAE00A", "JOB0NgWEfAE00A", "ORD0NgWEfAE00A", "JOB00000000001", "JOB0NgWEfAE00B"));
  f.core->answer(verdicts({1, 0, -2, 1, -3}));
  const auto results = reply.get().value();
  ASSERT_EQ(results.size(), 5U);
  EXPECT_EQ(results[0]->verdict, Admitted::enqueued);
  EXPECT_EQ(results[1]->verdict, Admitted::duplicate);
  EXPECT_TRUE(results[2].error().is(Errc::wrong_kind));
  EXPECT_EQ(results[3]->id.text(), "JOB00000000001");
  EXPECT_TRUE(results[4].error().is(Errc::broken_state));
}

TEST(QueueAdmitMany, ChunksAreBoundedByCountAndByBytes) {
  FakeQueue f;
  const std::vector<NewJob> many(2 * queue::kChunkJobs + 1, NewJob{"p", kJobA});
  auto by_count = f.queue.enqueue_many(many);
  ASSERT_EQ(f.core->all.size(), 3U);
  EXPECT_EQ(ids_of(f.core->all[0]).size(), queue::kChunkJobs);
  EXPECT_EQ(ids_of(f.core->all[2]).size(), 1U);

  f.core->all.clear();
  const std::string large(queue::kChunkBytes / 2, 'x');
  const std::string huge(2 * queue::kChunkBytes, 'x');
  const std::vector<NewJob> big = {{large, kJobA}, {large, kJobA}, {huge, kJobA}, {"small", kJobA}, {"small", kJobA}};
  auto by_bytes = f.queue.enqueue_many(big);
  ASSERT_EQ(f.core->all.size(), 4U);
  EXPECT_EQ(ids_of(f.core->all[0]).size(), 1U);  // two of these are above the bound by their ids
  EXPECT_EQ(ids_of(f.core->all[2]).size(), 1U);
  EXPECT_EQ(ids_of(f.core->all[3]).size(), 2U);
}

TEST(QueueAdmitMany, AChunkThatFailsDoesNotTakeTheOthers) {
  FakeQueue f;
  const std::vector<NewJob> jobs(queue::kChunkJobs + 2, NewJob{"p", kJobA});
  auto reply = f.queue.enqueue_many(jobs);
  f.core->answer("-OOM command not allowed when used memory > 'maxmemory'.\r\n");
  EXPECT_FALSE(reply.ready());
  f.core->answer(verdicts({1, 0}));
  const auto results = reply.get().value();
  EXPECT_TRUE(results[0].error().is(Errc::out_of_memory));
  EXPECT_TRUE(results[queue::kChunkJobs - 1].error().is(Errc::out_of_memory));
  EXPECT_EQ(results[queue::kChunkJobs]->verdict, Admitted::enqueued);
  EXPECT_EQ(results[queue::kChunkJobs + 1]->verdict, Admitted::duplicate);
}

TEST(QueueAdmitMany, TakenIdsOfAChunkAreMintedAgainTogether) {
  FakeQueue f;
  f.core->next_ids = {1, 2, 3, 4, 5};
  const std::vector<NewJob> jobs = {{"a"}, {"b", kJobA}, {"c"}, {"d"}};
  auto reply = f.queue.enqueue_many(jobs, {.lane = kLane});
  f.core->answer(verdicts({0, 0, 1, 0}));
  EXPECT_EQ(f.core->collisions, 2);
  const FakeCore::Sent& again = f.core->last();
  EXPECT_THAT(std::vector(again.parts.begin() + 11, again.parts.end()),
              ElementsAre("emq:{q}:", "PRT0NgWEfAE00X", "", "0", "JOB00000000004", "a", "JOB00000000005", "d"));
  f.core->answer(verdicts({1, 1}));
  const auto results = reply.get().value();
  EXPECT_EQ(results[0]->id.text(), "JOB00000000004");
  EXPECT_EQ(results[0]->verdict, Admitted::enqueued);
  EXPECT_EQ(results[1]->verdict, Admitted::duplicate);
  EXPECT_EQ(results[2]->id.text(), "JOB00000000002");
  EXPECT_EQ(results[3]->id.text(), "JOB00000000005");
}

TEST(QueueAdmitMany, TakenIdsOfUnlikeJobsKeepTheirRecords) {
  FakeQueue f;
  f.core->next_ids = {1, 2, 3, 4, 5};
  const std::vector<MixedJob> jobs = {{.payload = "a", .run = {.max_attempts = 3, .keep = Milliseconds(9)}},
                                      {.payload = "b", .id = kJobA, .run = {.timeout = Milliseconds(5)}},
                                      {.payload = "c", .lane = kLane, .in = Milliseconds(7)},
                                      {.payload = "d"}};
  auto reply = f.queue.enqueue_mixed(jobs);
  EXPECT_THAT(std::vector(f.core->last().parts.begin() + 11, f.core->last().parts.end()),
              ElementsAre("emq:{q}:", "", "each", "0",                                                //
                          "JOB00000000001", "a", "", "", "0", "2", "max_attempts", "3", "keep", "9",  //
                          "JOB0NgWEfAE00A", "b", "", "", "0", "1", "timeout", "5",                    //
                          "JOB00000000002", "c", "PRT0NgWEfAE00X", "in", "7", "0",                    //
                          "JOB00000000003", "d", "", "", "0", "0"));
  f.core->answer(verdicts({0, 0, 0, 1}));
  EXPECT_EQ(f.core->collisions, 2);
  EXPECT_THAT(std::vector(f.core->last().parts.begin() + 11, f.core->last().parts.end()),
              ElementsAre("emq:{q}:", "", "each", "0",                                                //
                          "JOB00000000004", "a", "", "", "0", "2", "max_attempts", "3", "keep", "9",  //
                          "JOB00000000005", "c", "PRT0NgWEfAE00X", "in", "7", "0"));
  f.core->answer(verdicts({1, 1}));
  const auto results = reply.get().value();
  EXPECT_EQ(results[0]->id.text(), "JOB00000000004");
  EXPECT_EQ(results[1]->verdict, Admitted::duplicate);
  EXPECT_EQ(results[2]->id.text(), "JOB00000000005");
  EXPECT_EQ(results[3]->id.text(), "JOB00000000003");
}

TEST(QueueAdmission, AJobWithFieldsOfItsOwnIsMintedAgainToo) {
  FakeQueue f;
  f.core->next_ids = {1, 2};
  auto reply = f.queue.enqueue("p", {.run = {.max_attempts = 3}});
  EXPECT_EQ(f.core->last().script, "admit");
  EXPECT_THAT(std::vector(f.core->last().parts.begin() + 11, f.core->last().parts.end()),
              ElementsAre("emq:{q}:", "", "each", "0", "JOB00000000001", "p", "", "", "0", "1", "max_attempts", "3"));
  f.core->answer("*1\r\n:0\r\n");
  EXPECT_EQ(f.core->last().parts.at(15), "JOB00000000002");
  f.core->answer("*1\r\n:1\r\n");
  EXPECT_EQ(reply.get()->id.text(), "JOB00000000002");
}

TEST(QueueAdmitMany, CollisionsAreBounded) {
  FakeQueue f;
  f.core->next_ids = {1, 2, 3, 4, 5};
  const std::vector<NewJob> jobs = {{"a"}};
  auto reply = f.queue.enqueue_many(jobs);
  while (f.core->waiting() > 0)
    f.core->answer(verdicts({0}));
  const auto results = reply.get().value();
  EXPECT_TRUE(results[0].error().is(Errc::minter_exhausted));
  EXPECT_EQ(f.core->all.size(), queue::kMostCollisions);
}

TEST(QueueAdmitMany, AfterALostAnswerDuplicatesAreOursOrPresent) {
  FakeQueue f;
  f.core->next_ids = {1};
  const std::vector<NewJob> jobs = {{"a"}, {"b", kJobA}};
  auto reply = f.queue.enqueue_many(jobs);
  f.core->answer(verdicts({0, 0}), true);
  const auto results = reply.get().value();
  EXPECT_EQ(results[0]->verdict, Admitted::enqueued);
  EXPECT_EQ(results[1]->verdict, Admitted::present);
}

TEST(QueueAdmitMany, AReplyOfAnotherLengthIsAProtocolErrorOfEachJob) {
  FakeQueue f;
  const std::vector<NewJob> jobs = {{"a", kJobA}, {"b", kJobB}};
  auto reply = f.queue.enqueue_many(jobs);
  f.core->answer(verdicts({1}));
  const auto results = reply.get().value();
  EXPECT_TRUE(results[0].error().is(Errc::protocol_error));
  EXPECT_TRUE(results[1].error().is(Errc::protocol_error));
}

TEST(QueueAdmitMany, AMinterThatStopsRefusesTheWholeBeforeAnythingIsSent) {
  FakeQueue f;
  f.core->next_ids = {1};
  const std::vector<NewJob> jobs = {{"a"}, {"b"}};
  EXPECT_TRUE(f.queue.enqueue_many(jobs).get().error().is(Errc::node_lease_lost));
  EXPECT_TRUE(f.core->all.empty());
}

TEST(QueueAdmitMany, AClosedClientAnswersForEachJob) {
  FakeQueue f;
  f.core->close();
  const std::vector<NewJob> jobs(queue::kChunkJobs + 1, NewJob{"p", kJobA});
  const auto results = f.queue.enqueue_many(jobs).get().value();
  ASSERT_EQ(results.size(), jobs.size());
  EXPECT_TRUE(results.front().error().is(Errc::client_closed));
  EXPECT_TRUE(results.back().error().is(Errc::client_closed));
}

TEST(QueueAdmitMany, ABatchThatNobodyWaitsForEndsByItself) {
  FakeQueue f;
  const std::vector<NewJob> jobs = {{"a", kJobA}};
  {
    auto dropped = f.queue.enqueue_many(jobs);
  }
  auto cancelled = f.queue.enqueue_many(jobs);
  std::move(cancelled).detach();
  f.core->answer(verdicts({1}));
  f.core->answer(verdicts({1}));
  EXPECT_EQ(f.core->waiting(), 0U);
}

}  // namespace
}  // namespace echomq::test
