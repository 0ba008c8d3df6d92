// What became of a job, told across languages: results that the Node peer keeps reach our waits, ours reach its waits, and
// options that it gives a job at admission are kept to by our worker.
#include <algorithm>
#include <chrono>

#include "echomq/worker.hpp"
#include "interop/exchange_fixture.hpp"

namespace echomq::interop {
namespace {

using Clock = std::chrono::steady_clock;

class Results : public ExchangeTest {
 protected:
  /// The peer claims the only job there is; gives its token.
  std::int64_t taken_by_peer(const JobId& id) {
    const json::value taken = ask("take", {{"most", 10}, {"lease_ms", 60000}});
    const json::array& jobs = taken.at("ok").at("jobs").as_array();
    EXPECT_EQ(jobs.size(), 1U);
    EXPECT_EQ(jobs.at(0).at(0), text(id));
    return jobs.at(0).at(2).as_int64();
  }
  void settled_by_peer(json::object settlement, const json::value& verdict) {
    EXPECT_EQ(ask("settle", {{"jobs", json::array{std::move(settlement)}}}), ok(json::array{verdict}));
  }
  /// An answer that came because somebody told, not because the wait looked again.
  static void expect_end(Reply<Ended>& waiting, EndedAs how, std::string_view said) {
    const auto begin = Clock::now();
    const auto end = waiting.get_for(20s);
    ASSERT_TRUE(end);
    ASSERT_TRUE(*end) << end->error().message();
    EXPECT_EQ((*end)->how, how) << to_string((*end)->how);
    EXPECT_EQ((*end)->text, said);
    EXPECT_LT(Clock::now() - begin, 10s);
  }
  static constexpr WaitOptions kUntold{.timeout = 60s, .beat = 60s};
  /// Runs what the payload says: `done X`, `dead X`, anything else fails.
  static Outcome run(Job& job) {
    const std::string payload(job.payload());
    if (payload.starts_with("done "))
      return Done(payload.substr(5));
    if (payload.starts_with("dead "))
      return Dead(payload.substr(5));
    return Retry("failed");
  }
  [[nodiscard]] Worker worker() {
    WorkerOptions options;
    options.backoff = Backoff::fixed(1ms);
    options.max_attempts = 5;
    auto started = Worker::start(queue(), run, options);
    if (!started)
      throw std::runtime_error(started.error().message());
    return *std::move(started);
  }
  [[nodiscard]] std::string field(const JobId& id, std::string_view name) {
    const auto row = queue().job(id).get().value();
    const std::string* value = row ? row->find(name) : nullptr;
    return value == nullptr ? "(none)" : *value;
  }
};

TEST_F(Results, OurWaitHearsWhatThePeerHasKept) {
  const JobId done = enqueued("x");
  Reply<Ended> first = queue().wait(done, kUntold);
  std::int64_t token = taken_by_peer(done);
  settled_by_peer({{"id", text(done)}, {"token", token}, {"as", "done"}, {"text", "42"}, {"keep_ms", 60000}},
                  "completed");
  expect_end(first, EndedAs::completed, "42");
  EXPECT_EQ(queue().result(done).get().value().value().text, "42");

  const JobId dead = enqueued("x");
  Reply<Ended> second = queue().wait(dead, kUntold);
  token = taken_by_peer(dead);
  settled_by_peer({{"id", text(dead)}, {"token", token}, {"as", "dead"}, {"text", "no use"}, {"keep_ms", 60000}},
                  "dead");
  expect_end(second, EndedAs::dead, "no use");

  const JobId tired = enqueued("x");
  Reply<Ended> third = queue().wait(tired, kUntold);
  token = taken_by_peer(tired);
  settled_by_peer({{"id", text(tired)},
                   {"token", token},
                   {"as", "retry"},
                   {"text", "again"},
                   {"max_attempts", 1},
                   {"keep_ms", 60000}},
                  "dead");
  expect_end(third, EndedAs::dead, "again");

  // The row asks to keep, the settle says nothing of it.
  const JobId kept = enqueued("x", {.run = {.keep = 60s}});
  Reply<Ended> fourth = queue().wait(kept, kUntold);
  token = taken_by_peer(kept);
  settled_by_peer({{"id", text(kept)}, {"token", token}, {"as", "done"}, {"text", json::object{{"hex", "00ff"}}}},
                  "completed");
  expect_end(fourth, EndedAs::completed, std::string_view("\0\xff", 2));

  // And without anything kept there is only the look at the row that tells.
  const JobId canonical = enqueued("x");
  Reply<Ended> fifth = queue().wait(canonical, {.timeout = 60s, .beat = 20ms});
  EXPECT_EQ(ask("claim", {{"lease_ms", 60000}}), ok(json::array{text(canonical), "x", 1}));
  EXPECT_EQ(ask("complete", {{"id", text(canonical)}, {"token", 1}}), "ok");
  expect_end(fifth, EndedAs::gone, "");
}

TEST_F(Results, ThePeerHearsWhatOurWorkerHasKept) {
  constexpr EnqueueOptions kKept{.run = {.keep = 60s}};
  const auto wait = [&](const JobId& id, std::int64_t within_ms = 20000) {
    return peer().start("await_end", "q", {{"id", text(id)}, {"within_ms", within_ms}});
  };
  const JobId done = enqueued("done 42", kKept);
  const JobId dead = enqueued("dead no use", kKept);
  const JobId binary = enqueued(std::string_view("done \0\xff", 7), kKept);
  const JobId untold = enqueued("done nothing", {.in = 1h});
  const std::int64_t waits[] = {wait(done), wait(dead), wait(binary), wait(untold, 200)};
  EXPECT_EQ(peer().wait(waits[3]), ok("timeout"));
  {
    const Worker ours = worker();
    const auto begin = Clock::now();
    EXPECT_EQ(peer().wait(waits[0]), ok(json::object{{"completed", "42"}}));
    EXPECT_EQ(peer().wait(waits[1]), ok(json::object{{"dead", "no use"}}));
    EXPECT_EQ(peer().wait(waits[2]), ok(json::object{{"completed", json::object{{"hex", "00ff"}}}}));
    EXPECT_LT(Clock::now() - begin, 10s);
  }
  // What has ended before is found at once, and read without a wait.
  EXPECT_EQ(peer().wait(wait(done)), ok(json::object{{"completed", "42"}}));
  EXPECT_EQ(ask("result", {{"id", text(dead)}}), ok(json::object{{"dead", "no use"}}));
  EXPECT_EQ(ask("result", {{"id", text(untold)}}), ok(nullptr));
  EXPECT_TRUE(queue().remove(untold).get());
  EXPECT_EQ(peer().wait(wait(untold)), ok("gone"));
}

TEST_F(Results, ThePeerHearsOfAnEndWhileItsLinkWasAway) {
  const JobId id = enqueued("done late", {.run = {.keep = 60s}});
  const std::int64_t waiting = peer().start("await_end", "q", {{"id", text(id)}, {"within_ms", 20000}});
  // Until its subscription stands.
  const auto subscribed = [&] {
    const auto reply = client().command("PUBSUB", "NUMSUB", "emq:{q}:ended").get().value();
    return (*reply.items().rbegin()).as_integer().value_or(0) == 1;
  };
  const auto until = Clock::now() + 10s;
  while (!subscribed() && Clock::now() < until)
    std::this_thread::sleep_for(2ms);
  ASSERT_TRUE(subscribed());
  const ClaimedJob job = claimed();
  // One step: the link is cut, and what it would have told has been told when it is back.
  const std::string result = "emq:{q}:result:" + std::string(id.text());
  const std::string_view kill[] = {"CLIENT", "KILL", "TYPE", "pubsub"};
  const std::string_view keep[] = {"SET", result, std::string_view("completed\0late", 14), "PX", "60000"};
  const std::string_view tell[] = {"PUBLISH", "emq:{q}:ended", id.text()};
  const CommandParts steps[] = {kill, keep, tell};
  const auto done = client().pipeline(steps).get();
  ASSERT_TRUE(done) << done.error().message();
  EXPECT_TRUE(queue().complete(job.id, job.token).get());
  EXPECT_EQ(peer().wait(waiting), ok(json::object{{"completed", "late"}}));
}

TEST_F(Results, OurWorkerKeepsToWhatThePeerHasAdmitted) {
  const std::string trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const LaneId tenant(client().mint("USR").value());
  const auto id = [&] { return JobId::parse(peer().mint("JOB")).value(); };
  const JobId flat = id(), laned = id(), later = id(), old = id(), tired = id(), plain = id();
  const json::array jobs = {
      json::object{{"id", text(flat)},
                   {"payload", "done 1"},
                   {"keep_ms", 60000},
                   {"timeout_ms", 5000},
                   {"backoff", "fixed:7"},
                   {"traceparent", trace}},
      json::object{{"id", text(laned)}, {"payload", "done 2"}, {"group", text(tenant)}, {"keep_ms", 60000}},
      json::object{{"id", text(later)}, {"payload", "done 3"}, {"delay_ms", 20}, {"keep_ms", 60000}},
      json::object{{"id", text(old)}, {"payload", "done 4"}, {"expires_at_ms", 1}, {"keep_ms", 60000}},
      json::object{{"id", text(tired)}, {"payload", "fails"}, {"max_attempts", 2}, {"keep_ms", 60000}},
      json::object{{"id", text(plain)}, {"payload", "done 6"}},
  };
  EXPECT_EQ(ask("admit", {{"jobs", jobs}}),
            ok(json::array{"enqueued", "enqueued", "enqueued", "enqueued", "enqueued", "enqueued"}));
  EXPECT_EQ(ask("admit", {{"jobs", json::array{jobs[5]}}}), ok(json::array{"duplicate"}));
  EXPECT_EQ(field(flat, "keep"), "60000");
  EXPECT_EQ(field(flat, "timeout"), "5000");
  EXPECT_EQ(field(flat, "backoff"), "fixed:7");
  EXPECT_EQ(field(flat, "traceparent"), trace);
  EXPECT_EQ(field(laned, "group"), tenant.text());
  EXPECT_EQ(queue().state(later).get().value(), JobState::scheduled);
  EXPECT_EQ(ask("get_job", {{"id", text(plain)}}),
            ok(json::object{{"state", "pending"}, {"attempts", "0"}, {"payload", "done 6"}}));

  const JobId ids[] = {flat, laned, later, old, tired};
  std::vector<Reply<Ended>> waits;
  std::vector<std::int64_t> theirs;
  for (const JobId& one : ids) {
    waits.push_back(queue().wait(one, kUntold));
    theirs.push_back(peer().start("await_end", "q", {{"id", text(one)}, {"within_ms", 20000}}));
  }
  const Worker ours = worker();
  const struct {
    EndedAs how;
    const char* text;
  } ends[] = {{EndedAs::completed, "1"},
              {EndedAs::completed, "2"},
              {EndedAs::completed, "3"},
              {EndedAs::dead, "expired"},
              {EndedAs::dead, "failed"}};
  for (std::size_t i = 0; i < std::size(ids); ++i) {
    SCOPED_TRACE(i);
    expect_end(waits[i], ends[i].how, ends[i].text);
    EXPECT_EQ(peer().wait(theirs[i]), ok(json::object{{to_string(ends[i].how), ends[i].text}}));
  }
  EXPECT_EQ(field(tired, "attempts"), "2");
}

TEST_F(Results, WhatIsNoOptionIsRefusedAndNothingIsAdmitted) {
  const std::string id = peer().mint("JOB");
  for (const json::object& bad : std::vector<json::object>{{{"max_attempts", 0}},
                                                           {{"keep_ms", -1}},
                                                           {{"timeout_ms", "soon"}},
                                                           {{"traceparent", "short"}},
                                                           {{"backoff", ""}}}) {
    json::object job = bad;
    job["id"] = id;
    job["payload"] = "x";
    EXPECT_EQ(ask("admit", {{"jobs", json::array{job}}}),
              error(json::object{{"server", "ERR a record of admit is malformed"}}));
  }
  EXPECT_EQ(counts().pending, 0);
  const JobId other(JobId::parse(peer().mint("JOB")).value());
  EXPECT_EQ(ask("admit",
                {{"jobs", json::array{json::object{{"id", client().mint("USR").value().text()}, {"payload", "x"}}}}}),
            ok(json::array{error("kind")}));
  EXPECT_EQ(queue().state(other).get().value(), JobState::absent);
}

}  // namespace
}  // namespace echomq::interop
