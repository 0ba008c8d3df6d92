// What a worker tells whoever watches it: each event once, in order, on the thread that was promised.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "echomq/batch.hpp"
#include "echomq/metrics.hpp"
#include "echomq/observer.hpp"
#include "support/proxy.hpp"
#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

/// Writes everything down, by payload.
class Recorder final : public WorkerObserver {
 public:
  void claimed(std::span<const Job> jobs) override {
    for (const Job& job : jobs)
      add(job, "claimed");
    const std::lock_guard lock(mutex_);
    claims_.push_back(jobs.size());
  }
  void started(const Job& job) override { add(job, "started", Thread::handler); }
  void ended(const Job& job, const Outcome& outcome, std::chrono::nanoseconds ran) override {
    add(job, "ended " + std::to_string(static_cast<int>(outcome.kind)) + " " + outcome.text, Thread::handler);
    const std::lock_guard lock(mutex_);
    ran_ = ran;
  }
  void settled(const Job& job, const JobSettled& how) override {
    add(job, "settled " + std::string(to_string(how.verdict)) + " " + std::string(how.text));
  }
  void lease_lost(const Job& job, LeaseLost when) override {
    add(job, "lease_lost " + std::to_string(static_cast<int>(when)));
  }
  void timed_out(const Job& job) override { add(job, "timed_out"); }
  void cancelled(const Job& job) override { add(job, "cancelled"); }
  void leaked(const Job& job) override { add(job, "leaked"); }
  void leak_returned(const Job& job) override { add(job, "leak_returned"); }
  void recovered(const QueueName& queue, std::span<const JobId> waiting, std::span<const JobId> dead) override {
    const std::lock_guard lock(mutex_);
    recovered_ += waiting.size();
    dead_ += dead.size();
    queue_ = queue.text();
  }

  [[nodiscard]] std::vector<std::string> of(const std::string& payload) {
    const std::lock_guard lock(mutex_);
    return events_[payload];
  }
  [[nodiscard]] bool has(const std::string& payload, const std::string& event) {
    const auto events = of(payload);
    return std::find(events.begin(), events.end(), event) != events.end();
  }
  [[nodiscard]] std::vector<std::size_t> claims() {
    const std::lock_guard lock(mutex_);
    return claims_;
  }
  /// Threads that told what belongs to the control thread, and the same of handlers.
  [[nodiscard]] std::pair<std::set<std::thread::id>, std::set<std::thread::id>> threads() {
    const std::lock_guard lock(mutex_);
    return {control_, handlers_};
  }
  [[nodiscard]] std::chrono::nanoseconds ran() {
    const std::lock_guard lock(mutex_);
    return ran_;
  }
  [[nodiscard]] std::pair<std::size_t, std::size_t> recovered_and_dead() {
    const std::lock_guard lock(mutex_);
    return {recovered_, dead_};
  }
  [[nodiscard]] std::string queue() {
    const std::lock_guard lock(mutex_);
    return queue_;
  }

 private:
  enum class Thread : std::uint8_t { control, handler };
  void add(const Job& job, std::string event, Thread thread = Thread::control) {
    const std::lock_guard lock(mutex_);
    events_[std::string(job.payload())].push_back(std::move(event));
    (thread == Thread::control ? control_ : handlers_).insert(std::this_thread::get_id());
  }

  std::mutex mutex_;
  std::map<std::string, std::vector<std::string>> events_;
  std::vector<std::size_t> claims_;
  std::set<std::thread::id> control_, handlers_;
  std::chrono::nanoseconds ran_{0};
  std::size_t recovered_ = 0, dead_ = 0;
  std::string queue_;
};

class WorkerObserving : public WorkerTest {
 protected:
  [[nodiscard]] WorkerOptions watched(std::uint32_t concurrency = 1) {
    WorkerOptions options = quick_options(concurrency);
    options.observer = recorder_;
    return options;
  }
  [[nodiscard]] bool seen(const std::string& payload, const std::string& event) {
    return eventually([&] { return recorder_->has(payload, event); });
  }
  const std::shared_ptr<Recorder> recorder_ = std::make_shared<Recorder>();
};

