// `EventListener` and `EventPublisher`: who hears what, in which order, what is missing and that it is told, and that
// nothing is told to somebody who has gone.
#include "echomq/events.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <map>
#include <mutex>
#include <set>

#include "echomq/testing/private_cluster.hpp"
#include "events/publisher.hpp"
#include "server/queue_fixture.hpp"
#include "support/bounds.hpp"
#include "support/proxy.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// What handlers were told.
class Heard {
 public:
  void add(const JobEvent& event) {
    std::string line = std::string(event.queue.text()) + " " + std::string(event.name);
    for (const auto& [name, value] : event.extra)
      line += " " + std::string(name) + "=" + std::string(value);
    put(lines_, line);
  }
  void add(const EventGap& gap) {
    const std::lock_guard lock(mutex_);
    gaps_.push_back({gap.cause, gap.from, gap.until, gap.dropped, std::string(gap.queue.text())});
    changed_.notify_all();
  }
  struct Gap {
    EventGap::Cause cause;
    UnixMillis from, until;
    std::uint64_t dropped;
    std::string queue;
  };
  [[nodiscard]] EventListenerOptions options() {
    EventListenerOptions out;
    out.on_event = [this](const JobEvent& event) { add(event); };
    out.on_gap = [this](const EventGap& gap) { add(gap); };
    return out;
  }
  [[nodiscard]] bool wait(std::size_t lines, std::size_t gaps = 0, std::chrono::milliseconds limit = 10s) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return lines_.size() >= lines && gaps_.size() >= gaps; });
  }
  [[nodiscard]] std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  [[nodiscard]] std::vector<Gap> gaps() const {
    const std::lock_guard lock(mutex_);
    return gaps_;
  }

 private:
  void put(std::vector<std::string>& into, std::string line) {
    const std::lock_guard lock(mutex_);
    into.push_back(std::move(line));
    changed_.notify_all();
  }
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
  std::vector<Gap> gaps_;
};

[[nodiscard]] UnixMillis now() {
  return std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
}

class EventsServer : public QueueServerTest {
 protected:
  [[nodiscard]] static EventListener listen(const Client& over, EventListenerOptions options,
                                            std::vector<QueueName> queues = {"q"}) {
    auto opened = EventListener::open(over, queues, std::move(options));
    if (!opened)
      throw std::runtime_error(opened.error().message());
    return *std::move(opened);
  }
  void publish(std::string_view event, JobId id = kJobA, const std::vector<events::Extra>& extra = {}) {
    const auto sent = queue().publish(event, id, extra).get();
    ASSERT_TRUE(sent) << sent.error().message();
  }
  template <typename Condition>
  [[nodiscard]] static bool eventually(Condition condition, std::chrono::milliseconds limit = 10s) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until)
        return false;
      std::this_thread::sleep_for(2ms);
    }
    return true;
  }
};

TEST_F(EventsServer, HearsWhatIsPublishedAndWhatScriptsSay) {
  Heard heard;
  const EventListener listener = listen(client(), heard.options());
  ASSERT_TRUE(queue().enqueue("x", {.id = kJobA}).get());
  ASSERT_TRUE(queue().update_progress(kJobA, "1/2 \"half\"\n").get());
  publish("completed");
  publish("failed", kJobA, {{"error", "line\nbreak"}, {"retry", "1"}});
  publish("scheduled");
  ASSERT_TRUE(queue().cancel(kJobA).get());
  ASSERT_TRUE(heard.wait(5));
  EXPECT_THAT(heard.lines(), ElementsAre("q progress progress=1/2 \"half\"\n", "q completed",
                                         "q failed error=line\nbreak retry=1", "q scheduled", "q cancelled"));
  EXPECT_TRUE(eventually([&] { return listener.stats().received == 5; }));
  EXPECT_EQ(listener.stats().unknown_kinds, 1U);
  EXPECT_TRUE(listener.live());
  // A job without a row announces nothing.
  EXPECT_FALSE(queue().update_progress(kJobB, "1").get());
  EXPECT_FALSE(heard.wait(6, 0, 50ms));
}

