// Waiting for the end of a job: none is missed, whenever it comes and whoever tells of it.
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "echomq/task.hpp"
#include "server/queue_fixture.hpp"
#include "support/bounds.hpp"
#include "support/proxy.hpp"

namespace echomq::test {
namespace {

using ::testing::HasSubstr;

/// A beat that cannot be why a test passes.
constexpr WaitOptions kNoBeat{.timeout = 20s, .beat = 1h};

class QueueWaitServerTest : public QueueServerTest {
 protected:
  /// What a worker does at the end of a job with `keep`: one transaction, then the word.
  void settle(JobId id, std::string_view kept, std::string_view keep = "60000") {
    const std::string row = "emq:{q}:job:" + std::string(id.text());
    const std::string result = "emq:{q}:result:" + std::string(id.text());
    const std::string_view set[] = {"SET", result, kept, "PX", keep};
    const std::string_view del[] = {"DEL", row};
    const std::string_view zrem[] = {"ZREM", "emq:{q}:pending", id.text()};
    const std::string_view publish[] = {"PUBLISH", "emq:{q}:ended", id.text()};
    const CommandParts commands[] = {set, del, zrem, publish};
    ASSERT_TRUE(client().transaction(commands).get());
  }
  void until_subscribed(const std::string& channel = "emq:{q}:events") {
    for (int i = 0; i < 2000; ++i) {
      const Value counted = raw("PUBSUB", "NUMSUB", channel);
      if (counted.size() == 2 && counted[1].as_integer().value_or(0) > 0)
        return;
      std::this_thread::sleep_for(10ms);
    }
    FAIL() << "nobody has subscribed to " << channel;
  }
  /// The looks that follow a subscription have been sent, and nothing more is.
  void until_quiet() {
    std::uint64_t before = client().stats().commands;
    for (int i = 0; i < 100; ++i) {
      std::this_thread::sleep_for(100ms);
      const std::uint64_t now = client().stats().commands;
      if (now == before)
        return;
      before = now;
    }
    FAIL() << "the client asks without end";
  }
};

using namespace std::string_view_literals;

TEST_F(QueueWaitServerTest, AJobThatEndedBefore) {
  settle(kJobA, "completed\0the result"sv);
  const auto ended = queue().wait(kJobA, kNoBeat).get();
  ASSERT_TRUE(ended) << ended.error().message();
  EXPECT_EQ(ended->id, kJobA);
  EXPECT_EQ(ended->how, EndedAs::completed);
  EXPECT_EQ(ended->text, "the result");
  const auto kept = queue().result(kJobA).get();
  ASSERT_TRUE(kept && *kept);
  EXPECT_EQ((*kept)->text, "the result");
  EXPECT_EQ((*kept)->how, EndedAs::completed);
  EXPECT_EQ(queue().result(kJobB).get().value(), std::nullopt);
}

TEST_F(QueueWaitServerTest, AJobThatEndsMeanwhileIsToldAtOnce) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  auto waiting = queue().wait(kJobA, kNoBeat);
  until_subscribed();
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(waiting.ready());
  settle(kJobA, "completed\0a\0b"sv);
  const auto ended = waiting.get();
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->how, EndedAs::completed);
  EXPECT_EQ(ended->text, "a\0b"sv);
}

TEST_F(QueueWaitServerTest, CoAwaitAndThen) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  std::jthread worker([&] {
    until_subscribed();
    settle(kJobA, "completed\0x"sv);
  });
  const auto task = [](Queue of) -> Task<Result<Ended>> { co_return co_await of.wait(kJobA, kNoBeat); };
  const auto ended = task(queue()).get();
  ASSERT_TRUE(ended) << ended.error().message();
  EXPECT_EQ(ended->text, "x");
  std::atomic<bool> told = false;
  queue().wait(kJobA, kNoBeat).then([&](Result<Ended> again) {
    told = again && again->how == EndedAs::completed;
    told.notify_all();
  });
  told.wait(false);
}