TEST_F(WorkerObserving, EachClaimIsToldFromItsBeginToItsVerdict) {
  WorkerOptions options = watched(2);
  options.max_attempts = 2;
  for (const char* payload : {"done", "fails", "waits", "dies", "back"})
    enqueue(payload);
  std::mutex mutex;
  std::set<std::thread::id> ran_on;
  std::atomic<bool> was_back{false};
  Worker worker = start(
      [&](Job& job) {
        {
          const std::lock_guard lock(mutex);
          ran_on.insert(std::this_thread::get_id());
        }
        if (job.payload() == "fails")
          return Retry("no luck");
        if (job.payload() == "waits")
          return Delay(1h);
        if (job.payload() == "dies")
          throw Unrecoverable("no use");
        if (job.payload() == "back" && !was_back.exchange(true))
          return HandBack();
        std::this_thread::sleep_for(20ms);
        return Done("a result");
      },
      options);
  EXPECT_TRUE(seen("done", "settled done "));
  EXPECT_TRUE(seen("fails", "settled dead no luck"));
  EXPECT_TRUE(seen("waits", "settled delay "));
  EXPECT_TRUE(seen("dies", "settled dead no use"));
  EXPECT_TRUE(seen("back", "settled done "));
  EXPECT_THAT(recorder_->of("done"), ElementsAre("claimed", "started", "ended 0 a result", "settled done "));
  EXPECT_THAT(recorder_->of("fails"), ElementsAre("claimed", "started", "ended 1 no luck", "settled retry no luck",
                                                  "claimed", "started", "ended 1 no luck", "settled dead no luck"));
  EXPECT_THAT(recorder_->of("waits"), ElementsAre("claimed", "started", "ended 2 ", "settled delay "));
  EXPECT_THAT(recorder_->of("dies"), ElementsAre("claimed", "started", "ended 3 no use", "settled dead no use"));
  EXPECT_THAT(recorder_->of("back"), ElementsAre("claimed", "started", "ended 4 ", "settled hand_back ", "claimed",
                                                 "started", "ended 0 a result", "settled done "));
  const auto [control, handlers] = recorder_->threads();
  EXPECT_EQ(control.size(), 1U);
  EXPECT_EQ(handlers, ran_on);
  EXPECT_FALSE(handlers.contains(*control.begin()));
  std::size_t claimed = 0;
  for (const std::size_t count : recorder_->claims())
    claimed += count;
  EXPECT_EQ(claimed, worker.stats().claimed);
  EXPECT_THAT(recorder_->claims(), Not(Contains(0U)));
}

TEST_F(WorkerObserving, TheTimeARunTookIsThatOfItsHandler) {
  Worker worker = start(
      [](Job&) {
        std::this_thread::sleep_for(100ms);
        return Done();
      },
      watched());
  enqueue("x");
  ASSERT_TRUE(seen("x", "settled done "));
  EXPECT_GE(recorder_->ran(), 100ms);
  EXPECT_LT(recorder_->ran(), 5s);
}

TEST_F(WorkerObserving, CoroutinesAreToldOfToTheirEnd) {
  auto worker = Worker::start(
      *queue_,
      [this](Job&) -> Task<Outcome> {
        for (int i = 0; i < 20; ++i)
          (void)co_await queue_->counts();
        co_return Done();
      },
      watched(4));
  ASSERT_TRUE(worker);
  enqueue("x");
  ASSERT_TRUE(seen("x", "settled done "));
  EXPECT_THAT(recorder_->of("x"), ElementsAre("claimed", "started", "ended 0 ", "settled done "));
  EXPECT_GT(recorder_->ran(), 50us) << "twenty round trips";
}

