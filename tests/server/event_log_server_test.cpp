// `EventLog` and `LogTail`: one entry for each step of a job, written with the step; what goes is told and counted.
#include "echomq/event_log.hpp"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>

#include "echomq/flow.hpp"
#include "echomq/worker.hpp"
#include "server/queue_fixture.hpp"
#include "support/bounds.hpp"
#include "support/log_replay.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class EventLogServer : public QueueServerTest {
 protected:
  void SetUp() override {
    QueueServerTest::SetUp();
    log_.emplace(client(), QueueName("q"));
  }
  [[nodiscard]] const EventLog& log() const { return *log_; }
  void turn_on(LogOptions options = {}) { ASSERT_TRUE(log().turn_on(options).get()); }

  /// Names of the events of a job, with what is not of every one.
  [[nodiscard]] std::vector<std::string> of(JobId id) const {
    std::vector<std::string> out;
    for (const LogEntry& entry : all_of(log())) {
      if (entry.job != id)
        continue;
      std::string line = entry.event + " " + std::to_string(entry.attempts);
      if (entry.lane)
        line += " lane";
      for (const auto& [name, value] : entry.extra)
        line += " " + name + (name == "due" ? "" : "=" + value);
      out.push_back(line);
    }
    return out;
  }
  [[nodiscard]] std::vector<std::string> events() const {
    std::vector<std::string> out;
    for (const LogEntry& entry : all_of(log()))
      out.push_back(entry.event);
    return out;
  }

 private:
  std::optional<EventLog> log_;
};

TEST_F(EventLogServer, IsOffUntilItIsTurnedOn) {
  const Token token = claimed(kJobA);
  ASSERT_TRUE(queue().complete(kJobA, token).get());
  EXPECT_EQ(raw("EXISTS", "emq:{q}:log", "emq:{q}:logging").as_integer(), 0);
  const auto info = log().info().get();
  ASSERT_TRUE(info) << info.error().message();
  EXPECT_FALSE(info->on);
  EXPECT_EQ(info->added, 0U);

  EXPECT_EQ(log().turn_on({.most = 5000, .age = 1h, .claims = true}).get().value(), false);
  EXPECT_EQ(log().turn_on({.most = 6000}).get().value(), true);
  const auto now_on = log().info().get().value();
  EXPECT_TRUE(now_on.on);
  EXPECT_EQ(now_on.most, 6000U);
  EXPECT_FALSE(now_on.age);
  EXPECT_FALSE(now_on.claims);
  EXPECT_EQ(log().turn_off().get().value(), true);
  EXPECT_EQ(log().turn_off().get().value(), false);
  ASSERT_TRUE(queue().enqueue("x", {.id = kJobB}).get());
  EXPECT_THAT(events(), ElementsAre("opened", "closed"));
  EXPECT_GT(raw("PTTL", "emq:{q}:log").as_integer().value(), 6 * 24 * 3600 * 1000);
  // Turned on again it stays.
  turn_on();
  EXPECT_EQ(raw("PTTL", "emq:{q}:log").as_integer(), -1);
  EXPECT_EQ(log().forget().get().value(), true);
  EXPECT_EQ(raw("EXISTS", "emq:{q}:log", "emq:{q}:logging", "emq:{q}:meta").as_integer(), 0);
}