TEST_F(QueueWaitServerTest, EndsBetweenTheSubscriptionAndTheLook) {
  // The proxy lets the end happen at any moment of the conversation: before the subscription, after it, after the look.
  for (int delay = 0; delay < 12; ++delay) {
    const JobId id = client().mint_job().value();
    ASSERT_TRUE(queue().enqueue("p", {.id = id}).get());
    Proxy proxy(server().url(), {.listen = ProxyListen::unix_socket});
    proxy.delay(std::chrono::milliseconds(3));
    const auto other = Client::open(proxy.url(), {.node_lease = NodeLease::never});
    ASSERT_TRUE(other);
    auto waiting = other->queue("q").wait(id, kNoBeat);
    std::this_thread::sleep_for(std::chrono::milliseconds(3 * delay));
    settle(id, "completed\0r"sv);
    const auto ended = waiting.get();
    ASSERT_TRUE(ended) << ended.error().message();
    EXPECT_EQ(ended->how, EndedAs::completed) << delay;
  }
}

TEST_F(QueueWaitServerTest, TwoThousandWaitersShareOneSubscription) {
  std::vector<NewJob> jobs(2000);
  const auto admitted = queue().enqueue_many(jobs).get();
  ASSERT_TRUE(admitted);
  // Through handles of their own: the subscription is the client's.
  std::vector<Reply<Ended>> waits;
  for (const auto& admission : *admitted)
    waits.push_back(client().queue("q").wait(admission->id, {.timeout = 60s, .beat = 1h}));
  until_subscribed();
  until_subscribed("emq:{q}:ended");
  EXPECT_EQ(raw("PUBSUB", "NUMSUB", "emq:{q}:ended")[1].as_integer(), 1);
  until_quiet();
  const std::uint64_t before = client().stats().commands;
  for (const auto& admission : *admitted)
    settle(admission->id, "completed\0yes"sv);
  for (Reply<Ended>& waiting : waits) {
    const auto ended = waiting.get();
    ASSERT_TRUE(ended) << ended.error().message();
    EXPECT_EQ(ended->how, EndedAs::completed);
    EXPECT_EQ(ended->text, "yes");
  }
  // 2,000 transactions, and one look a job at most on top: no polling.
  EXPECT_LE(client().stats().commands - before, 2000U + 2000U + 50U);
}

TEST_F(QueueWaitServerTest, ManyWaitersOfOneJob) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  std::vector<Reply<Ended>> waits;
  for (int i = 0; i < 100; ++i)
    waits.push_back(queue().wait(kJobA, kNoBeat));
  until_subscribed();
  settle(kJobA, "dead\0no luck"sv);
  for (Reply<Ended>& waiting : waits) {
    const auto ended = waiting.get();
    ASSERT_TRUE(ended);
    EXPECT_EQ(ended->how, EndedAs::dead);
    EXPECT_EQ(ended->text, "no luck");
  }
}

TEST_F(QueueWaitServerTest, TheLinkIsCutWhileWaiting) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobB}).get());
  Proxy proxy(server().url(), {.listen = ProxyListen::unix_socket});
  const auto other = Client::open(proxy.url(), {.node_lease = NodeLease::never});
  ASSERT_TRUE(other);
  auto a = other->queue("q").wait(kJobA, kNoBeat);
  auto b = other->queue("q").wait(kJobB, kNoBeat);
  until_subscribed();
  proxy.refuse_new(true);
  EXPECT_GT(proxy.cut(), 0U);
  // Told to nobody.
  settle(kJobA, "completed\0unheard"sv);
  std::this_thread::sleep_for(300ms);
  EXPECT_FALSE(a.ready());
  proxy.heal();
  const auto ended = a.get();
  ASSERT_TRUE(ended) << ended.error().message();
  EXPECT_EQ(ended->text, "unheard");
  // And the subscription is restored.
  until_subscribed("emq:{q}:ended");
  settle(kJobB, "completed\0heard"sv);
  EXPECT_EQ(b.get()->text, "heard");
}