TEST_F(WorkerObserving, TimeOutsAndLeaksAreTold) {
  auto go = std::make_shared<std::atomic<bool>>(false);
  WorkerOptions options = watched();
  // Time for the run to be told as begun before it is over.
  options.timeout = 500ms;
  options.stop_patience = 50ms;
  options.max_attempts = 1;
  Worker worker = start(
      [go](Job&) {
        while (!*go)
          std::this_thread::sleep_for(1ms);
        return Done();
      },
      options);
  enqueue("x");
  ASSERT_TRUE(seen("x", "settled dead timed out after 500ms"));
  *go = true;
  ASSERT_TRUE(seen("x", "leak_returned"));
  EXPECT_THAT(recorder_->of("x"), ElementsAre("claimed", "started", "timed_out", "leaked",
                                              "settled dead timed out after 500ms", "ended 0 ", "leak_returned"));
}

TEST_F(WorkerObserving, CancellationsAreToldWhereverTheJobIs) {
  std::atomic<bool> begun{false};
  Worker worker = start(
      [&](Job& job) -> Outcome {
        begun = true;
        while (!job.stop_token().stop_requested())
          std::this_thread::sleep_for(1ms);
        return Retry("stopped");
      },
      watched());
  const JobId id = enqueue("runs");
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  worker.cancel(id);
  ASSERT_TRUE(seen("runs", "settled dead cancelled"));
  EXPECT_THAT(recorder_->of("runs"),
              ElementsAre("claimed", "started", "cancelled", "ended 1 stopped", "settled dead cancelled"));
  worker.stop();

  // One that was marked while nobody ran it ends at its claim.
  const JobId marked = enqueue("marked");
  const auto held = queue_->claim({.lease = 300ms}).get();
  ASSERT_TRUE(held && *held);
  ASSERT_EQ((*held)->id, marked);
  ASSERT_EQ(queue_->cancel(marked).get().value(), CancelVerdict::requested);
  ASSERT_TRUE(queue_->hand_back(marked, (*held)->token).get());
  Worker second = start([](Job&) { return Done(); }, watched());
  ASSERT_TRUE(seen("marked", "settled dead cancelled"));
  EXPECT_THAT(recorder_->of("marked"), ElementsAre("claimed", "cancelled", "settled dead cancelled"));
}

TEST_F(WorkerObserving, LostLeasesAndRefusedSettlesAreTold) {
  std::promise<void> go;
  std::atomic<bool> begun{false};
  WorkerOptions options = watched();
  options.lease = 1s;
  std::atomic<int> callbacks{0};
  options.on_lease_lost = [&](const Job&) { ++callbacks; };
  Proxy proxy(server_->tcp_url());
  Client far = open(proxy.url());
  Worker worker = start_on(
      far.queue("work"),
      [&](Job&) {
        begun = true;
        go.get_future().wait();
        return Done();
      },
      options);
  const JobId id = enqueue("x");
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  proxy.hold();
  ASSERT_TRUE(seen("x", "lease_lost 1"));
  // Meanwhile somebody else has it.
  ASSERT_TRUE(eventually([&] { return queue_->sweep_stalled().get().value().recovered.size() == 1; }));
  const auto taken = queue_->claim().get();
  ASSERT_TRUE(taken && *taken);
  ASSERT_EQ((*taken)->id, id);
  proxy.release();
  go.set_value();
  ASSERT_TRUE(eventually([&] { return recorder_->of("x").size() == 5; }));
  const auto events = recorder_->of("x");
  EXPECT_EQ(events[2], "lease_lost 1");
  EXPECT_EQ(events[3], "ended 0 ");
  EXPECT_THAT(events[4], HasSubstr("settled refused"));
  EXPECT_EQ(callbacks, 1) << "the short form beside it";
}

