// How a job is run, given at its admission: the row fields, for every way in; and what is refused before and by the server.
#include "echomq/flow.hpp"
#include "echomq/worker.hpp"
#include "server/queue_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr std::string_view kTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
constexpr RunOptions kAll{.max_attempts = 7,
                          .backoff = "exponential:100:5000:jitter",
                          .timeout = 30s,
                          .expire = 1h,
                          .keep = 10min,
                          .traceparent = kTrace};

class QueueOptionsServerTest : public QueueServerTest {
 protected:
  /// All of a row, as `name=value`, but `expires_at`, which is looked at apart.
  std::vector<std::string> row(JobId id) {
    std::vector<std::string> fields;
    const auto found = queue().job(id).get();
    if (!found || !*found)
      return {"no row"};
    for (const auto& [name, value] : (*found)->fields) {
      if (name != "expires_at")
        fields.push_back(name + "=" + value);
    }
    return fields;
  }
  /// What was asked for is there, and `expires_at` is `expire` from now by the server's clock.
  void expect_all(JobId id, Milliseconds expire = 1h) {
    EXPECT_EQ(field(id, "max_attempts"), "7");
    EXPECT_EQ(field(id, "backoff"), "exponential:100:5000:jitter");
    EXPECT_EQ(field(id, "timeout"), "30000");
    EXPECT_EQ(field(id, "keep"), "600000");
    EXPECT_EQ(field(id, "traceparent"), kTrace);
    EXPECT_EQ(field(id, "expire"), "(no text)");
    const Value time = raw("TIME");
    const std::int64_t now = time[0].as_integer().value_or(0) * 1000 + time[1].as_integer().value_or(0) / 1000;
    const std::int64_t left = std::stoll(field(id, "expires_at")) - now;
    EXPECT_LE(left, expire.count());
    EXPECT_GT(left, expire.count() - 20000);
  }
};

TEST_F(QueueOptionsServerTest, APlainJobHasTheCanonicalRow) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA, .run = {}}).get());
  EXPECT_THAT(row(kJobA), UnorderedElementsAre("state=pending", "attempts=0", "payload=p"));
  const std::vector<NewJob> many = {{"p", kJobB}};
  ASSERT_TRUE(queue().enqueue_many(many).get());
  EXPECT_THAT(row(kJobB), UnorderedElementsAre("state=pending", "attempts=0", "payload=p"));
  const std::vector<MixedJob> mixed = {{.payload = "p", .id = kJobC}};
  ASSERT_TRUE(queue().enqueue_mixed(mixed).get());
  EXPECT_THAT(row(kJobC), UnorderedElementsAre("state=pending", "attempts=0", "payload=p"));
}

TEST_F(QueueOptionsServerTest, EveryTargetCarriesThem) {
  ASSERT_EQ(queue().enqueue("p", {.id = kJobA, .run = kAll}).get()->verdict, Admitted::enqueued);
  expect_all(kJobA);
  EXPECT_THAT(places(kJobA), ElementsAre("pending"));
  EXPECT_EQ(field(kJobA, "state"), "pending");

  ASSERT_TRUE(queue().enqueue("p", {.id = kJobB, .lane = kLaneX, .run = kAll}).get());
  expect_all(kJobB);
  EXPECT_THAT(places(kJobB, kLaneX), ElementsAre("g:PRT0NgWEfAE00X:pending"));
  EXPECT_EQ(text(raw("LINDEX", "emq:{q}:ring", "0")), kLaneX.text());

  ASSERT_TRUE(queue().enqueue_in("p", 10s, {.id = kJobC, .lane = kLaneY, .run = kAll}).get());
  expect_all(kJobC);
  EXPECT_THAT(places(kJobC, kLaneY), ElementsAre("schedule"));
  EXPECT_EQ(field(kJobC, "group"), kLaneY.text());
  EXPECT_EQ(field(kJobC, "state"), "scheduled");

  const JobId at{"JOB0NgWEfAE00D"};
  ASSERT_TRUE(queue().enqueue_at("p", Instant(Milliseconds(12345)), {.id = at, .run = {.max_attempts = 1}}).get());
  EXPECT_EQ(raw("ZSCORE", "emq:{q}:schedule", at.text()).as_double(), 12345.0);
  EXPECT_EQ(field(at, "max_attempts"), "1");
}