TEST_F(QueueWaitServerTest, TheLinkIsCutAtEveryByteOfTheFirstConversation) {
  for (std::uint64_t bytes = 0; bytes < 260; bytes += 13) {
    const JobId id = client().mint_job().value();
    ASSERT_TRUE(queue().enqueue("p", {.id = id}).get());
    Proxy proxy(server().url(), {.listen = ProxyListen::unix_socket});
    const auto other = Client::open(proxy.url(), {.node_lease = NodeLease::never});
    ASSERT_TRUE(other);
    proxy.cut_next_after(Direction::to_client, bytes);  // the connection for subscriptions
    auto waiting = other->queue("q").wait(id, {.timeout = 30s, .beat = 1h});
    std::this_thread::sleep_for(2ms);
    settle(id, "completed\0r"sv);
    const auto ended = waiting.get();
    ASSERT_TRUE(ended) << bytes << ": " << ended.error().message();
    EXPECT_EQ(ended->how, EndedAs::completed) << bytes;
  }
}

// A subscription that timed out failed all waits, although they go on while the server is away.
TEST_F(QueueWaitServerTest, TheServerIsAwayWhenTheWaitBegins) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  Proxy proxy(server().url(), {.listen = ProxyListen::unix_socket});
  const auto other = Client::open(proxy.url(), {.deadline = 300ms, .node_lease = NodeLease::never});
  ASSERT_TRUE(other);
  proxy.refuse_new(true);
  EXPECT_GT(proxy.cut(), 0U);
  auto waiting = other->queue("q").wait(kJobA, {.timeout = 60s, .beat = 1h});
  std::this_thread::sleep_for(1500ms);
  EXPECT_FALSE(waiting.ready());
  // Whoever begins to wait meanwhile is in the same boat.
  auto later = other->queue("q").wait(kJobA, {.timeout = 60s, .beat = 1h});
  proxy.heal();
  until_subscribed();
  settle(kJobA, "completed\0late"sv);
  for (Reply<Ended>* one : {&waiting, &later}) {
    const auto ended = one->get();
    ASSERT_TRUE(ended) << ended.error().message();
    EXPECT_EQ(ended->how, EndedAs::completed);
    EXPECT_EQ(ended->text, "late");
  }
}

TEST_F(QueueWaitServerTest, RemovedByAnOperatorIsGoneWithinABeat) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  auto waiting = queue().wait(kJobA, {.timeout = 20s, .beat = 100ms});
  until_subscribed();
  ASSERT_TRUE(queue().remove(kJobA).get());
  const auto ended = waiting.get();
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->how, EndedAs::gone);
  EXPECT_EQ(ended->text, "");
}

TEST_F(QueueWaitServerTest, DeadWithItsErrorWhetherKeptOrNot) {
  const Token token = claimed(kJobA);
  auto waiting = queue().wait(kJobA, kNoBeat);
  until_subscribed();
  ASSERT_TRUE(queue().retry(kJobA, token, {.max_attempts = 1, .error = "boom"}).get());
  ASSERT_TRUE(queue().publish("failed", kJobA).get());
  const auto ended = waiting.get();
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->how, EndedAs::dead);
  EXPECT_EQ(ended->text, "boom");
  EXPECT_EQ(queue().wait(kJobA, kNoBeat).get()->how, EndedAs::dead);
  // Brought back, it has not ended, even with a result of its former life at hand.
  raw("SET", "emq:{q}:result:" + std::string(kJobA.text()), "dead\0boom"sv, "PX", "60000");
  ASSERT_TRUE(queue().reprocess(kJobA).get());
  EXPECT_EQ(queue().wait(kJobA, {.timeout = 100ms}).get()->how, EndedAs::timeout);
}