TEST_F(EventsServer, EveryListenerHearsAndNoneThatHasStopped) {
  Heard one;
  Heard two;
  Heard elsewhere;
  Client other = Client::open(server().url()).value();
  const EventListener first = listen(client(), one.options());
  EventListener second = listen(client(), two.options());
  const EventListener third = listen(other, elsewhere.options());
  publish("completed");
  EXPECT_TRUE(one.wait(1) && two.wait(1) && elsewhere.wait(1));
  second.stop();
  EXPECT_FALSE(second.live());
  publish("failed");
  EXPECT_TRUE(one.wait(2) && elsewhere.wait(2));
  EXPECT_THAT(two.lines(), ElementsAre("q completed"));
  // Listening again after the last one of a client has stopped.
  {
    const EventListener brief = listen(other, two.options(), {"w"});
  }
  const EventListener again = listen(other, two.options(), {"w"});
  ASSERT_TRUE(client().queue("w").publish("dead", kJobA).get());
  EXPECT_TRUE(two.wait(2));
}

TEST_F(EventsServer, FiltersByKindJobAndQueue) {
  Heard of_kind;
  Heard of_job;
  Heard of_both;
  Heard of_queue;
  const EventListener listener = listen(client(), {}, {"q", "w"});
  const auto add = [](Heard& to) { return [&to](const JobEvent& event) { to.add(event); }; };
  const auto kind = listener.on(EventKind::failed, add(of_kind));
  auto job = std::optional(listener.on(kJobB, add(of_job)));
  const auto both = listener.on(
      {.kinds = {EventKind::dead, EventKind::failed}, .jobs = {kJobA, kJobB, kJobA}, .queue = {}}, add(of_both));
  const auto only = listener.on({.kinds = {}, .jobs = {}, .queue = QueueName("w")}, add(of_queue));
  publish("completed", kJobA);
  publish("failed", kJobA);
  publish("failed", kJobB);
  publish("dead", kJobB);
  publish("failed", kJobC);
  ASSERT_TRUE(client().queue("w").publish("dead", kJobB).get());
  ASSERT_TRUE(of_queue.wait(1));
  EXPECT_TRUE(of_job.wait(3) && of_both.wait(4));
  EXPECT_THAT(of_kind.lines(), ElementsAre("q failed", "q failed", "q failed"));
  EXPECT_THAT(of_both.lines(), SizeIs(4));
  EXPECT_THAT(of_queue.lines(), ElementsAre("w dead"));
  EXPECT_THAT(of_job.lines(), SizeIs(3));
  job.reset();
  publish("completed", kJobB);
  publish("failed", kJobB);
  ASSERT_TRUE(of_kind.wait(4));
  EXPECT_THAT(of_job.lines(), SizeIs(3));
}

TEST_F(EventsServer, WhatIsNoEventIsCountedAndNothingIsThrown) {
  Heard heard;
  const EventListener listener = listen(client(), heard.options());
  const auto angry = listener.on(EventKind::completed, [](const JobEvent&) { throw std::runtime_error("angry"); });
  for (const std::string& garbage :
       {std::string(), std::string("ping"), std::string("{\"event\":\"failed\"}"), std::string("\0\xff", 2),
        std::string("{\"event\":\"failed\",\"job\":\"JOB0NgWEfAE00A\",\"error\":\"a\nb\"}"), std::string(100000, '[')})
    raw("PUBLISH", "emq:{q}:events", garbage);
  publish("completed");
  ASSERT_TRUE(heard.wait(1));
  EXPECT_TRUE(eventually([&] { return listener.stats().handler_errors == 1; }));
  EXPECT_EQ(listener.stats().malformed, 6U);
  EXPECT_EQ(listener.stats().received, 7U);
}