TEST_F(QueueOptionsServerTest, ADuplicateChangesNothing) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA, .run = {.max_attempts = 2}}).get());
  const auto again = queue().enqueue("q", {.id = kJobA, .run = {.max_attempts = 5}}).get();
  EXPECT_EQ(again->verdict, Admitted::duplicate);
  EXPECT_EQ(field(kJobA, "max_attempts"), "2");
  EXPECT_EQ(field(kJobA, "payload"), "p");
  const auto minted = queue().enqueue("p", {.run = {.keep = 1s}}).get();
  ASSERT_TRUE(minted);
  EXPECT_EQ(field(minted->id, "keep"), "1000");
}

TEST_F(QueueOptionsServerTest, ABatchMayShareThemAndIsChunked) {
  std::vector<NewJob> jobs(600);
  for (std::size_t i = 0; i < jobs.size(); ++i)
    jobs[i].payload = i % 2 == 0 ? "even" : "odd";
  const auto results = queue().enqueue_many(jobs, {.lane = kLaneX, .run = kAll}).get();
  ASSERT_TRUE(results);
  ASSERT_EQ(results->size(), 600U);
  for (std::size_t i = 0; i < results->size(); ++i) {
    ASSERT_TRUE((*results)[i]);
    EXPECT_EQ((*results)[i]->verdict, Admitted::enqueued);
    EXPECT_EQ(field((*results)[i]->id, "payload"), jobs[i].payload);
  }
  expect_all(results->front()->id);
  expect_all(results->back()->id);
  EXPECT_EQ(queue().lane_depth(kLaneX).get().value(), 600);
  EXPECT_EQ(raw("LLEN", "emq:{q}:ring").as_integer(), 1);
}

TEST_F(QueueOptionsServerTest, UnlikeJobsInOneCallEachWithItsOwnVerdict) {
  ASSERT_TRUE(queue().enqueue("old", {.id = kJobB}).get());
  const JobId scheduled{"JOB0NgWEfAE00D"};
  const JobId in_lane{"JOB0NgWEfAE00E"};
  const JobId later_in_lane{"JOB0NgWEfAE00F"};
  const std::vector<MixedJob> jobs = {
      {.payload = "flat", .id = kJobA, .run = {.max_attempts = 4}},
      {.payload = "taken", .id = kJobB, .run = kAll},
      {.payload = "due", .id = scheduled, .at = Instant(Milliseconds(777)), .run = {.backoff = "fixed:0"}},
      {.payload = "lane x", .id = in_lane, .lane = kLaneX},
      {.payload = "twice", .id = kJobA},
      {.payload = "kind", .id = JobId{"ORD0NgWEfAE00A"}},
      {.payload = "lane y later", .id = later_in_lane, .lane = kLaneY, .in = 1h, .run = {.keep = 5s}},
      {.payload = "lane y", .lane = kLaneY, .run = kAll},
      {.payload = "minted"},
  };
  const auto results = queue().enqueue_mixed(jobs).get();
  ASSERT_TRUE(results) << results.error().message();
  ASSERT_EQ(results->size(), jobs.size());
  EXPECT_EQ((*results)[0]->verdict, Admitted::enqueued);
  EXPECT_EQ((*results)[1]->verdict, Admitted::duplicate);
  EXPECT_EQ((*results)[2]->verdict, Admitted::enqueued);
  EXPECT_EQ((*results)[3]->verdict, Admitted::enqueued);
  EXPECT_EQ((*results)[4]->verdict, Admitted::duplicate);
  EXPECT_TRUE((*results)[5].error().is(Errc::wrong_kind));
  EXPECT_EQ((*results)[6]->verdict, Admitted::enqueued);
  EXPECT_EQ((*results)[7]->verdict, Admitted::enqueued);
  EXPECT_EQ((*results)[8]->verdict, Admitted::enqueued);

  EXPECT_THAT(row(kJobA), UnorderedElementsAre("state=pending", "attempts=0", "payload=flat", "max_attempts=4"));
  EXPECT_THAT(row(kJobB), UnorderedElementsAre("state=pending", "attempts=0", "payload=old"));
  EXPECT_THAT(row(scheduled), UnorderedElementsAre("state=scheduled", "attempts=0", "payload=due", "backoff=fixed:0"));
  EXPECT_EQ(raw("ZSCORE", "emq:{q}:schedule", scheduled.text()).as_double(), 777.0);
  EXPECT_THAT(row(in_lane), UnorderedElementsAre("state=pending", "attempts=0", "payload=lane x",
                                                 "group=" + std::string(kLaneX.text())));
  EXPECT_THAT(places(in_lane, kLaneX), ElementsAre("g:PRT0NgWEfAE00X:pending"));
  EXPECT_THAT(places(later_in_lane, kLaneY), ElementsAre("schedule"));
  EXPECT_EQ(field(later_in_lane, "keep"), "5000");
  expect_all((*results)[7]->id);
  EXPECT_EQ(queue().lane_depth(kLaneY).get().value(), 1);
  EXPECT_EQ(raw("LLEN", "emq:{q}:ring").as_integer(), 2);
  EXPECT_EQ(queue().pending_size().get().value(), 3);
}

