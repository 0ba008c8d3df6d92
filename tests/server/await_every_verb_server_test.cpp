// Every verb awaited in one expression, with temporaries for all its arguments: a compiler that destroys such a temporary
// twice, or too early, shows under the address sanitizer. And answers that are there already, a million times.
#include <atomic>
#include <coroutine>
#include <future>

#include "echomq/flow.hpp"
#include "echomq/task.hpp"
#include "server/queue_fixture.hpp"

namespace echomq::test {
namespace {

using Extra = std::pair<std::string_view, std::string_view>;

/// Long enough to live on the heap, so that a dangling view shows.
[[nodiscard]] std::string heap(std::string_view what) { return std::string(100, '-') + std::string(what); }

// Lists are made by functions: g++ 12 cannot compile a braced list inside a `co_await` expression.
template <typename T>
[[nodiscard]] std::vector<T> list(std::size_t count, T value) {
  return std::vector<T>(count, value);
}

Task<int> admissions(const Client& client) {
  int done = 0;
  done += (co_await client.queue(QueueName{"a"}).enqueue(heap("1"), EnqueueOptions{.deadline = 5s})).has_value();
  done += (co_await client.queue(QueueName{"a"}).enqueue(heap("2"), {.id = kJobA, .lane = kLaneX})).has_value();
  done += (co_await client.queue(QueueName{"a"}).enqueue(heap("3"), {.lane = kLaneX, .in = 1h})).has_value();
  done += (co_await client.queue(QueueName{"a"}).enqueue_at(heap("4"), Instant(1ms), {.id = kJobB})).has_value();
  done += (co_await client.queue(QueueName{"a"}).enqueue_in(heap("5"), 1h, EnqueueOptions{})).has_value();
  done +=
      (co_await client.queue(QueueName{"a"}).enqueue_many(list(2, NewJob{.payload = "7", .id = kJobC}))).has_value();
  done += (co_await client.queue(QueueName{"a"}).enqueue_many(list(1000, NewJob{.payload = "8"}), {.lane = kLaneY}))
              .has_value();
  done += (co_await client.queue(QueueName{"a"})
               .enqueue(heap("10"), {.run = {.backoff = heap("fixed:1").substr(100), .keep = 1min}}))
              .has_value();
  done +=
      (co_await client.queue(QueueName{"a"}).enqueue_many(list(300, NewJob{.payload = "11"}), {.run = {.keep = 1s}}))
          .has_value();
  done += (co_await client.queue(QueueName{"a"})
               .enqueue_mixed(list(300, MixedJob{.payload = "12", .lane = kLaneX, .run = {.max_attempts = 2}}), 5000ms))
              .has_value();
  done += (co_await client.queue(QueueName{"a"}).wait(kJobB, {.timeout = 20ms})).value().how == EndedAs::timeout;
  done += (co_await client.queue(QueueName{"a"}).enqueue_and_wait(heap("13"), {.run = {.keep = 1s}}, {.timeout = 20ms}))
              .has_value();
  done += !(co_await client.queue(QueueName{"a"}).result(kJobB)).value().has_value();
  // A duplicate of a chosen id, which takes two round trips.
  done +=
      (co_await client.queue(QueueName{"a"}).enqueue(heap("9"), {.id = kJobA})).value().verdict == Admitted::duplicate;
  co_return done;
}

Task<int> settles(const Client& client) {
  const Queue queue = client.queue(QueueName{"s"});
  int done = 0;
  const auto next = [&queue] {
    EXPECT_TRUE(queue.enqueue("p").get());
    return queue.claim().get().value().value();
  };
  ClaimedJob job = next();
  done += (co_await client.queue(QueueName{"s"}).complete(job.id, job.token, {.result = heap("result")})).has_value();
  job = next();
  done += (co_await client.queue(QueueName{"s"})
               .retry(job.id, job.token, {.delay = 1h, .max_attempts = 2, .error = heap("error"), .deadline = 5s}))
              .has_value();
  job = next();
  done += (co_await client.queue(QueueName{"s"}).delay(job.id, job.token, 1h, Milliseconds(5000))).has_value();
  job = next();
  done += (co_await client.queue(QueueName{"s"}).delay_until(job.id, job.token, Instant(4102444800000ms))).has_value();
  job = next();
  done += (co_await client.queue(QueueName{"s"}).extend(job.id, job.token, 1min)).has_value();
  done += (co_await client.queue(QueueName{"s"}).extend_many(list(1, Held{job.id, job.token}), 1min)).value().empty();
  done +=
      (co_await client.queue(QueueName{"s"}).extend_many(list(2001, Held{job.id, job.token}), 1min)).value().empty();
  done += (co_await client.queue(QueueName{"s"}).hand_back(job.id, job.token)).has_value();
  done +=
      (co_await client.queue(QueueName{"s"}).claim(ClaimOptions{.lease = 1min, .deadline = 5s})).value().value().id ==
      job.id;
  done += !(co_await client.queue(QueueName{"s"}).claim_lane({.lease = 1min})).value().has_value();
  done += (co_await client.queue(QueueName{"s"}).claim_batch({.size = 5, .lease = 1min})).value().empty();
  done += (co_await client.queue(QueueName{"s"}).claim_lane_weighted(ClaimOptions{.deadline = 5s})).value().empty();
  done += (co_await client.queue(QueueName{"s"}).claim_lane_batch({.size = 5, .deadline = 5s})).value().empty();
  co_return done;
}

Task<int> operations(const Client& client) {
  const QueueName name{"o"};
  EXPECT_TRUE(client.queue(name).enqueue("p", {.id = kJobA}).get());
  EXPECT_TRUE(client.queue(name).enqueue("p", {.id = kJobB, .lane = kLaneX}).get());
  int done = 0;
  done += (co_await client.queue(name).promote(10)).has_value();
  done += (co_await client.queue(name).reap()).has_value();
  done += (co_await client.queue(name).sweep_stalled(SweepOptions{.max_stalled = 2, .deadline = 5s})).has_value();
  done += (co_await client.queue(name).pause()).has_value();
  done += (co_await client.queue(name).paused()).value();
  done += (co_await client.queue(name).resume()).has_value();
  done += (co_await client.queue(name).pause_lane(kLaneX)).has_value();
  done += (co_await client.queue(name).resume_lane(kLaneX)).has_value();
  done += (co_await client.queue(name).limit_lane(kLaneX, 3)).has_value();
  done += (co_await client.queue(name).reassign(kJobB, kLaneY)).value() == Reassigned::moved;
  done += (co_await client.queue(name).update_data(kJobA, heap("data"))).has_value();
  done += (co_await client.queue(name).update_progress(kJobA, heap("50"))).has_value();
  done += (co_await client.queue(name).add_log(kJobA, heap("line"), 2)).has_value();
  done += (co_await client.queue(name).publish(heap("event"), kJobA, list(1, Extra("k", "v")))).has_value();
  done += (co_await client.queue(name).reprocess(kJobA)).error().is(Errc::not_dead);
  done += (co_await client.queue(name).remove(kJobC, DedupId{"dedup"})).error().is(Errc::job_gone);
  done += (co_await client.queue(name).cancel(kJobC)).error().is(Errc::job_gone);
  done += (co_await client.queue(name).weigh_lane(kLaneY, 2)).has_value();
  done += (co_await client.queue(name).reap_lane(kLaneY, 5)).value() == 0;
  done += (co_await client.queue(name).register_repeat(heap("r"), {.every = 1h, .payload = heap("p")})).value() ==
          Registered::registered;
  done += (co_await client.queue(name).due_repeats(5)).value().at(0).payload == heap("p");
  done += (co_await client.queue(name).fire_repeats(5)).value() == 1;
  done += (co_await client.queue(name).pump_sweep(5)).value().fired == 0;
  done += (co_await client.queue(name).advance_repeat(heap("r"), 2h)).value() == RepeatFound::found;
  done += (co_await client.queue(name).repeat_count()).value() == 1;
  done += (co_await client.queue(name).cancel_repeat(heap("r"))).value() == RepeatFound::found;
  done += (co_await client.queue(name).drain_lane(kLaneY)).value() == 1;
  done += (co_await client.queue(name).drain(DrainOptions{.include_schedule = true})).value() == 2;
  done += (co_await client.queue(name).obliterate({.force = true, .budget = 5})).error().is(Errc::not_paused);
  co_return done;
}

Task<int> reads(const Client& client) {
  const QueueName name{"r"};
  EXPECT_TRUE(client.queue(name).enqueue("p", {.id = kJobA}).get());
  EXPECT_TRUE(client.queue(name).enqueue("p", {.id = kJobB, .lane = kLaneX}).get());
  EXPECT_TRUE(client.queue(name).add_log(kJobA, "line").get());
  int done = 0;
  done += (co_await client.queue(name).counts()).value().pending == 1;
  done += (co_await client.queue(name).counts_of(list(2, std::string_view("pending")))).value().at(1) == 1;
  done += (co_await client.queue(name).pending_size()).value() == 1;
  done += (co_await client.queue(name).browse(5)).value().size() == 1;
  done += *(co_await client.queue(name).job(kJobA)).value().value().find("payload") == "p";
  done += (co_await client.queue(name).state(kJobB)).value() == JobState::waiting_in_lane;
  done += (co_await client.queue(name).logs(kJobA)).value().size() == 1;
  done += (co_await client.queue(name).metric(Metric::failed)).value().count == 0;
  done += !(co_await client.queue(name).dedup_holder(DedupId{"dedup"})).value().has_value();
  done += !(co_await client.queue(name).stalled(kJobA)).value();
  done += (co_await client.queue(name).check_concurrency()).has_value();
  done += (co_await client.queue(name).rate_limit_ttl(7)).value() == 0ms;
  done += (co_await client.queue(name).global_rate_limit()).value() == 0;
  done += (co_await client.queue(name).lane_depth(kLaneX)).value() == 1;
  done += (co_await client.queue(name).lane_depths(list(2, kLaneX))).value().at(1) == 1;
  co_return done;
}

[[nodiscard]] FlowJob tree(std::span<const FlowJob> children) {
  FlowJob root;
  root.children = children;
  return root;
}

Task<int> flows(const Client& client) {
  const QueueName name{"f"};
  int done = 0;
  done += (co_await Flow(client.queue(name)).add(tree(list(2, FlowJob{.payload = heap("c")})), FlowOptions{}))
              .value()
              .ids.size() == 3;
  done += (co_await Flow(client.queue(name))
               .add(tree(list(2, FlowJob{.payload = heap("c"), .queue = QueueName{"g"}})), {.deadline = 5s}))
              .has_value();
  done += (co_await Flow(client.queue(name)).add_bulk(list(3, tree(list(1, FlowJob{.payload = heap("c")})))))
              .value()
              .size() == 3;
  done += (co_await Flow(client.queue(name)).children_values(kJobA)).value().empty();
  done += (co_await Flow(client.queue(name)).ignored_failures(kJobA)).value().empty();
  done += (co_await Flow(client.queue(name)).failures(kJobA)).value().empty();
  done += (co_await Flow(client.queue(name)).dependencies(kJobA)).value() == 0;
  done += (co_await Flow(client.queue(name)).deliver(10, Milliseconds(5000))).value().read == 0;
  co_return done;
}

TEST_F(QueueServerTest, EveryVerbCanBeAwaitedInOneExpression) {
  EXPECT_EQ(admissions(client()).get(), 14);
  EXPECT_EQ(settles(client()).get(), 13);
  EXPECT_EQ(operations(client()).get(), 29);
  EXPECT_EQ(reads(client()).get(), 15);
  EXPECT_EQ(flows(client()).get(), 8);
}

/// A coroutine that nobody drives: its awaits continue on the client's executor.
struct Detached {
  struct promise_type {
    Detached get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() const noexcept { return {}; }
    std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept { std::terminate(); }
  };
};

Detached on_executor(const Client& client, std::promise<int>& finished) {
  const std::thread::id begun_on = std::this_thread::get_id();
  int done = 0;
  done += (co_await client.queue(QueueName{"e"}).enqueue(heap("1"), {.id = kJobA})).has_value();
  done += (co_await client.queue(QueueName{"e"}).enqueue(heap("2"), {.id = kJobA})).has_value();
  done += (co_await client.queue(QueueName{"e"}).enqueue_many(list(600, NewJob{.payload = "8"}))).has_value();
  done += (co_await client.queue(QueueName{"e"}).state(kJobA)).value() == JobState::pending;
  done += (co_await client.queue(QueueName{"e"}).logs(kJobA)).value().empty();
  // Blocking here would wait for the thread that this runs on; unless every answer was there before it was awaited.
  done += std::this_thread::get_id() == begun_on ||
          client.queue(QueueName{"e"}).counts().get().error().is(Errc::would_deadlock);
  finished.set_value(done);
}

TEST_F(QueueServerTest, AwaitsContinueOnTheExecutorAlsoWhereOneAnswerNeedsSeveralRequests) {
  std::promise<int> finished;
  auto result = finished.get_future();
  on_executor(client(), finished);
  ASSERT_EQ(result.wait_for(10s), std::future_status::ready);
  EXPECT_EQ(result.get(), 6);
}

Task<int> a_million_ready(const Queue& queue) {
  int refused = 0;
  for (int i = 0; i < 1'000'000; ++i)
    refused += !(co_await queue.extend_many({}, 0ms)).has_value();
  co_return refused;
}

Task<int> a_million_empty(const Queue& queue) {
  int empty = 0;
  for (int i = 0; i < 1'000'000; ++i)
    empty += (co_await queue.lane_depths({})).value().empty();
  co_return empty;
}

TEST_F(QueueServerTest, AMillionReadyAwaitsNeedNoStack) {
  EXPECT_EQ(a_million_ready(queue()).get(), 1'000'000);
  EXPECT_EQ(a_million_empty(queue()).get(), 1'000'000);
}

Task<int> answers_that_came_before(std::vector<Reply<Admission>>& replies) {
  int admitted = 0;
  for (Reply<Admission>& reply : replies)
    admitted += (co_await reply).has_value();
  co_return admitted;
}

TEST_F(QueueServerTest, RepliesAnsweredBeforeTheirAwaitNeedNoStackEither) {
  constexpr int kJobs = 100'000;
  std::vector<Reply<Admission>> replies;
  replies.reserve(kJobs);
  for (int i = 0; i < kJobs; ++i)
    replies.push_back(queue().enqueue("p"));
  ASSERT_TRUE(queue().pending_size().get());  // answered last
  EXPECT_EQ(answers_that_came_before(replies).get(), kJobs);
  EXPECT_EQ(queue().pending_size().get().value(), kJobs);
}

}  // namespace
}  // namespace echomq::test