TEST_F(WorkerObserving, WhatIsLeftToItsLeaseIsToldAtTheEndOfAStop) {
  std::atomic<bool> begun{false};
  Proxy proxy(server_->tcp_url());
  Client far = open(proxy.url());
  Worker worker = start_on(
      far.queue("work"),
      [&](Job& job) {
        begun = true;
        while (!job.stop_token().stop_requested())
          std::this_thread::sleep_for(1ms);
        return Done();
      },
      watched());
  enqueue("x");
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  proxy.hold();
  const StopReport report = worker.stop(0ms);
  EXPECT_EQ(report.unsettled, 1U);
  const auto events = recorder_->of("x");
  EXPECT_EQ(std::count_if(events.begin(), events.end(),
                          [](const std::string& event) { return event.starts_with("settled unsettled "); }),
            1)
      << ::testing::PrintToString(events);
  proxy.release();
}

TEST_F(WorkerObserving, RecoveredJobsAreToldByWhoRecoversThem) {
  for (int i = 0; i < 3; ++i)
    enqueue("stalled");
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(queue_->claim({.lease = 1ms}).get().value());
  WorkerOptions options = watched();
  options.sweep_period = 20ms;
  Worker worker = start([](Job&) { return Done(); }, options);
  ASSERT_TRUE(eventually([&] { return counts().completed == 3; }));
  // A claim that rides may bring the jobs before the sweep's own answer is here.
  EXPECT_TRUE(eventually([&] { return recorder_->recovered_and_dead() == std::pair(std::size_t{3}, std::size_t{0}); }));
  EXPECT_EQ(recorder_->queue(), "work");
  worker.stop();

  for (int i = 0; i < 2; ++i)
    enqueue("dies");
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(queue_->claim({.lease = 1ms}).get().value());
  options.max_stalled = 1;
  Worker second = start([](Job&) { return Done(); }, options);
  ASSERT_TRUE(eventually([&] { return counts().dead == 2; }));
  EXPECT_TRUE(eventually([&] { return recorder_->recovered_and_dead() == std::pair(std::size_t{3}, std::size_t{2}); }));
}

TEST_F(WorkerObserving, MembersOfABatchAreToldOneByOne) {
  BatchWorkerOptions options;
  options.shape = {.min_size = 3, .timeout = 10s};
  options.worker = watched();
  auto worker = BatchWorker::start(
      *queue_,
      [](std::span<Job> jobs) {
        BatchVerdicts verdicts;
        verdicts.emplace(jobs[0].id(), Done("r"));
        verdicts.emplace(jobs[1].id(), Dead("no"));
        return verdicts;
      },
      options);
  ASSERT_TRUE(worker);
  for (const char* payload : {"a", "b", "c"})
    enqueue(payload);
  ASSERT_TRUE(seen("a", "settled done ") && seen("b", "settled dead no"));
  ASSERT_TRUE(seen("c", "settled retry missing verdict"));
  EXPECT_THAT(recorder_->of("a"), ElementsAre("claimed", "started", "ended 0 r", "settled done "));
  EXPECT_THAT(recorder_->of("b"), ElementsAre("claimed", "started", "ended 3 no", "settled dead no"));
  const auto of_c = recorder_->of("c");
  ASSERT_GE(of_c.size(), 4U);
  EXPECT_THAT((std::vector<std::string>(of_c.begin(), of_c.begin() + 4)),
              ElementsAre("claimed", "started", "ended 1 missing verdict", "settled retry missing verdict"));
}

class Thrower final : public WorkerObserver {
 public:
  void claimed(std::span<const Job> /*jobs*/) override { fail(); }
  void started(const Job& /*job*/) override { fail(); }
  void ended(const Job& /*job*/, const Outcome& /*outcome*/, std::chrono::nanoseconds /*ran*/) override { throw 7; }
  void settled(const Job& /*job*/, const JobSettled& /*how*/) override { fail(); }

 private:
  static void fail() { throw std::runtime_error("observer"); }
};