TEST_F(QueueOptionsServerTest, AMixedBatchEndsAsItsJobsOneByOneWould) {
  // The same jobs by the canonical scripts into another queue; then the databases differ by nothing but its name.
  const Queue other = client().queue("o");
  std::vector<MixedJob> jobs;
  std::vector<std::string> ids;
  constexpr std::string_view kDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  for (const char digit : kDigits)
    ids.push_back(std::string("JOB0NgWEfAE0Z") + digit);
  ASSERT_TRUE(queue().pause_lane(kLaneY).get());
  ASSERT_TRUE(other.pause_lane(kLaneY).get());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    MixedJob job{.payload = ids[i], .id = JobId::parse(ids[i]).value()};
    if (i % 3 == 1)
      job.lane = i % 2 == 0 ? kLaneX : kLaneY;
    if (i % 5 == 2)
      job.at = Instant(Milliseconds(1000 + static_cast<std::int64_t>(i)));
    jobs.push_back(job);
    const EnqueueOptions one{.id = job.id, .lane = job.lane, .at = job.at};
    ASSERT_TRUE(other.enqueue(job.payload, one).get());
  }
  ASSERT_TRUE(queue().enqueue_mixed(jobs).get());
  for (const char* set : {"pending", "schedule", "g:PRT0NgWEfAE00X:pending", "g:PRT0NgWEfAE00Y:pending"}) {
    const auto all = [&](const std::string& base) {
      return raw("ZRANGE", base + set, "0", "-1", "WITHSCORES").to_string();
    };
    EXPECT_EQ(all("emq:{q}:"), all("emq:{o}:")) << set;
  }
  EXPECT_EQ(raw("LRANGE", "emq:{q}:ring", "0", "-1").to_string(), raw("LRANGE", "emq:{o}:ring", "0", "-1").to_string());
  for (const std::string& id : ids) {
    EXPECT_EQ(raw("HGETALL", "emq:{q}:job:" + id).to_string(), raw("HGETALL", "emq:{o}:job:" + id).to_string());
  }
}

