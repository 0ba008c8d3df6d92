// Two languages on one queue: what one admits the other claims and settles, what one holds the other cannot touch, and
// what a third lost both give back.
#include <condition_variable>
#include <mutex>

#include "interop/exchange_fixture.hpp"

namespace echomq::interop {
namespace {

using ::testing::ElementsAre;

TEST_F(ExchangeTest, OurJobIsClaimedAndCompletedByThePeer) {
  const JobId id = enqueued("cargo");
  EXPECT_EQ(ask("get_job", {{"id", text(id)}}),
            ok(json::object{{"state", "pending"}, {"attempts", "0"}, {"payload", "cargo"}}));
  EXPECT_EQ(ask("claim", {{"lease_ms", 60000}}), ok(json::array{text(id), "cargo", 1}));
  EXPECT_EQ(queue().state(id).get().value(), JobState::active);
  EXPECT_FALSE(queue().claim().get().value());
  EXPECT_EQ(ask("complete", {{"id", text(id)}, {"token", 1}}), "ok");
  EXPECT_EQ(queue().state(id).get().value(), JobState::absent);
  expect_counts({.completed = 1});
}

TEST_F(ExchangeTest, ThePeersJobIsClaimedAndCompletedByUs) {
  const JobId id = enqueued_by_peer("cargo");
  EXPECT_EQ(queue().state(id).get().value(), JobState::pending);
  const ClaimedJob job = claimed();
  EXPECT_EQ(job.id, id);
  EXPECT_EQ(job.payload, "cargo");
  EXPECT_EQ(job.token, Token(1));
  EXPECT_EQ(ask("get_job_state", {{"id", text(id)}}), ok("active"));
  EXPECT_EQ(ask("claim", {{"lease_ms", 60000}}), "empty");
  EXPECT_TRUE(queue().complete(id, job.token).get());
  EXPECT_EQ(ask("get_job_state", {{"id", text(id)}}), ok("absent"));
  expect_counts({.completed = 1});
}

// Ids of both minters name jobs of one queue: the same id is a duplicate on both sides, order is that of the bytes.
TEST_F(ExchangeTest, IdsOfBothAreOneOrderAndOneSpace) {
  const JobId first = enqueued("a");
  std::this_thread::sleep_for(2ms);
  const JobId second = enqueued_by_peer("b");
  std::this_thread::sleep_for(2ms);
  const JobId third = enqueued("c");
  EXPECT_LT(first, second);
  EXPECT_LT(second, third);
  EXPECT_EQ(ask("browse", {{"n", 10}}), ok(json::array{text(third), text(second), text(first)}));
  EXPECT_THAT(queue().browse(10).get().value(), ElementsAre(third, second, first));
  EXPECT_EQ(ask("enqueue", {{"id", text(first)}, {"payload", "other"}}), ok("duplicate"));
  EXPECT_EQ(queue().enqueue("other", {.id = second}).get().value().verdict, Admitted::duplicate);
  const auto node = ask("raw", {{"command", {"HLEN", "{emq}:nodes"}}});
  EXPECT_EQ(node, 2) << "each speaker leases a node id of its own";
}

TEST_F(ExchangeTest, WhatOneHoldsTheOtherSettlesOnlyWithItsToken) {
  const JobId ours = enqueued("held by us");
  ASSERT_EQ(claimed().id, ours);
  const json::object wrong{{"id", text(ours)}, {"token", 2}};
  const auto with = [](json::object args, const json::object& more) {
    for (const auto& [name, value] : more)
      args[name] = value;
    return args;
  };
  EXPECT_EQ(ask("complete", wrong), error("stale"));
  EXPECT_EQ(ask("retry", with(wrong, {{"delay_ms", 0}, {"max_attempts", 3}, {"error", "e"}})), error("stale"));
  EXPECT_EQ(ask("delay", with(wrong, {{"delay_ms", 0}})), error("stale"));
  EXPECT_EQ(ask("extend_lock", with(wrong, {{"lease_ms", 1000}})), error("stale"));
  EXPECT_EQ(queue().state(ours).get().value(), JobState::active);
  EXPECT_EQ(ask("extend_lock", {{"id", text(ours)}, {"token", 1}, {"lease_ms", 60000}}), "ok");
  EXPECT_EQ(ask("complete", {{"id", text(ours)}, {"token", 1}}), "ok");
  EXPECT_EQ(refusal(queue().complete(ours, Token(1))), Errc::job_gone);

  const JobId theirs = enqueued("held by the peer");
  EXPECT_EQ(ask("claim", {{"lease_ms", 60000}}), ok(json::array{text(theirs), "held by the peer", 1}));
  EXPECT_EQ(refusal(queue().complete(theirs, Token(2))), Errc::stale_token);
  EXPECT_EQ(refusal(queue().retry(theirs, Token(2))), Errc::stale_token);
  EXPECT_EQ(refusal(queue().delay(theirs, Token(2), 0ms)), Errc::stale_token);
  EXPECT_EQ(refusal(queue().extend(theirs, Token(2), 1000ms)), Errc::stale_token);
  EXPECT_EQ(refusal(queue().hand_back(theirs, Token(2))), Errc::stale_token);
  EXPECT_EQ(queue().state(theirs).get().value(), JobState::active);
  EXPECT_TRUE(queue().extend(theirs, Token(1), 60s).get());
  EXPECT_TRUE(queue().complete(theirs, Token(1)).get());
  EXPECT_EQ(ask("complete", {{"id", text(theirs)}, {"token", 1}}), error("gone"));
  expect_counts({.completed = 2});
}

TEST_F(ExchangeTest, ARunThatOneFailsTheOtherTriesAgain) {
  const JobId id = enqueued("work");
  ASSERT_EQ(claimed().token, Token(1));
  ASSERT_EQ(queue().retry(id, Token(1), {.delay = 0ms, .max_attempts = 3, .error = "ours"}).get().value(),
            Retried::scheduled);
  EXPECT_EQ(ask("get_job", {{"id", text(id)}}).at("ok").at("last_error"), "ours");
  EXPECT_EQ(ask("promote", {{"limit", 10}}), ok(1));
  EXPECT_EQ(ask("claim", {{"lease_ms", 60000}}), ok(json::array{text(id), "work", 2}));
  json::object failed{{"id", text(id)}, {"token", 2}, {"delay_ms", 0}, {"max_attempts", 3}, {"error", "theirs"}};
  EXPECT_EQ(ask("retry", failed), ok("scheduled"));
  EXPECT_EQ(*queue().job(id).get().value()->find("last_error"), "theirs");
  EXPECT_EQ(queue().promote().get().value(), 1);
  EXPECT_EQ(claimed().token, Token(3));
  // The peer settles what we hold, with our token, and that was the last attempt.
  failed["token"] = 3;
  EXPECT_EQ(ask("retry", failed), ok("dead"));
  EXPECT_EQ(queue().state(id).get().value(), JobState::dead);
  expect_counts({.dead = 1, .failed = 1});
  EXPECT_TRUE(queue().reprocess(id).get());
  EXPECT_EQ(ask("claim", {{"lease_ms", 60000}}), ok(json::array{text(id), "work", 4}));
}

TEST_F(ExchangeTest, WhatOneSchedulesTheOtherPromotes) {
  const JobId ours = queue().enqueue_in("ours", 10ms).get().value().id;
  const std::string theirs = peer().mint("JOB");
  EXPECT_EQ(ask("enqueue_in", {{"id", theirs}, {"payload", "theirs"}, {"delay_ms", 60000}}), ok("scheduled"));
  EXPECT_EQ(ask("get_job_state", {{"id", text(ours)}}), ok("scheduled"));
  EXPECT_EQ(queue().state(JobId::parse(theirs).value()).get().value(), JobState::scheduled);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(ask("promote", {{"limit", 10}}), ok(1));
  EXPECT_EQ(claimed().id, ours);
  EXPECT_EQ(ask("delay", {{"id", text(ours)}, {"token", 1}, {"delay_ms", 0}}), "ok");
  EXPECT_EQ(queue().promote().get().value(), 1);
  EXPECT_EQ(ask("claim", {{"lease_ms", 60000}}), ok(json::array{text(ours), "ours", 2}));
  EXPECT_TRUE(queue().delay(ours, Token(2), 60s).get());
  expect_counts({.scheduled = 2});
}

TEST_F(ExchangeTest, AnyBytesPassBothWays) {
  std::string bytes;
  for (int i = 0; i < 256; ++i)
    bytes += static_cast<char>(i);
  const json::value as_json = conformance::text_to_json(bytes);
  const JobId ours = enqueued(bytes);
  EXPECT_EQ(ask("claim", {{"lease_ms", 60000}}), ok(json::array{text(ours), as_json, 1}));
  EXPECT_EQ(ask("update_data", {{"id", text(ours)}, {"payload", json::object{{"hex", "00ff00"}}}}), "ok");
  EXPECT_EQ(*queue().job(ours).get().value()->find("payload"), std::string("\x00\xff\x00", 3));
  EXPECT_EQ(ask("add_log", {{"id", text(ours)}, {"line", as_json}}), ok(1));
  EXPECT_THAT(queue().logs(ours).get().value(), ElementsAre(bytes));

  const JobId theirs = enqueued_by_peer(as_json);
  const ClaimedJob job = claimed();
  EXPECT_EQ(job.id, theirs);
  EXPECT_EQ(job.payload, bytes);
  EXPECT_TRUE(queue().retry(theirs, job.token, {.delay = 0ms, .max_attempts = 1, .error = bytes}).get());
  EXPECT_EQ(ask("get_job", {{"id", text(theirs)}}).at("ok").at("last_error"), as_json);

  const JobId empty = enqueued_by_peer("");
  EXPECT_EQ(claimed().payload, "");
  EXPECT_TRUE(queue().update_data(empty, std::string(1 << 20, '\xe4')).get());
  EXPECT_EQ(ask("raw", {{"command", {"HSTRLEN", "emq:{q}:job:" + std::string(empty.text()), "payload"}}}), 1 << 20);
}

TEST_F(ExchangeTest, EventsOfOneAreHeardByTheOther) {
  std::mutex mutex;
  std::condition_variable arrived;
  std::vector<std::string> heard;  // guarded by mutex
  SubscriptionHandlers handlers;
  handlers.on_message = [&](std::string_view, std::string_view message) {
    const std::lock_guard lock(mutex);
    heard.emplace_back(message);
    arrived.notify_all();
  };
  const auto subscription = client().subscribe("emq:{q}:events", handlers).get();
  ASSERT_TRUE(subscription);
  const auto next = [&]() -> json::value {
    std::unique_lock lock(mutex);
    if (!arrived.wait_for(lock, 20s, [&] { return !heard.empty(); }))
      return "nothing";
    json::value message = json::parse(heard.front());
    heard.erase(heard.begin());
    return message;
  };
  ASSERT_EQ(ask("subscribe", {{"channel", "emq:{q}:events"}}), "ok");
  const auto peer_hears = [&] { return json::parse(std::string(ask("message", {{"within_ms", 20000}}).as_string())); };

  const JobId id = enqueued("x");
  const std::vector<std::pair<std::string_view, std::string_view>> extra = {{"worker", "a \"b\""}};
  EXPECT_EQ(queue().publish("completed", id, extra).get().value(), 2);
  const json::value said = json::object{{"event", "completed"}, {"job", text(id)}, {"worker", "a \"b\""}};
  EXPECT_EQ(peer_hears(), said);
  EXPECT_EQ(next(), said);

  const json::value extras = json::array{json::array{"worker", "node"}};
  EXPECT_EQ(ask("publish", {{"id", text(id)}, {"event", "failed"}, {"extra", extras}}), "ok");
  EXPECT_EQ(next(), (json::object{{"event", "failed"}, {"job", text(id)}, {"worker", "node"}}));
  (void)peer_hears();

  EXPECT_EQ(ask("update_progress", {{"id", text(id)}, {"progress", "50"}}), "ok");
  const json::value progress = json::object{{"event", "progress"}, {"job", text(id)}, {"progress", "50"}};
  EXPECT_EQ(next(), progress);
  EXPECT_EQ(peer_hears(), progress);
  EXPECT_TRUE(queue().update_progress(id, "75").get());
  EXPECT_EQ(peer_hears().at("progress"), "75");
}

// A third speaker dies with its claims: each of the two gives a part of them back, and nobody is told twice.
TEST_F(ExchangeTest, WhatAThirdLostBothGiveBack) {
  std::vector<JobId> ids;
  for (int i = 0; i < 4; ++i)
    ids.push_back(enqueued(std::to_string(i)));
  {
    NodePeer third(server().url());
    for (int i = 0; i < 4; ++i) {
      const json::value claim = third.ask("claim", "q", {{"lease_ms", i < 2 ? 60 : 60000}});
      ASSERT_EQ(claim.at("ok").at(0), text(ids[static_cast<std::size_t>(i)]));
    }
    third.kill();
  }
  std::this_thread::sleep_for(80ms);
  EXPECT_EQ(ask("reap"), ok(2));
  EXPECT_EQ(queue().reap().get().value(), 0) << "the leases of the other two run";
  EXPECT_EQ(ask("claim", {{"lease_ms", 60}}), ok(json::array{text(ids[0]), "0", 2}));
  EXPECT_EQ(claimed({.lease = 60ms}).token, Token(2));
  std::this_thread::sleep_for(80ms);
  // Counted this time: recovered at the first, dead at the second.
  const Swept swept = queue().sweep_stalled({.max_stalled = 2}).get().value();
  EXPECT_THAT(swept.recovered, ElementsAre(ids[0], ids[1]));
  EXPECT_EQ(ask("job_stalled", {{"id", text(ids[0])}}), true);
  EXPECT_EQ(claimed({.lease = 60ms}).id, ids[0]);
  EXPECT_EQ(claimed({.lease = 60s}).id, ids[1]);
  std::this_thread::sleep_for(80ms);
  EXPECT_EQ(ask("sweep_stalled", {{"max_stalled", 2}, {"limit", 100}}),
            ok(json::object{{"recovered", json::array{}}, {"dead", json::array{text(ids[0])}}}));
  EXPECT_EQ(*queue().job(ids[0]).get().value()->find("last_error"), "stalled");
  // The lost holder's token is refused once the job was claimed again, by whomever.
  EXPECT_EQ(refusal(queue().complete(ids[1], Token(1))), Errc::stale_token);
  EXPECT_TRUE(queue().complete(ids[1], Token(3)).get());
  expect_counts({.active = 2, .dead = 1, .completed = 1, .failed = 1});
}

TEST_F(ExchangeTest, PauseOfOneStopsTheClaimsOfBoth) {
  const JobId id = enqueued("x");
  EXPECT_EQ(ask("queue_pause"), "ok");
  EXPECT_TRUE(queue().paused().get().value());
  EXPECT_FALSE(queue().claim().get().value());
  EXPECT_TRUE(queue().resume().get());
  EXPECT_TRUE(queue().pause().get());
  EXPECT_EQ(ask("claim", {{"lease_ms", 1000}}), "empty");
  EXPECT_EQ(ask("queue_resume"), "ok");
  EXPECT_EQ(claimed().id, id);
}

}  // namespace
}  // namespace echomq::interop