TEST_F(EventsServer, ACutConnectionIsAGapAndListeningGoesOn) {
  Proxy proxy(server().url());
  Client behind = Client::open(proxy.url()).value();
  Heard heard;
  const EventListener listener = listen(behind, heard.options(), {"q", "w"});
  publish("completed");
  ASSERT_TRUE(heard.wait(1));
  proxy.refuse_new(true);
  ASSERT_GE(proxy.cut(), 2U);
  const UnixMillis cut = now();
  ASSERT_TRUE(eventually([&] { return !listener.live(); }));
  publish("dead");  // nobody hears this
  std::this_thread::sleep_for(20ms);
  const UnixMillis meanwhile = now();
  proxy.refuse_new(false);
  ASSERT_TRUE(heard.wait(1, 2));
  ASSERT_TRUE(eventually([&] { return listener.live(); }));
  std::set<std::string> queues;
  for (const Heard::Gap& gap : heard.gaps()) {
    queues.insert(gap.queue);
    EXPECT_EQ(gap.cause, EventGap::Cause::connection);
    EXPECT_EQ(gap.dropped, 0U);
    EXPECT_LE(gap.from, cut);
    EXPECT_GE(gap.until, meanwhile);
    EXPECT_LE(gap.until, now());
  }
  EXPECT_EQ(queues, (std::set<std::string>{"q", "w"}));
  EXPECT_TRUE(eventually([&] { return listener.stats().gaps == 2; }));
  publish("failed");
  ASSERT_TRUE(heard.wait(2));
  EXPECT_THAT(heard.lines(), ElementsAre("q completed", "q failed"));
  // And a second time, with the first behind it.
  proxy.cut();
  ASSERT_TRUE(heard.wait(2, 4));
  EXPECT_GE(heard.gaps().back().from, heard.gaps().front().until);
  ASSERT_TRUE(eventually([&] { return listener.live(); }));
  publish("delayed");
  ASSERT_TRUE(heard.wait(3));
}

TEST_F(EventsServer, SlowHandlersLoseWhatIsTooMuchAndAreToldWhere) {
  Heard heard;
  std::mutex gate;
  EventListenerOptions options = heard.options();
  options.most_waiting = 10;
  std::atomic<bool> inside{false};
  options.on_event = [&](const JobEvent& event) {
    inside = true;
    const std::lock_guard wait(gate);
    heard.add(event);
  };
  const EventListener listener = listen(client(), std::move(options));
  {
    const std::lock_guard closed(gate);
    publish("completed");
    ASSERT_TRUE(eventually([&] { return inside.load(); }));
    for (int i = 0; i < 30; ++i)
      publish("failed");
    ASSERT_TRUE(eventually([&] { return listener.stats().received == 31; }));
  }
  ASSERT_TRUE(heard.wait(11, 1));
  publish("dead");
  ASSERT_TRUE(heard.wait(12, 1));
  EXPECT_THAT(heard.lines(), SizeIs(12));
  ASSERT_THAT(heard.gaps(), SizeIs(1));
  EXPECT_EQ(heard.gaps()[0].cause, EventGap::Cause::overflow);
  EXPECT_EQ(heard.gaps()[0].dropped, 20U);
  EXPECT_LE(heard.gaps()[0].from, heard.gaps()[0].until);
  EXPECT_EQ(listener.stats().dropped, 20U);
}

TEST_F(EventsServer, AHundredQueuesShareOneConnection) {
  std::vector<QueueName> names;
  for (int i = 0; i < 100; ++i)
    names.push_back(QueueName::parse("q" + std::to_string(i)).value());
  Heard heard;
  const std::uint64_t before = client().stats().connections;
  const EventListener listener = listen(client(), heard.options(), names);
  EXPECT_EQ(client().stats().connections, before + 1);
  for (const QueueName& name : names)
    ASSERT_TRUE(client().queue(name).publish("completed", kJobA).get());
  ASSERT_TRUE(heard.wait(100));
  const auto lines = heard.lines();
  EXPECT_EQ(std::set<std::string>(lines.begin(), lines.end()).size(), 100U);
}

TEST_F(EventsServer, NothingIsToldToWhoHasGone) {
  std::atomic<bool> stop{false};
  std::thread publisher([&] {
    Client own = Client::open(server().url(), {.node_lease = NodeLease::never}).value();
    while (!stop)
      (void)own.queue("q").publish("completed", kJobA).get();
  });
  for (int round = 0; round < 50; ++round) {
    auto alive = std::make_shared<std::atomic<bool>>(true);
    std::atomic<int> told{0};
    {
      EventListenerOptions options;
      options.on_event = [alive, &told](const JobEvent&) {
        EXPECT_TRUE(*alive);
        ++told;
      };
      const EventListener listener = listen(client(), std::move(options));
      auto watch = std::optional(listener.on(kJobA, [&](const JobEvent&) { ++told; }));
      (void)eventually([&] { return told > 2; }, 1s);
      watch.reset();
    }
    *alive = false;
  }
  stop = true;
  publisher.join();
}