TEST_F(WorkerObserving, AnObserverThatThrowsIsCountedAndLoggedAndNobodyIsHurt) {
  std::mutex mutex;
  std::vector<std::string> logged;
  ClientOptions client_options;
  client_options.log = [&](LogLevel, std::string_view event, std::span<const LogField> fields) {
    if (event != "worker_callback_failed")
      return;
    const std::lock_guard lock(mutex);
    for (const LogField& field : fields) {
      if (field.name == "text")
        logged.emplace_back(field.value);
    }
  };
  Client client = open({}, client_options);
  WorkerOptions options = quick_options();
  options.observer = std::make_shared<Thrower>();
  std::atomic<int> told{0};
  options.on_settled = [&](const Job&, std::string_view verdict) { told += verdict == "done" ? 1 : 0; };
  Worker worker = start_on(client.queue("work"), [](Job&) { return Done(); }, options);
  enqueue();
  ASSERT_TRUE(eventually([&] { return told == 1; })) << "the callback beside it is called all the same";
  worker.stop();
  EXPECT_EQ(counts().completed, 1);
  EXPECT_EQ(worker.stats().errors, 4U);
  const std::lock_guard lock(mutex);
  EXPECT_THAT(logged, UnorderedElementsAre("claimed", "started", "ended", "settled"));
}

TEST_F(WorkerObserving, AHandlerThatOutlivesItsWorkerStillHasItsObserver) {
  auto go = std::make_shared<std::promise<void>>();
  auto begun = std::make_shared<std::atomic<bool>>(false);
  std::weak_ptr<Recorder> weak;
  {
    auto recorder = std::make_shared<Recorder>();
    weak = recorder;
    WorkerOptions options = quick_options();
    options.stop_grace = 50ms;
    options.observer = std::move(recorder);
    Worker worker = start(
        [go, begun](Job&) {
          *begun = true;
          go->get_future().wait();
          return Done("late");
        },
        std::move(options));
    enqueue("x");
    ASSERT_TRUE(eventually([&] { return begun->load(); }));
    EXPECT_EQ(worker.stop(0ms).leaked, 1U);
  }
  const std::shared_ptr<Recorder> kept = weak.lock();
  ASSERT_TRUE(kept);
  go->set_value();
  EXPECT_TRUE(eventually([&] { return kept->has("x", "ended 0 late"); }));
}

TEST_F(WorkerObserving, MetricsAgreeWithTheStatisticsOfTheWorkers) {
  auto metrics = std::make_shared<WorkerMetrics>();
  WorkerOptions options = quick_options(8);
  options.observer = metrics;
  options.max_attempts = 2;
  const auto handler = [](Job& job) {
    if (job.payload() == "fails")
      return Retry("no");
    return Done();
  };
  Worker first = start(handler, options), second = start(handler, options);
  Worker other = start_on(client_->queue("other"), handler, options);
  enqueue_many(1000);
  for (int i = 0; i < 20; ++i)
    enqueue("fails");
  ASSERT_TRUE(client_->queue("other").enqueue("x").get());
  ASSERT_TRUE(eventually([&] { return first.stats().completed + second.stats().completed == 1000; }));
  ASSERT_TRUE(eventually([&] { return first.stats().dead + second.stats().dead == 20; }));
  ASSERT_TRUE(eventually([&] { return other.stats().completed == 1; }));
  first.stop();
  second.stop();
  other.stop();
  const auto all = metrics->snapshot();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].queue.text(), "other");
  EXPECT_EQ(all[0].ended(JobVerdict::done), 1U);
  const QueueMetrics& work = all[1];
  EXPECT_EQ(work.claimed, first.stats().claimed + second.stats().claimed);
  EXPECT_EQ(work.ended(JobVerdict::done), 1000U);
  EXPECT_EQ(work.ended(JobVerdict::retry), 20U);
  EXPECT_EQ(work.ended(JobVerdict::dead), 20U);
  EXPECT_EQ(work.run.count, 1040U);
  EXPECT_EQ(work.wait.count, 1020U) << "first runs";
  EXPECT_LT(work.wait.max, 60s);
  EXPECT_EQ(work.running, 0);
  EXPECT_THAT(metrics->prometheus(), HasSubstr("echomq_jobs_settled_total{queue=\"work\",verdict=\"done\"} 1000\n"));
}

}  // namespace
}  // namespace echomq::test
