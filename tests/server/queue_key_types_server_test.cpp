// Admission where a key of the queue is of another type: it is refused, and nothing of the job stays behind.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "echomq/flow.hpp"
#include "server/queue_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class KeyTypesServerTest : public QueueServerTest {
 protected:
  /// The first error of the call, or of a job of it.
  using Admitting = std::function<std::optional<Error>(Queue&)>;

  void expect_refused_whole(const std::string& key, const Admitting& call) {
    SCOPED_TRACE(key);
    raw("SET", key, "text");
    const std::string before = digest();
    const std::optional<Error> error = call(queue());
    ASSERT_TRUE(error);
    EXPECT_TRUE(error->is(Errc::server_error)) << error->message();
    EXPECT_THAT(error->text, HasSubstr("WRONGTYPE"));
    EXPECT_EQ(digest(), before) << raw("KEYS", "emq:*").to_string();
    // A row that had stayed behind would be called a duplicate.
    raw("DEL", key);
    const std::optional<Error> again = call(queue());
    EXPECT_FALSE(again) << again->message();
    raw("FLUSHALL");
  }
  [[nodiscard]] static std::optional<Error> error_of(const Result<Admission>& admitted) {
    if (!admitted)
      return admitted.error();
    if (admitted->verdict == Admitted::duplicate)
      return Error(Errc::broken_state, "a duplicate");
    return std::nullopt;
  }
  [[nodiscard]] static std::optional<Error> error_of(const Result<std::vector<Result<Admission>>>& batch) {
    if (!batch)
      return batch.error();
    for (const auto& one : *batch) {
      if (auto error = error_of(one))
        return error;
    }
    return std::nullopt;
  }
  const std::string pending_ = "emq:{q}:pending";
  const std::string schedule_ = "emq:{q}:schedule";
  const std::string lane_ = "emq:{q}:g:" + std::string(kLaneX.text()) + ":pending";
};

// The row was written before the set refused: the job ran never, and its id was taken.
TEST_F(KeyTypesServerTest, OneJob) {
  expect_refused_whole(pending_, [](Queue& q) { return error_of(q.enqueue("p", {.id = kJobA}).get()); });
  expect_refused_whole(lane_, [](Queue& q) { return error_of(q.enqueue("p", {.id = kJobA, .lane = kLaneX}).get()); });
  expect_refused_whole(schedule_, [](Queue& q) { return error_of(q.enqueue_in("p", 1h, {.id = kJobA}).get()); });
  expect_refused_whole(
      schedule_, [](Queue& q) { return error_of(q.enqueue("p", {.id = kJobA, .lane = kLaneX, .in = 1h}).get()); });
  expect_refused_whole(
      pending_, [](Queue& q) { return error_of(q.enqueue("p", {.id = kJobA, .run = {.max_attempts = 2}}).get()); });
}

TEST_F(KeyTypesServerTest, ABatch) {
  const std::vector<NewJob> jobs = {{"a", kJobA}, {"b", kJobB}};
  expect_refused_whole(pending_, [&](Queue& q) { return error_of(q.enqueue_many(jobs).get()); });
  expect_refused_whole(lane_, [&](Queue& q) { return error_of(q.enqueue_many(jobs, {.lane = kLaneX}).get()); });
  expect_refused_whole(schedule_, [&](Queue& q) { return error_of(q.enqueue_many(jobs, {.in = 1h}).get()); });
}

// Neither what comes before the job of the bad set nor what comes behind it.
TEST_F(KeyTypesServerTest, ABatchOfUnlikeJobs) {
  const std::vector<MixedJob> jobs = {{.payload = "a", .id = kJobA},
                                      {.payload = "b", .id = kJobB, .lane = kLaneX},
                                      {.payload = "c", .id = kJobC, .in = 1h},
                                      {.payload = "d", .lane = kLaneY}};
  for (const std::string& key : {pending_, lane_, schedule_})
    expect_refused_whole(key, [&](Queue& q) { return error_of(q.enqueue_mixed(jobs).get()); });
}

TEST_F(KeyTypesServerTest, AFlow) {
  const std::vector<FlowJob> children = {{.payload = "b", .id = kJobB}, {.payload = "c", .id = kJobC}};
  expect_refused_whole(pending_, [&](Queue& q) -> std::optional<Error> {
    const auto added = Flow(q).add({.payload = "a", .id = kJobA, .children = children}).get();
    return added ? std::nullopt : std::optional(added.error());
  });
}

// A child in another queue is admitted by itself; its parent is held until it is.
TEST_F(KeyTypesServerTest, AChildInAnotherQueue) {
  const std::vector<FlowJob> children = {{.payload = "b", .id = kJobB, .queue = QueueName("other")}};
  const FlowJob root{.payload = "a", .id = kJobA, .children = children};
  raw("SET", "emq:{other}:pending", "text");
  EXPECT_FALSE(Flow(queue()).add(root).get());
  EXPECT_THAT(raw("KEYS", "emq:{other}:job:*").items(), IsEmpty());
  raw("DEL", "emq:{other}:pending");
  EXPECT_TRUE(Flow(queue()).add(root).get());
  EXPECT_EQ(client().queue("other").claim().get().value().value().id, kJobB);
}

// Each try of each pump had left a row.
TEST_F(KeyTypesServerTest, ARepeat) {
  ASSERT_TRUE(queue().register_repeat("r", {.every = 1h, .payload = "p"}).get());
  raw("SET", pending_, "text");
  for (int i = 0; i < 3; ++i)
    EXPECT_FALSE(queue().fire_repeats().get());
  EXPECT_THAT(raw("KEYS", "emq:{q}:job:*").items(), IsEmpty());
  raw("DEL", pending_);
  EXPECT_EQ(queue().fire_repeats().get().value(), 1);
  EXPECT_EQ(queue().claim().get().value().value().payload, "p");
}

}  // namespace
}  // namespace echomq::test