// Whoever ended a watch waited for a whole turn of the executor, up to 256 handlers.
TEST_F(EventsServer, TheEndOfAWatchWaitsForOneHandlerOnly) {
  constexpr int kMessages = 100;
  const EventListener listener = listen(client(), {});
  std::atomic<bool> go{false};
  std::atomic<int> handled{0};
  const auto slow = listener.on(kJobA, [&](const JobEvent&) {
    for (int i = 0; i < 10'000 && !go; ++i)
      std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(10ms);
    ++handled;
  });
  auto watch = std::optional(listener.on(kJobB, [](const JobEvent&) {}));
  for (int i = 0; i < kMessages; ++i)
    publish("completed");
  ASSERT_TRUE(eventually([&] { return listener.stats().waiting >= kMessages - 1; }));
  go = true;
  ASSERT_TRUE(eventually([&] { return handled >= 2; }));
  const int before = handled;
  watch.reset();
  // One that runs, and few that were begun before we stood in line.
  EXPECT_LT(handled - before, kMessages / 2);
  EXPECT_TRUE(eventually([&] { return handled == kMessages; }, 30s)) << "the others go on";
}

TEST_F(EventsServer, AHandlerMayStopItsListenerAndItself) {
  Heard heard;
  std::optional<EventListener> listener;
  std::optional<EventListener::Watch> watch;
  listener.emplace(listen(client(), heard.options()));
  std::atomic<int> first{0};
  watch.emplace(listener->on(EventKind::failed, [&](const JobEvent&) {
    ++first;
    watch.reset();
  }));
  const auto last = listener->on(EventKind::dead, [&](const JobEvent&) { listener->stop(); });
  publish("failed");
  publish("failed");
  publish("dead");
  publish("completed");
  ASSERT_TRUE(heard.wait(3));
  ASSERT_TRUE(eventually([&] { return !listener->live(); }));
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(first, 1);
  EXPECT_THAT(heard.lines(), SizeIs(3));
}

TEST_F(EventsServer, IsNotOpenedWhereNobodyAnswers) {
  EXPECT_TRUE(EventListener::open(client(), std::span<const QueueName>()).error().is(Errc::invalid_argument));
  raw("ACL", "SETUSER", "mute", "on", ">p", "~*", "+@all", "-subscribe", "&*");
  std::string url = server().url();
  ClientOptions options;
  options.user = "mute";
  options.password = "p";
  options.node_lease = NodeLease::never;
  Client mute = Client::open(url, options).value();
  const auto refused = EventListener::open(mute, QueueName("q"));
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(Errc::no_permission)) << refused.error().message();
  client().close();
  EXPECT_TRUE(EventListener::open(client(), QueueName("q")).error().is(Errc::client_closed));
}

TEST(EventsCluster, AnyNodeHearsAllQueues) {
  auto cluster = testing::PrivateCluster::start({});
  ASSERT_TRUE(cluster) << cluster.error().message();
  Client own = Client::open(cluster->url()).value();
  Heard heard;
  std::vector<QueueName> names;
  for (int i = 0; i < 20; ++i)
    names.push_back(QueueName::parse("q" + std::to_string(i)).value());
  auto listener = EventListener::open(own, names, heard.options());
  ASSERT_TRUE(listener) << listener.error().message();
  for (const QueueName& name : names) {
    // By the script, on the node of the queue, and by the publisher.
    const Queue queue = own.queue(name);
    ASSERT_TRUE(queue.enqueue("x", {.id = kJobA}).get());
    ASSERT_EQ(queue.cancel(kJobA).get(), CancelVerdict::cancelled);
    events::EventPublisher publisher(own.core(), name);
    publisher.add(EventKind::completed, kJobB);
  }
  ASSERT_TRUE(heard.wait(40));
  const auto lines = heard.lines();
  EXPECT_EQ(std::set<std::string>(lines.begin(), lines.end()).size(), 40U);
  EXPECT_EQ(listener->stats().gaps, 0U);
}