TEST_F(QueueWaitServerTest, AFailureThatIsRetriedIsNoEnd) {
  const Token token = claimed(kJobA);
  auto waiting = queue().wait(kJobA, kNoBeat);
  until_subscribed();
  ASSERT_TRUE(queue().retry(kJobA, token, {.delay = 1h, .error = "once more"}).get());
  ASSERT_TRUE(queue().publish("failed", kJobA).get());
  std::this_thread::sleep_for(100ms);
  EXPECT_FALSE(waiting.ready());
  waiting.cancel();
  EXPECT_TRUE(waiting.get().error().is(Errc::cancelled));
}

TEST_F(QueueWaitServerTest, SettledByAPeerWithoutKeepIsGone) {
  const Token token = claimed(kJobA);
  auto waiting = queue().wait(kJobA, kNoBeat);
  until_subscribed();
  ASSERT_TRUE(queue().complete(kJobA, token, {.result = "nobody keeps this"}).get());
  raw("PUBLISH", "emq:{q}:events",
      R"({"worker":"peer","job":")" + std::string(kJobA.text()) + R"(","event":"completed"})");
  const auto ended = waiting.get();
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->how, EndedAs::gone);
}

TEST_F(QueueWaitServerTest, TimeoutIsAnAnswerAndComesInTime) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  const auto begin = std::chrono::steady_clock::now();
  auto late = queue().wait(kJobA, {.timeout = 1min});
  const auto ended = queue().wait(kJobA, {.timeout = 150ms}).get();
  const auto took = std::chrono::steady_clock::now() - begin;
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->how, EndedAs::timeout);
  EXPECT_EQ(ended->id, kJobA);
  EXPECT_GE(took, 150ms);
  EXPECT_LT(took, bound(1500ms));
  EXPECT_FALSE(late.ready());
  late.cancel();
}

TEST_F(QueueWaitServerTest, WhileNothingEndsNothingIsAsked) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  auto waiting = queue().wait(kJobA, kNoBeat);
  until_subscribed();
  until_quiet();
  const std::uint64_t before = client().stats().commands;
  std::this_thread::sleep_for(700ms);
  EXPECT_EQ(client().stats().commands, before);
  // What a running job says of itself is no reason to ask either.
  ASSERT_TRUE(queue().publish("progress", kJobA).get());
  ASSERT_TRUE(queue().publish("completed", kJobB).get());
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(client().stats().commands, before + 2);
  waiting.cancel();
}

TEST_F(QueueWaitServerTest, EnqueueAndWait) {
  std::jthread worker([&] {
    for (;;) {
      const auto job = queue().claim().get();
      if (job && *job) {
        EXPECT_EQ(field((*job)->id, "keep"), "60000");
        raw("ZREM", "emq:{q}:active", (*job)->id.text());
        return settle((*job)->id, "completed\0done"sv);
      }
      std::this_thread::sleep_for(5ms);
    }
  });
  const auto ended = queue().enqueue_and_wait("p", {}, kNoBeat).get();
  ASSERT_TRUE(ended) << ended.error().message();
  EXPECT_EQ(ended->how, EndedAs::completed);
  EXPECT_EQ(ended->text, "done");
  worker.join();
  const auto late = queue().enqueue_and_wait("p", {.id = kJobB, .run = {.keep = 5s}}, {.timeout = 50ms}).get();
  EXPECT_EQ(late->how, EndedAs::timeout);
  EXPECT_EQ(field(kJobB, "keep"), "5000");
  const auto refused = queue().enqueue_and_wait("p", {.id = JobId{"ORD0NgWEfAE00A"}}).get();
  ASSERT_FALSE(refused);
}