TEST_F(QueueOptionsServerTest, WhatTheHostRefusesNamesTheValue) {
  const std::string before = digest();
  const auto refused = [&](RunOptions run, std::string_view text, std::optional<Milliseconds> in = {}) {
    const auto one = queue().enqueue("p", {.in = in, .run = run}).get();
    ASSERT_FALSE(one);
    EXPECT_TRUE(one.error().is(Errc::invalid_argument)) << one.error().message();
    EXPECT_THAT(one.error().text, HasSubstr(text));
    const std::vector<NewJob> many(2);
    const auto batch = queue().enqueue_many(many, {.in = in, .run = run}).get();
    ASSERT_FALSE(batch);
    EXPECT_THAT(batch.error().text, HasSubstr(text));
    const std::vector<MixedJob> mixed = {{.payload = "fine"}, {.payload = "p", .in = in, .run = run}};
    const auto each = queue().enqueue_mixed(mixed).get();
    ASSERT_FALSE(each);
    EXPECT_THAT(each.error().text, HasSubstr(text));
    EXPECT_THAT(each.error().text, HasSubstr("job 1"));
  };
  refused({.max_attempts = 0}, "max_attempts must be 1 or more, got 0");
  refused({.backoff = "linear:5"}, "got linear:5");
  refused({.backoff = "fixed:05"}, "got fixed:05");
  refused({.backoff = "fixed:-5"}, "got fixed:-5");
  refused({.backoff = "exponential:0:5"}, "got exponential:0:5");
  refused({.backoff = "exponential:5"}, "got exponential:5");
  refused({.backoff = "fixed:5:jitter "}, "got fixed:5:jitter ");
  refused({.timeout = 0ms}, "timeout must be 1ms");
  refused({.expire = -1ms}, "got -1ms");
  refused({.expire = 5s}, "expire must be more than in, got expire 5000ms and in 5000ms", 5s);
  refused({.keep = 0ms}, "keep must be 1ms");
  refused({.traceparent = "00-abc"}, "got 00-abc");
  refused({.traceparent = "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "got 00-0AF7651916");
  refused({.traceparent = "00-00000000000000000000000000000000-b7ad6b7169203331-01"}, "got 00-0000");
  refused({.traceparent = "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "got ff-");
  EXPECT_EQ(digest(), before);
  EXPECT_TRUE(queue().enqueue_mixed({}).get().error().is(Errc::empty_pipeline));
}

TEST_F(QueueOptionsServerTest, TheScriptRefusesWhatAHostShouldHave) {
  const std::string before = digest();
  const auto admit = [&](std::initializer_list<std::string_view> record) {
    std::vector<std::string_view> arguments = {"emq:{q}:", "", "each", "0"};
    arguments.insert(arguments.end(), record.begin(), record.end());
    std::vector<std::string> keys;
    std::vector<std::string_view> views;
    for (const char* key : {"pending", "schedule", "ring", "paused", "glimit", "gactive", "wake", "parked"})
      keys.push_back(std::string("emq:{q}:") + key);
    views.assign(keys.begin(), keys.end());
    const auto reply = client().eval("admit", views, arguments).get();
    return reply ? reply->to_string() : reply.error().text;
  };
  constexpr std::string_view kMalformed = "ERR a record of admit is malformed";
  const std::string_view a = kJobA.text();
  EXPECT_EQ(admit({a, "p", "", "", "0", "1", "max_attempts"}), kMalformed);
  EXPECT_EQ(admit({a, "p", "", "", "0", "x"}), kMalformed);
  EXPECT_EQ(admit({a, "p", "", "", "0"}), kMalformed);
  EXPECT_EQ(admit({a, "p", "", "", "0", "-1"}), kMalformed);
  EXPECT_EQ(admit({a, "p", "", "", "0", "0.5"}), kMalformed);
  EXPECT_EQ(admit({a, "p", "", "soon", "0", "0"}), kMalformed);
  EXPECT_EQ(admit({a, "p", "", "in", "x", "0"}), "ERR value of admit must be a number");
  EXPECT_EQ(admit({a, "p", "", "", "0", "1", "attempts", "5"}), kMalformed);
  EXPECT_EQ(admit({a, "p", "", "", "0", "1", "state", "dead"}), kMalformed);
  EXPECT_EQ(admit({a, "p", "", "", "0", "1", "timeout", "0"}), kMalformed);
  EXPECT_EQ(admit({a, "p", "", "", "0", "1", "timeout", "1e3"}), kMalformed);
  EXPECT_EQ(admit({a, "p", "", "", "0", "1", "keep", "9007199254740992"}), kMalformed);
  EXPECT_EQ(admit({a, "p", "", "", "0", "1", "traceparent", "short"}), kMalformed);
  EXPECT_EQ(admit({a, "p", "", "", "0", "0", kJobB.text(), "p", "", "", "0", "1", "backoff", ""}), kMalformed);
  EXPECT_EQ(digest(), before);
  EXPECT_EQ(admit({a, "p", "", "", "0", "1", "expires_at", "99"}), "[1]");
  EXPECT_EQ(field(kJobA, "expires_at"), "99");
}

TEST_F(QueueOptionsServerTest, FlowsCarryThemInOneScriptAndInSteps) {
  const Flow flow(queue());
  const std::vector<FlowJob> leaves = {{.payload = "a", .id = kJobA, .run = kAll}, {.payload = "b", .id = kJobB}};
  ASSERT_TRUE(flow.add({.payload = "p", .id = kJobC, .children = leaves, .run = {.timeout = 9s}}).get());
  expect_all(kJobA);
  EXPECT_THAT(row(kJobB), UnorderedElementsAre("state=pending", "attempts=0", "payload=b",
                                               "parent=" + std::string(kJobC.text()), "parent_policy=fp"));
  EXPECT_EQ(field(kJobC, "timeout"), "9000");
  EXPECT_EQ(field(kJobC, "state"), "awaiting_children");

  // Two queues: level by level.
  const JobId root{"JOB0NgWEfAE00G"};
  const JobId middle{"JOB0NgWEfAE00H"};
  const JobId leaf{"JOB0NgWEfAE00I"};
  const std::vector<FlowJob> below = {{.payload = "leaf", .id = leaf, .run = kAll}};
  const std::vector<FlowJob> children = {{.payload = "middle", .id = middle, .children = below, .run = kAll}};
  const FlowJob tree{.payload = "root", .id = root, .children = children, .run = kAll};
  const auto added = flow.add(tree).get();
  ASSERT_TRUE(added) << added.error().message();
  for (const JobId id : {root, middle, leaf})
    expect_all(id);
  EXPECT_EQ(flow.dependencies(root).get().value(), 1);
  EXPECT_EQ(flow.add(tree).get()->verdict, Admitted::duplicate);

  // A root without children is an ordinary job.
  const JobId alone{"JOB0NgWEfAE00J"};
  ASSERT_TRUE(flow.add({.payload = "x", .id = alone, .run = kAll}).get());
  expect_all(alone);
  EXPECT_TRUE(
      flow.add({.payload = "x", .id = JobId{"ORD0NgWEfAE00A"}, .run = kAll}).get().error().is(Errc::wrong_kind));
  const auto refused = flow.add({.payload = "x", .run = {.max_attempts = 0}}).get();
  EXPECT_THAT(refused.error().text, HasSubstr("max_attempts must be 1 or more, got 0"));
}

TEST_F(QueueOptionsServerTest, APeersVerbsKeepTheFields) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA, .run = kAll}).get());
  const auto job = queue().claim().get();
  ASSERT_TRUE(job && *job);
  ASSERT_TRUE(queue().retry(kJobA, (*job)->token, {.delay = 0ms, .error = "once"}).get());
  ASSERT_EQ(queue().promote().get().value(), 1);
  expect_all(kJobA);
  const auto again = queue().claim().get();
  ASSERT_TRUE(again && *again);
  ASSERT_TRUE(queue().complete(kJobA, (*again)->token).get());
  EXPECT_THAT(row(kJobA), ElementsAre("no row"));
}

}  // namespace
}  // namespace echomq::test