// The publishing side.

TEST_F(EventsServer, PublishesInOrderManyInOneWrite) {
  Heard heard;
  const EventListener listener = listen(client(), heard.options());
  Client own = Client::open(server().url(), {.node_lease = NodeLease::never}).value();
  events::EventPublisher publisher(own.core(), "q");
  const std::uint64_t writes = own.stats().writes;
  publisher.add(EventKind::completed, kJobA);
  publisher.add_failed(kJobB, "no\nluck", true);
  publisher.add_failed(kJobB, "", false);
  const events::Extra extra[] = {{"in_ms", "5"}};
  publisher.add(EventKind::delayed, kJobC, extra);
  for (int i = 0; i < 200; ++i)
    publisher.add(EventKind::stalled, kJobA);
  EXPECT_FALSE(heard.wait(1, 0, 20ms));
  publisher.flush();
  ASSERT_TRUE(heard.wait(204));
  EXPECT_LE(own.stats().writes - writes, 3U);
  EXPECT_EQ(heard.lines()[0], "q completed");
  EXPECT_EQ(heard.lines()[1], "q failed error=no\nluck retry=1");
  EXPECT_EQ(heard.lines()[2], "q failed");
  EXPECT_EQ(heard.lines()[3], "q delayed in_ms=5");
  EXPECT_TRUE(eventually([&] { return publisher.stats().published == 204; }));
  EXPECT_EQ(publisher.stats().failed, 0U);
  EXPECT_EQ(listener.stats().malformed, 0U);
}

TEST_F(EventsServer, SendsByItselfOnceThereAreMany) {
  Heard heard;
  const EventListener listener = listen(client(), heard.options());
  events::EventPublisher publisher(client().core(), "q");
  for (int i = 0; i < 600; ++i)
    publisher.add(EventKind::completed, kJobA);
  EXPECT_TRUE(heard.wait(512));
  publisher.flush();
  EXPECT_TRUE(heard.wait(600));
}

TEST_F(EventsServer, ASampleIsOfJobsAndTheSameEverywhere) {
  events::EventPublisher off(client().core(), "q", {.mode = events::Publishing::off});
  events::EventPublisher half(client().core(), "q", {.mode = events::Publishing::sampled, .rate = 0.5});
  events::EventPublisher again(client().core(), "q", {.mode = events::Publishing::sampled, .rate = 0.5});
  events::EventPublisher none(client().core(), "q", {.mode = events::Publishing::sampled, .rate = 0});
  events::EventPublisher all(client().core(), "q", {.mode = events::Publishing::sampled, .rate = 1});
  std::uint64_t in = 0;
  for (int i = 0; i < 2000; ++i) {
    const JobId job = client().mint_job().value();
    EXPECT_EQ(half.wants(job), again.wants(job));
    EXPECT_FALSE(off.wants(job) || none.wants(job));
    EXPECT_TRUE(all.wants(job));
    in += half.wants(job) ? 1 : 0;
    half.add(EventKind::completed, job);
    off.add(EventKind::completed, job);
  }
  EXPECT_GT(in, 850U);
  EXPECT_LT(in, 1150U);
  half.flush();
  off.flush();
  EXPECT_TRUE(eventually([&] { return half.stats().published + half.stats().unheard == in; }));
  EXPECT_EQ(half.stats().sampled_out, 2000 - in);
  EXPECT_EQ(off.stats().published + off.stats().sampled_out + off.stats().failed, 0U);
}

TEST_F(EventsServer, WhatCannotBeSentIsCountedAndHoldsNobodyUp) {
  Proxy proxy(server().url());
  ClientOptions options;
  options.node_lease = NodeLease::never;
  options.deadline = 3s;
  options.max_in_flight = 4;
  Client behind = Client::open(proxy.url(), options).value();
  events::EventPublisher publisher(behind.core(), "q", {.most_pending = 100});
  proxy.hold();
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < 150; ++i) {
    publisher.add(EventKind::completed, kJobA);
    publisher.flush();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, bound(200ms));
  EXPECT_EQ(publisher.stats().dropped, 50U);
  EXPECT_TRUE(eventually([&] { return publisher.stats().failed == 100; }));
  proxy.heal();
  EXPECT_TRUE(eventually([&] {
    publisher.add(EventKind::completed, kJobA);
    publisher.flush();
    return publisher.stats().published > 0;
  }));
  // Refused by the server: counted as well.
  raw("ACL", "SETUSER", "default", "-publish");
  const std::uint64_t failed = publisher.stats().failed;
  publisher.add(EventKind::completed, kJobA);
  publisher.add(EventKind::completed, kJobA);
  publisher.flush();
  EXPECT_TRUE(eventually([&] { return publisher.stats().failed >= failed + 2; }));
}