/// An executor that keeps what it is given while it is told to.
class HeldExecutor {
 public:
  [[nodiscard]] Post post() {
    return [this](Continuation continuation) {
      const std::lock_guard lock(mutex_);
      given_.push_back(continuation);
      changed_.notify_all();
    };
  }
  void hold(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  /// Waits until it keeps something.
  [[nodiscard]] bool keeps() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 10s, [&] { return held_ && !given_.empty(); });
  }

 private:
  void run(const std::stop_token& over) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, over, [&] { return !held_ && !given_.empty(); })) {
      for (const Continuation& continuation : std::exchange(given_, {})) {
        lock.unlock();
        continuation();
        lock.lock();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool held_ = false;                // guarded by mutex_
  std::vector<Continuation> given_;  // guarded by mutex_
  std::jthread thread_{[this](const std::stop_token& over) { run(over); }};
};

/// Two waits for one id: a look says that there is no such job, the job is admitted, and then somebody else waits for it. The answer
/// that was on its way since before told the second wait too that the job was gone.
TEST_F(QueueWaitServerTest, ALookThatIsOlderThanAWaitDoesNotEndIt) {
  for (const std::chrono::milliseconds early_limit : {20'000ms, 100ms}) {
    HeldExecutor executor;
    auto far = Client::open(server().url(), {.executor = executor.post()});
    ASSERT_TRUE(far) << far.error().message();
    const Queue queue_of_far = far->queue("q");
    const JobId id = client().mint_job().value();
    // The subscriptions are there, so a wait looks at once.
    ASSERT_TRUE(queue_of_far.enqueue("p", {.id = kJobB}).get());
    EXPECT_EQ(queue_of_far.wait(kJobB, {.timeout = 500ms, .beat = 1h}).get()->how, EndedAs::timeout);

    executor.hold(true);
    auto early = queue_of_far.wait(id, {.timeout = early_limit, .beat = 1h});
    ASSERT_TRUE(executor.keeps());
    if (early_limit < 1s) {
      EXPECT_EQ(early.get()->how, EndedAs::timeout);  // nobody waits any more when the answer is heard
    }
    ASSERT_TRUE(queue_of_far.enqueue("p", {.id = id}).get());
    auto late = queue_of_far.wait(id, kNoBeat);
    executor.hold(false);
    if (early_limit > 1s) {
      EXPECT_EQ(early.get()->how, EndedAs::gone);
    }
    EXPECT_FALSE(late.get_for(200ms));
    settle(id, "completed\0yes"sv);
    const auto ended = late.get();
    ASSERT_TRUE(ended) << ended.error().message();
    EXPECT_EQ(ended->how, EndedAs::completed);
    EXPECT_EQ(ended->text, "yes");
    raw("DEL", "emq:{q}:job:" + std::string(kJobB.text()));
    raw("ZREM", "emq:{q}:pending", kJobB.text());
  }
}

TEST_F(QueueWaitServerTest, BadInputIsNamed) {
  const auto refused = [](Reply<Ended> reply, std::string_view why) {
    const auto ended = reply.get();
    ASSERT_FALSE(ended);
    EXPECT_THAT(ended.error().text, HasSubstr(why));
  };
  refused(queue().wait(kJobA, {.timeout = 0ms}), "timeout must be 1ms");
  refused(queue().wait(kJobA, {.beat = 9ms}), "beat must be 10ms or more, got 9ms");
  refused(queue().wait(JobId{"ORD0NgWEfAE00A"}), "got ORD0NgWEfAE00A");
  refused(queue().enqueue_and_wait("p", {.run = {.keep = -1ms}}), "got -1ms");
  refused(queue().enqueue_and_wait("p", {}, {.timeout = -1ms}), "got -1ms");
  raw("SET", "emq:{q}:result:" + std::string(kJobA.text()), "neither");
  EXPECT_TRUE(queue().result(kJobA).get().error().is(Errc::protocol_error));
}

TEST_F(QueueWaitServerTest, AClientThatClosesEndsItsWaits) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  auto other = Client::open(server().url());
  ASSERT_TRUE(other);
  auto waiting = other->queue("q").wait(kJobA, kNoBeat);
  auto begun_and_closed = other->queue("r").wait(kJobA, kNoBeat);
  until_subscribed();
  other->close();
  EXPECT_TRUE(waiting.get().error().is(Errc::client_closed));
  EXPECT_TRUE(other->queue("q").wait(kJobA).get().error().is(Errc::client_closed));
  (void)begun_and_closed.get();  // ended, one way or the other
}

}  // namespace
}  // namespace echomq::test