TEST_F(EventLogServer, RefusesWhatItCannotKeep) {
  EXPECT_TRUE(log().turn_on({.most = 0}).get().error().is(Errc::invalid_argument));
  EXPECT_TRUE(log().turn_on({.age = 0ms}).get().error().is(Errc::invalid_argument));
  EXPECT_TRUE(log().read({}, {.count = 0}).get().error().is(Errc::invalid_argument));
  EXPECT_TRUE(log().read({}, {.count = 10'001}).get().error().is(Errc::invalid_argument));
  for (const char* text : {"", "1", "1-", "-1", "1-2:", "1-2:x", "1-2:3:4", "x-1"})
    EXPECT_FALSE(LogCursor::parse(text)) << text;
  const LogCursor cursor{.milliseconds = 12, .number = 3, .passed = 7};
  EXPECT_EQ(LogCursor::parse(cursor.text()).value(), cursor);
  EXPECT_EQ(LogCursor::parse("12-3").value().passed, std::nullopt);
  EXPECT_EQ(raw("EXISTS", "emq:{q}:logging").as_integer(), 0);
}

// The single verbs, each of them.
TEST_F(EventLogServer, EveryStepOfAJobIsOneEntry) {
  turn_on({.claims = true});
  const JobId a = kJobA, b = kJobB, c = kJobC;
  Token token = claimed(a);
  ASSERT_TRUE(queue().retry(a, token, {.delay = 0ms, .error = "oops"}).get());
  ASSERT_TRUE(queue().retry(a, token, {.delay = 0ms, .error = "oops"}).get());  // the same again is nothing new
  ASSERT_EQ(queue().promote().get().value(), 1);
  token = queue().claim().get().value()->token;
  ASSERT_TRUE(queue().delay(a, token, 0ms).get());
  ASSERT_EQ(queue().promote().get().value(), 1);
  token = queue().claim().get().value()->token;
  ASSERT_TRUE(queue().hand_back(a, token).get());
  token = queue().claim({.lease = 1ms}).get().value()->token;
  std::this_thread::sleep_for(5ms);
  ASSERT_EQ(queue().sweep_stalled().get().value().recovered.size(), 1U);
  token = queue().claim({.lease = 1ms}).get().value()->token;
  std::this_thread::sleep_for(5ms);
  ASSERT_EQ(queue().reap().get().value(), 1);
  token = queue().claim().get().value()->token;
  ASSERT_EQ(queue().cancel(a).get().value(), CancelVerdict::requested);
  ASSERT_EQ(queue().cancel(a).get().value(), CancelVerdict::requested);
  ASSERT_TRUE(queue().retry(a, token, {.max_attempts = 1, .error = "last"}).get());
  ASSERT_TRUE(queue().reprocess(a).get());
  token = queue().claim().get().value()->token;
  ASSERT_TRUE(queue().complete(a, token).get());
  (void)queue().complete(a, token).get();
  EXPECT_THAT(of(a), ElementsAre("added 0", "active 1", "failed 1 error=oops due", "promoted 1", "active 2",
                                 "delayed 2 due", "promoted 2", "active 3", "handed_back 3", "active 4", "stalled 4",
                                 "active 5", "stalled 5", "active 6", "cancel_requested 6", "dead 6 error=last",
                                 "reprocessed 6", "active 7", "completed 7"));

  ASSERT_TRUE(queue().enqueue("x", {.id = b, .lane = kLaneX}).get());
  EXPECT_EQ(queue().enqueue("x", {.id = b, .lane = kLaneX}).get().value().verdict, Admitted::duplicate);
  ASSERT_TRUE(queue().reassign(b, kLaneY).get());
  ASSERT_TRUE(queue().claim_lane({.lease = 1ms}).get().value());
  std::this_thread::sleep_for(5ms);
  ASSERT_EQ(queue().reap_lane(kLaneY).get().value(), 1);
  ASSERT_EQ(queue().cancel(b).get().value(), CancelVerdict::cancelled);
  ASSERT_TRUE(queue().remove(b).get());
  EXPECT_THAT(of(b), ElementsAre("added 0 lane", "moved 0 lane from=" + std::string(kLaneX.text()), "active 1 lane",
                                 "stalled 1 lane", "cancelled 1 lane error=cancelled", "removed 1 lane"));

  ASSERT_TRUE(queue().enqueue_in("x", 1h, {.id = c}).get());
  ASSERT_TRUE(queue().enqueue("x", {.id = b}).get());
  ASSERT_EQ(queue().drain({.include_schedule = true}).get().value(), 2);
  EXPECT_THAT(of(c), ElementsAre("added 0 due", "removed 0 reason=drained"));
  const auto entries = all_of(log());
  for (std::size_t i = 1; i < entries.size(); ++i)
    EXPECT_GE(entries[i].time, entries[i - 1].time);
  EXPECT_EQ(log().info().get().value().lost, 0U);
}

TEST_F(EventLogServer, ClaimsAreLoggedByChoiceOnly) {
  turn_on();
  const Token token = claimed(kJobA);
  ASSERT_TRUE(queue().complete(kJobA, token).get());
  EXPECT_THAT(of(kJobA), ElementsAre("added 0", "completed 1"));
}

TEST_F(EventLogServer, ParentsOfFlowsToo) {
  turn_on();
  const std::array<FlowJob, 2> children = {FlowJob{.payload = "c"}, FlowJob{.payload = "d"}};
  FlowJob root{.payload = "p"};
  root.children = children;
  const Flow flow(queue());
  const auto added = flow.add(root).get();
  ASSERT_TRUE(added) << added.error().message();
  const JobId parent = added->parent;
  for (int i = 0; i < 2; ++i) {
    const auto job = queue().claim().get().value().value();
    ASSERT_TRUE(queue().complete(job.id, job.token).get());
  }
  const auto job = queue().claim().get().value().value();
  EXPECT_EQ(job.id, parent);
  EXPECT_THAT(of(parent), ElementsAre("added 0 state=awaiting_children", "released 0"));

  const JobId second = flow.add(root).get().value().parent;
  const auto dies = queue().claim().get().value().value();
  ASSERT_TRUE(queue().retry(dies.id, dies.token, {.max_attempts = 1, .error = "boom"}).get());
  EXPECT_THAT(of(second), ElementsAre("added 0 state=awaiting_children", "dead 0 error=boom"));
}

class EventLogWorkers : public EventLogServer {
 protected:
  [[nodiscard]] std::map<std::string, Told> replay() { return test::replay(all_of(log())); }
  void expect_as_it_is(const std::map<std::string, Told>& jobs) {
    for (const auto& [id, told] : jobs) {
      const Value row = raw("HMGET", "emq:{q}:job:" + id, "state", "attempts");
      const std::string state(row[0].as_text().value_or("absent"));
      EXPECT_EQ(told.state, state) << id;
      if (state != "absent") {
        EXPECT_EQ(std::to_string(told.attempts), row[1].as_text().value()) << id;
      }
    }
  }
};

TEST_F(EventLogWorkers, WhatTheLogTellsIsWhatThereIsAfterARandomHistory) {
  turn_on({.claims = true});
  std::mt19937 random(20261130);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<JobId> known;
  std::vector<std::pair<JobId, Token>> held;
  const auto any = [&] { return known[static_cast<std::size_t>(pick(static_cast<int>(known.size())))]; };
  for (int i = 0; i < 1500; ++i) {
    const int what = known.empty() ? 0 : pick(20);
    const std::optional<LaneId> lane = pick(2) == 0 ? std::nullopt : std::optional(pick(2) == 0 ? kLaneX : kLaneY);
    if (what < 4) {
      EnqueueOptions options{.lane = lane};
      if (pick(3) == 0)
        options.in = Milliseconds(pick(3));
      if (pick(8) == 0)
        options.run.expire = 4ms;
      if (auto admitted = queue().enqueue("x", options).get())
        known.push_back(admitted->id);
    } else if (what < 6) {
      std::vector<NewJob> jobs(static_cast<std::size_t>(1 + pick(5)), NewJob{.payload = "y"});
      auto admitted = queue().enqueue_many(jobs, {.lane = lane}).get();
      ASSERT_TRUE(admitted);
      for (const auto& one : *admitted)
        known.push_back(one->id);
    } else if (what < 11) {
      const Milliseconds lease(pick(4) == 0 ? 1 : 60000);
      auto job = pick(2) == 0 ? queue().claim({.lease = lease}).get() : queue().claim_lane({.lease = lease}).get();
      ASSERT_TRUE(job);
      if (*job)
        held.emplace_back((*job)->id, (*job)->token);
    } else if (what < 16 && !held.empty()) {
      const std::size_t at = static_cast<std::size_t>(pick(static_cast<int>(held.size())));
      const auto [id, token] = held[at];
      // Stale ones too, and the same twice: nothing may be logged for them.
      if (pick(5) != 0)
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
      switch (pick(4)) {
        case 0: (void)queue().complete(id, token).get(); break;
        case 1:
          (void)queue().retry(id, token, {.delay = Milliseconds(pick(3)), .max_attempts = 2, .error = "e"}).get();
          break;
        case 2: (void)queue().delay(id, token, Milliseconds(pick(3))).get(); break;
        default: (void)queue().hand_back(id, token).get(); break;
      }
    } else if (what == 16) {
      (void)queue().sweep_stalled({.max_stalled = 2}).get();
      (void)queue().promote().get();
    } else if (what == 17) {
      (void)(pick(2) == 0 ? queue().reap().get() : queue().reap_lane(kLaneX).get());
    } else if (what == 18) {
      (void)queue().cancel(any()).get();
      (void)queue().reprocess(any()).get();
    } else {
      (void)queue().remove(any()).get();
      if (pick(30) == 0)
        (void)queue().drain_lane(kLaneY).get();
    }
  }
  const auto jobs = replay();
  EXPECT_GT(jobs.size(), 200U);
  expect_as_it_is(jobs);
  EXPECT_EQ(log().info().get().value().lost, 0U);
}

// The calls of workers: settle, take, both in one.
TEST_F(EventLogWorkers, WorkersLogEveryStepOnce) {
  turn_on({.claims = true});
  constexpr int kJobs = 600;
  std::atomic<int> calls{0};
  WorkerOptions options;
  options.concurrency = 8;
  options.max_attempts = 2;
  options.backoff = Backoff::fixed(5ms);
  options.beat = 100ms;
  auto worker = Worker::start(
      queue(),
      [&](Job& job) -> Outcome {
        const int n = calls.fetch_add(1);
        if (job.payload() == "die")
          return Dead("bad");
        if (job.payload() == "fail")
          return Retry("oops");
        if (job.payload() == "late" && job.attempt() == 1 && n >= 0)
          return Delay(5ms);
        return Done();
      },
      options);
  ASSERT_TRUE(worker) << worker.error().message();
  const std::array<const char*, 4> kinds = {"ok", "die", "fail", "late"};
  for (int i = 0; i < kJobs; ++i) {
    const std::optional<LaneId> lane = i % 3 == 0 ? std::optional(kLaneX) : std::nullopt;
    queue().enqueue(kinds[static_cast<std::size_t>(i) % 4], {.lane = lane}).detach();
  }
  const auto until = std::chrono::steady_clock::now() + 30s;
  for (;;) {
    const auto counts = queue().counts().get().value();
    if (counts.completed + counts.dead >= kJobs || std::chrono::steady_clock::now() > until)
      break;
    std::this_thread::sleep_for(20ms);
  }
  worker->stop();
  const auto jobs = replay();
  EXPECT_EQ(jobs.size(), static_cast<std::size_t>(kJobs));
  expect_as_it_is(jobs);
  std::map<std::string, int> times;
  for (const LogEntry& entry : all_of(log()))
    ++times[entry.event];
  EXPECT_EQ(times["added"], kJobs);
  EXPECT_EQ(times["completed"], kJobs / 2);
  EXPECT_EQ(times["dead"], kJobs / 2);
  EXPECT_EQ(times["failed"], kJobs / 4);
  EXPECT_EQ(times["delayed"], kJobs / 4);
  EXPECT_EQ(times["active"], kJobs / 2 + kJobs);
}

TEST_F(EventLogServer, IsBoundedAndTheGapIsCounted) {
  turn_on({.most = 500});
  auto before = log().read().get().value();
  ASSERT_EQ(before.entries.size(), 1U);
  ASSERT_EQ(before.next.passed, 1U);
  const std::vector<NewJob> jobs(200, NewJob{.payload = "x"});
  for (int i = 0; i < 25; ++i)
    ASSERT_TRUE(queue().enqueue_many(jobs).get());
  const auto info = log().info().get().value();
  EXPECT_EQ(info.added, 5001U);
  EXPECT_GE(info.length, 500U);
  EXPECT_LE(info.length, 500U + 100 + 200);
  // Who has read one entry has missed all that has gone but that one.
  const auto page = log().read(before.next, {.count = 10'000}).get().value();
  ASSERT_TRUE(page.gap);
  EXPECT_FALSE(page.gap->begun_anew);
  EXPECT_EQ(page.gap->missed, info.added - info.length - 1);
  EXPECT_EQ(page.entries.size(), info.length);
  EXPECT_EQ(page.next.passed, info.added);
  EXPECT_FALSE(page.more);
  // Behind it nothing is missing; nor for who begins at the beginning of what there is.
  EXPECT_FALSE(log().read(page.next).get().value().gap);
  EXPECT_FALSE(log().read().get().value().gap);
  // A cursor that is only a time cannot count.
  const auto since = log().read(LogCursor::since(before.entries[0].time)).get().value();
  ASSERT_TRUE(since.gap);
  EXPECT_FALSE(since.gap->missed);
  // A log that was deleted and begun anew is not the one of the cursor.
  ASSERT_TRUE(log().forget().get());
  EXPECT_TRUE(log().read(page.next).get().value().gap->begun_anew);
  turn_on();
  const auto anew = log().read(page.next).get().value();
  ASSERT_TRUE(anew.gap);
  EXPECT_TRUE(anew.gap->begun_anew);
  const auto onward = log().read(anew.next).get().value();
  EXPECT_FALSE(onward.gap);
  EXPECT_EQ(onward.entries.size(), 1U);
}

TEST_F(EventLogServer, OldEntriesGoByAge) {
  turn_on({.age = 200ms});
  const std::vector<NewJob> jobs(1000, NewJob{.payload = "x"});
  ASSERT_TRUE(queue().enqueue_many(jobs).get());
  std::this_thread::sleep_for(400ms);
  ASSERT_TRUE(queue().enqueue("x").get());
  EXPECT_LE(log().info().get().value().length, 200U);
}

TEST_F(EventLogServer, PagesByTime) {
  turn_on();
  ASSERT_TRUE(queue().enqueue("x", {.id = kJobA}).get());
  std::this_thread::sleep_for(20ms);
  ASSERT_TRUE(queue().enqueue("x", {.id = kJobB}).get());
  std::this_thread::sleep_for(20ms);
  ASSERT_TRUE(queue().enqueue("x", {.id = kJobC}).get());
  const auto entries = all_of(log());
  ASSERT_EQ(entries.size(), 4U);
  const auto page = log().read(LogCursor::since(entries[2].time), {.until = entries[2].time}).get().value();
  ASSERT_EQ(page.entries.size(), 1U);
  EXPECT_EQ(page.entries[0].job, kJobB);
  EXPECT_FALSE(page.gap);
  const auto one = log().read({}, {.count = 1}).get().value();
  EXPECT_TRUE(one.more);
  EXPECT_EQ(one.entries[0].event, "opened");
  EXPECT_EQ(log().read(one.next).get().value().entries[0].job, kJobA);
}

// Who cannot write it goes on; what it lacks is counted.
TEST_F(EventLogServer, ALogThatCannotBeWrittenHoldsNobodyUp) {
  turn_on();
  raw("DEL", "emq:{q}:log");
  raw("SET", "emq:{q}:log", "mine");
  const Token token = claimed(kJobA);
  ASSERT_TRUE(queue().complete(kJobA, token).get());
  EXPECT_EQ(raw("HGET", "emq:{q}:logging", "lost").as_text(), "2");
  EXPECT_TRUE(log().info().get().error().is(Errc::server_error));
  EXPECT_TRUE(log().turn_on().get().error().is(Errc::server_error));
  // Nor does a mark that is none.
  raw("SET", "emq:{q}:logging", "mine");
  const Token again = claimed(kJobB);
  EXPECT_TRUE(queue().complete(kJobB, again).get());
  EXPECT_TRUE(queue().enqueue("x").get());
  EXPECT_EQ(raw("GET", "emq:{q}:log").as_text(), "mine");
}

TEST_F(EventLogServer, ObliterateLeavesItForAWeekAndTurnsItOff) {
  turn_on({.claims = true});
  ASSERT_TRUE(queue().enqueue("x", {.id = kJobA}).get());
  ASSERT_TRUE(queue().pause().get());
  ASSERT_EQ(queue().obliterate({.force = true}).get().value(), Obliterated::done);
  EXPECT_THAT(events(), ElementsAre("opened", "added", "obliterated"));
  EXPECT_EQ(raw("EXISTS", "emq:{q}:logging", "emq:{q}:meta").as_integer(), 0);
  EXPECT_GT(raw("PTTL", "emq:{q}:log").as_integer().value(), 6 * 24 * 3600 * 1000);
}

/// What a tail was told.
class Followed {
 public:
  [[nodiscard]] LogTailOptions options(std::optional<LogCursor> from = {}) {
    LogTailOptions out;
    out.on_entry = [this](const LogEntry& entry, const LogCursor& behind) {
      const std::lock_guard lock(mutex_);
      ids_.push_back(entry.id);
      cursors_.push_back(behind);
      changed_.notify_all();
    };
    out.on_gap = [this](const LogGap& gap) {
      const std::lock_guard lock(mutex_);
      gaps_.push_back(gap);
      changed_.notify_all();
    };
    out.from = from;
    out.beat = 500ms;
    return out;
  }
  [[nodiscard]] bool wait(std::size_t entries, std::chrono::milliseconds limit = 10s) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return ids_.size() >= entries; });
  }
  [[nodiscard]] std::vector<std::string> ids() {
    const std::lock_guard lock(mutex_);
    return ids_;
  }
  [[nodiscard]] std::vector<LogCursor> cursors() {
    const std::lock_guard lock(mutex_);
    return cursors_;
  }
  [[nodiscard]] std::vector<LogGap> gaps() {
    const std::lock_guard lock(mutex_);
    return gaps_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> ids_;
  std::vector<LogCursor> cursors_;
  std::vector<LogGap> gaps_;
};

[[nodiscard]] std::vector<std::string> ids_of(const std::vector<LogEntry>& entries) {
  std::vector<std::string> out;
  for (const LogEntry& entry : entries)
    out.push_back(entry.id);
  return out;
}

TEST_F(EventLogServer, ATailToldOfEachEntryOnceThoughItsConnectionsAreCut) {
  turn_on();
  ASSERT_TRUE(queue().enqueue("before").get());
  Followed followed;
  auto tail = LogTail::start(log(), followed.options());
  ASSERT_TRUE(tail) << tail.error().message();
  auto admin = Client::open(server().url()).value();
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(admin.queue(QueueName("q")).enqueue("x").get());
    if (i % 50 == 25)
      (void)admin.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").get();
  }
  ASSERT_TRUE(followed.wait(300)) << followed.ids().size();
  tail->stop();
  std::vector<std::string> expected = ids_of(all_of(log()));
  expected.erase(expected.begin(), expected.begin() + 2);
  EXPECT_EQ(followed.ids(), expected);
  EXPECT_THAT(followed.gaps(), IsEmpty());
  EXPECT_EQ(tail->cursor().passed, 302U);
  EXPECT_EQ(tail->stats().entries, 300U);
}

TEST_F(EventLogServer, ATailGoesOnFromItsCursorAndTellsOfAGap) {
  turn_on({.most = 100});
  Followed first;
  LogCursor kept;
  {
    auto tail = LogTail::start(log(), first.options(LogCursor::beginning()));
    ASSERT_TRUE(tail);
    ASSERT_TRUE(queue().enqueue("x").get());
    ASSERT_TRUE(first.wait(2));
    tail->stop();
    kept = LogCursor::parse(first.cursors().back().text()).value();
    EXPECT_EQ(kept.passed, 2U);
  }
  ASSERT_TRUE(queue().enqueue("x").get());
  Followed second;
  {
    auto tail = LogTail::start(log(), second.options(kept));
    ASSERT_TRUE(second.wait(1));
    EXPECT_EQ(second.cursors().back().passed, 3U);
    tail->stop();
    kept = tail->cursor();
  }
  EXPECT_THAT(second.gaps(), IsEmpty());
  const std::vector<NewJob> jobs(1000, NewJob{.payload = "x"});
  ASSERT_TRUE(queue().enqueue_many(jobs).get());
  ASSERT_TRUE(queue().enqueue("x").get());
  const auto info = log().info().get().value();
  Followed third;
  auto tail = LogTail::start(log(), third.options(kept));
  ASSERT_TRUE(third.wait(info.length));
  tail->stop();
  ASSERT_EQ(third.gaps().size(), 1U);
  EXPECT_EQ(third.gaps()[0].missed, info.added - info.length - 3);
  EXPECT_EQ(third.ids(), ids_of(all_of(log())));
}

TEST_F(EventLogServer, AnIdleTailIsQuiet) {
  turn_on();
  Followed followed;
  auto options = followed.options();
  options.beat = 1min;
  auto tail = LogTail::start(log(), std::move(options));
  ASSERT_TRUE(tail);
  std::this_thread::sleep_for(200ms);
  const auto before = client().stats().commands;
  std::this_thread::sleep_for(2s);
  EXPECT_LE(client().stats().commands - before, 2U);
  // And wakes at once.
  const auto sent = std::chrono::steady_clock::now();
  ASSERT_TRUE(queue().enqueue("x").get());
  ASSERT_TRUE(followed.wait(1));
  EXPECT_LT(std::chrono::steady_clock::now() - sent, bound(1s));
}

class EventLogRedis : public EventLogWorkers {
 protected:
  [[nodiscard]] echomq::testing::PrivateServerOptions server_options() const override {
    return {.engine = echomq::testing::Engine::redis, .listen = echomq::testing::Listen::unix_socket};
  }
};

TEST_F(EventLogRedis, TheSameOnRedis) {
  turn_on({.most = 100, .claims = true});
  const auto begin = log().read().get().value();
  Token token = claimed(kJobA);
  ASSERT_TRUE(queue().retry(kJobA, token, {.delay = 1h, .error = "oops"}).get());
  EXPECT_THAT(of(kJobA), ElementsAre("added 0", "active 1", "failed 1 error=oops due"));
  const std::vector<NewJob> jobs(500, NewJob{.payload = "x"});
  ASSERT_TRUE(queue().enqueue_many(jobs).get());
  ASSERT_TRUE(queue().enqueue("x").get());
  const auto info = log().info().get().value();
  EXPECT_EQ(info.added, 505U);
  EXPECT_LE(info.length, 300U);
  EXPECT_EQ(log().read(begin.next).get().value().gap.value().missed, info.added - info.length - 1);
}

}  // namespace
}  // namespace echomq::test