/// Publishing of many events where nobody, or somebody, listens.
class EventsUnheard : public EventsServer {
 protected:
  static constexpr int kMany = 100;
  void add_many(events::EventPublisher& publisher) {
    for (int i = 0; i < kMany; ++i)
      publisher.add(EventKind::completed, kJobA);
    publisher.flush();
  }
  /// How often the server has been told to publish.
  [[nodiscard]] std::int64_t published() {
    const Value reply = raw("INFO", "commandstats");
    const std::string_view text = reply.as_text().value_or("");
    const std::string_view name = "cmdstat_publish:calls=";
    const auto at = text.find(name);
    return at == std::string_view::npos ? 0 : std::stoll(std::string(text.substr(at + name.size(), 12)));
  }
};

TEST_F(EventsUnheard, ManyEventsAreNotSentWhereNobodyListens) {
  events::EventPublisher publisher(client().core(), "q");
  for (int i = 0; i < 5; ++i) {
    add_many(publisher);
    ASSERT_TRUE(eventually([&] { return publisher.stats().unheard == static_cast<std::uint64_t>((i + 1) * kMany); }));
  }
  EXPECT_EQ(published(), 0);
  // A few are sent for what the question would cost.
  publisher.add(EventKind::completed, kJobA);
  publisher.flush();
  EXPECT_TRUE(eventually([&] { return publisher.stats().published == 1; }));
  EXPECT_EQ(published(), 1);
}

TEST_F(EventsUnheard, WhoeverSubscribedBeforeHearsAll) {
  events::EventPublisher publisher(client().core(), "q");
  add_many(publisher);
  ASSERT_TRUE(eventually([&] { return publisher.stats().unheard == kMany; }));
  Heard heard;
  std::optional<EventListener> listener = listen(client(), heard.options());
  for (std::size_t i = 1; i <= 3; ++i) {
    add_many(publisher);
    ASSERT_TRUE(heard.wait(i * kMany));
  }
  EXPECT_EQ(publisher.stats().unheard, std::uint64_t{kMany});
  listener.reset();
  // It learns from what reached nobody.
  EXPECT_TRUE(eventually([&] { return add_many(publisher), publisher.stats().unheard > kMany; }));
}

TEST_F(EventsUnheard, WhoListensToAPatternHears) {
  Client other = Client::open(server().url(), {.node_lease = NodeLease::never}).value();
  std::atomic<int> heard{0};
  const auto subscription =
      other.core()->listen("emq:{other}:events", {.on_message = [&](auto, auto) { ++heard; }}).get();
  ASSERT_TRUE(subscription);
  events::EventPublisher publisher(client().core(), "q");
  add_many(publisher);
  ASSERT_TRUE(eventually([&] { return publisher.stats().unheard == kMany; })) << "another channel's listener counts";
  // Some connection that has a pattern, as `valkey-cli psubscribe` would.
  raw("CLIENT", "LIST");
  const std::string path = server().folder() + "/heard";
  const std::string command = "exec valkey-cli -s " + server().socket_path() + " psubscribe 'emq:*' > " + path;
  const pid_t cli = ::fork();
  if (cli == 0) {
    ::execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ASSERT_TRUE(eventually([&] { return raw("PUBSUB", "NUMPAT").as_integer() == 1; }));
  add_many(publisher);
  EXPECT_TRUE(eventually([&] { return publisher.stats().published == kMany; }));
  ::kill(cli, SIGKILL);
  ::waitpid(cli, nullptr, 0);
}

/// What is added while the question is on its way is not what it was about.
TEST_F(EventsUnheard, WhoSubscribesWhileItAsksHearsWhatCameAfter) {
  Proxy proxy(server().url());
  ClientOptions options;
  options.node_lease = NodeLease::never;
  const Client behind = Client::open(proxy.url(), options).value();
  events::EventPublisher publisher(behind.core(), "q");
  proxy.hold(Direction::to_client);
  add_many(publisher);
  ASSERT_TRUE(eventually([&] {
    return raw("INFO", "commandstats").as_text().value_or("").find("cmdstat_pubsub|numpat") != std::string_view::npos;
  }));
  Heard heard;
  const EventListener listener = listen(client(), heard.options());
  add_many(publisher);
  proxy.release();
  EXPECT_TRUE(heard.wait(kMany));
  EXPECT_TRUE(eventually([&] { return publisher.stats().published == kMany; }));
  EXPECT_EQ(publisher.stats().unheard, std::uint64_t{kMany});
}

TEST_F(EventsUnheard, AllAreSentWhereAReplicaMayHaveListeners) {
  auto master = testing::PrivateServer::start({.listen = testing::Listen::both});
  ASSERT_TRUE(master) << master.error().message();
  const Client over = Client::open(master->url(), {.node_lease = NodeLease::never}).value();
  raw("REPLICAOF", "127.0.0.1", std::to_string(master->port()));
  const auto replicas = [&] {
    const auto role = over.command("ROLE").get();
    return role && role->size() == 3 && (*role)[2].size() == 1;
  };
  ASSERT_TRUE(eventually(replicas, 30s));
  events::EventPublisher publisher(over.core(), "q");
  add_many(publisher);
  EXPECT_TRUE(eventually([&] { return publisher.stats().published == kMany; }));
  EXPECT_EQ(publisher.stats().unheard, 0U);
  // It may come back for what it has missed.
  raw("REPLICAOF", "NO", "ONE");
  ASSERT_TRUE(eventually([&] { return !replicas(); }));
  events::EventPublisher later(over.core(), "q");
  add_many(later);
  EXPECT_TRUE(eventually([&] { return later.stats().published == kMany; }));
}

TEST_F(EventsUnheard, TheLastEventsOfAStopAreSentThoughItAsks) {
  Heard heard;
  const EventListener listener = listen(client(), heard.options());
  for (std::size_t round = 1; round <= 20; ++round) {
    Client own = Client::open(server().url(), {.node_lease = NodeLease::never}).value();
    events::EventPublisher publisher(own.core(), "q");
    for (int i = 0; i < kMany; ++i)
      publisher.add(EventKind::completed, kJobA);
    publisher.flush();  // it asks
    publisher.close();
    (void)own.command("PING").get();
    EXPECT_TRUE(heard.wait(round * kMany)) << round;
    EXPECT_EQ(publisher.stats().unheard, 0U);
  }
  std::this_thread::sleep_for(50ms);
  EXPECT_THAT(heard.lines(), SizeIs(20 * kMany));
}

TEST_F(EventsUnheard, WhoMayNotAskSends) {
  raw("ACL", "SETUSER", "mute", "on", ">secret", "~*", "&*", "+@all", "-info");
  const std::string url = "unix://mute:secret@" + server().socket_path();
  const auto muted = Client::open(url, {.node_lease = NodeLease::never});
  ASSERT_TRUE(muted) << muted.error().message();
  events::EventPublisher publisher(muted->core(), "q");
  add_many(publisher);
  EXPECT_TRUE(eventually([&] { return publisher.stats().published == kMany; }));
  add_many(publisher);
  EXPECT_TRUE(eventually([&] { return publisher.stats().published == 2 * kMany; }));
}

TEST_F(EventsServer, LongTextsAreCutBetweenCharacters) {
  Heard heard;
  const EventListener listener = listen(client(), heard.options());
  events::EventPublisher publisher(client().core(), "q");
  std::string text(1023, 'a');
  text += "\xc3\xa9 and more";
  publisher.add_failed(kJobA, text, false);
  publisher.flush();
  ASSERT_TRUE(heard.wait(1));
  EXPECT_EQ(heard.lines()[0], "q failed error=" + std::string(1023, 'a'));
}

}  // namespace
}  // namespace echomq::test
