// `emq doctor`: a sound queue is called sound, at work too; each thing that can be wrong with one is made and found.
#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "echomq/testing/private_cluster.hpp"
#include "echomq/worker.hpp"
#include "tool_fixture.hpp"

namespace echomq::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

const std::string kBase = "emq:{jobs}:";
const std::string kId = "JOB0KHTOWnGLuC";

class ToolDoctor : public ToolTest {
 protected:
  template <typename... Parts>
  Value raw(const Parts&... parts) {
    auto answer = client().command(parts...).get();
    EXPECT_TRUE(answer) << answer.error().message();
    return answer ? *std::move(answer) : Value();
  }
  [[nodiscard]] LaneId lane() { return LaneId(client().mint("USR").value()); }
  /// What a run with --json has found: kind and name of each.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> found(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments{"doctor", "jobs", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ToolResult result = emq(arguments);
    EXPECT_EQ(result.err, "");
    const boost::json::value json = json_of(result.out);
    std::vector<std::pair<std::string, std::string>> out;
    for (const auto& one : json.at("findings").as_array()) {
      const auto& finding = one.as_object();
      std::string name;
      for (const char* what : {"job", "lane", "key"}) {
        if (finding.contains(what))
          name = finding.at(what).as_string();
      }
      EXPECT_FALSE(finding.at("says").as_string().empty());
      out.emplace_back(finding.at("kind").as_string(), name);
    }
    EXPECT_EQ(result.exit_code, json.at("counts").as_object().empty() ? 0 : 1);
    return out;
  }
  /// Of everything some, all of it sound: every state, lanes that wait, run, are paused and at their limit, a flow.
  void fill() {
    flat_.clear();
    lane_jobs_.clear();
    claimed_.clear();
    for (int i = 0; i < 6; ++i)
      flat_.push_back(add("flat"));
    later_ = add("later", {.in = 1h});
    waiting_ = lane();
    limited_ = lane();
    paused_ = lane();
    for (const LaneId& one : {waiting_, limited_, paused_}) {
      for (int i = 0; i < 3; ++i)
        lane_jobs_.push_back(add("laned", {.lane = one}));
    }
    ASSERT_TRUE(queue().limit_lane(limited_, 1).get());
    ASSERT_TRUE(queue().pause_lane(paused_).get());
    for (int i = 0; i < 2; ++i) {
      const auto job = queue().claim_lane().get();
      ASSERT_TRUE(job && *job);
      claimed_.push_back((*job)->id);
    }
    const auto dies = queue().claim().get();
    ASSERT_TRUE(dies && *dies);
    ASSERT_TRUE(queue().retry((*dies)->id, (*dies)->token, {.max_attempts = 1, .error = "e"}).get());
    raw("HSET", kBase + "job:" + kId, "state", "awaiting_children", "attempts", "0", "payload", "p");
    raw("SET", kBase + "job:" + kId + ":dependencies", "2");
  }
  [[nodiscard]] std::string row(const JobId& id) const { return kBase + "job:" + std::string(id.text()); }
  [[nodiscard]] static std::string text(const LaneId& lane) { return std::string(lane.text()); }
  [[nodiscard]] static std::string text(const JobId& id) { return std::string(id.text()); }

  LaneId waiting_{}, limited_{}, paused_{};
  JobId later_{};
  std::vector<JobId> flat_, lane_jobs_, claimed_;
};

TEST_F(ToolDoctor, ASoundQueueIsSound) {
  EXPECT_THAT(found(), ElementsAre()) << "a queue without a key";
  fill();
  EXPECT_THAT(found(), ElementsAre());
  const ToolResult result = emq({"doctor", "jobs"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "17 rows, 16 members of sets, 3 lanes: sound\n");
  EXPECT_EQ(emq({"doctor"}).exit_code, 2);
  EXPECT_EQ(emq({"doctor", "no:name"}).exit_code, 2);
}

TEST_F(ToolDoctor, NothingIsWritten) {
  fill();
  raw("HSET", kBase + "gactive", text(waiting_), "7");
  const Value before = raw("DEBUG", "DIGEST");
  EXPECT_THAT(found(), ElementsAre(Pair("lane_count_high", text(waiting_))));
  EXPECT_EQ(raw("DEBUG", "DIGEST"), before);
}

TEST_F(ToolDoctor, EachThingThatIsWrongIsFound) {
  using Expected = std::vector<std::pair<std::string, std::string>>;
  const auto expect = [&](std::string_view what, const std::function<Expected()>& make) {
    SCOPED_TRACE(what);
    raw("FLUSHALL");
    fill();
    Expected expected = make();
    auto all = found();
    std::ranges::sort(all);
    std::ranges::sort(expected);
    EXPECT_EQ(all, expected);
  };
  const auto set_of = [&](const LaneId& one) { return kBase + "g:" + text(one) + ":pending"; };
  const auto replace = [&](const std::string& key) {
    raw("DEL", key);
    raw("SET", key, "x");
    return Expected{{"wrong_type", key}};
  };

  expect("a flat job in no set", [&] {
    raw("ZREM", kBase + "pending", text(flat_[3]));
    return Expected{{"row_in_no_set", text(flat_[3])}};
  });
  expect("a scheduled job in no set", [&] {
    raw("DEL", kBase + "schedule");
    return Expected{{"row_in_no_set", text(later_)}};
  });
  expect("a lane's job in no set", [&] {
    raw("ZREM", set_of(waiting_), text(lane_jobs_[2]));
    return Expected{{"row_in_no_set", text(lane_jobs_[2])}};
  });
  expect("a running job of a lane in no set", [&] {
    raw("ZREM", kBase + "active", text(claimed_[0]));
    return Expected{{"row_in_no_set", text(claimed_[0])}, {"lane_count_high", text(waiting_)}};
  });
  expect("a member without a row", [&] {
    raw("DEL", row(flat_[3]));
    raw("DEL", row(lane_jobs_[2]));
    raw("ZADD", kBase + "dead", "0", "no id");
    return Expected{{"member_without_row", text(flat_[3])},
                    {"member_without_row", text(lane_jobs_[2])},
                    {"member_without_row", "no id"}};
  });
  expect("a leftover", [&] {
    raw("ZADD", kBase + "dead", "0", text(flat_[3]));
    raw("ZADD", kBase + "pending", "0", text(lane_jobs_[2]));
    raw("ZADD", set_of(paused_), "0", text(lane_jobs_[1]));
    raw("ZADD", kBase + "pending", "0", kId);
    return Expected{{"member_in_wrong_set", text(flat_[3])},
                    {"member_in_wrong_set", text(lane_jobs_[2])},
                    {"member_in_wrong_set", text(lane_jobs_[1])},
                    {"member_in_wrong_set", kId}};
  });
  expect("in the wrong set only", [&] {
    raw("HSET", row(flat_[3]), "state", "dead");
    raw("HDEL", row(flat_[4]), "state");
    return Expected{{"member_in_wrong_set", text(flat_[3])}, {"member_in_wrong_set", text(flat_[4])}};
  });
  expect("a parent without children", [&] {
    raw("SET", kBase + "job:" + kId + ":dependencies", "0");
    return Expected{{"parent_waits_for_nobody", kId}};
  });
  expect("a parent without a count", [&] {
    raw("DEL", kBase + "job:" + kId + ":dependencies");
    return Expected{{"parent_waits_for_nobody", kId}};
  });
  expect("a lane that is forgotten", [&] {
    raw("LREM", kBase + "ring", "0", text(waiting_));
    return Expected{{"lane_missing_on_ring", text(waiting_)}};
  });
  expect("a lane with two turns", [&] {
    raw("RPUSH", kBase + "ring", text(waiting_));
    return Expected{{"lane_twice_on_ring", text(waiting_)}};
  });
  expect("a lane without jobs", [&] {
    const std::string other = text(lane());
    raw("RPUSH", kBase + "ring", other);
    return Expected{{"lane_empty_on_ring", other}};
  });
  expect("a paused lane on the ring", [&] {
    raw("RPUSH", kBase + "ring", text(paused_));
    return Expected{{"lane_paused_on_ring", text(paused_)}};
  });
  expect("a lane at its limit on the ring", [&] {
    raw("RPUSH", kBase + "ring", text(limited_));
    return Expected{{"lane_full_on_ring", text(limited_)}};
  });
  expect("a count that is too high", [&] {
    raw("HINCRBY", kBase + "gactive", text(limited_), "1");
    raw("HSET", kBase + "gactive", text(paused_), "1");
    return Expected{{"lane_count_high", text(limited_)}, {"lane_count_high", text(paused_)}};
  });
  expect("a count that is too low", [&] {
    raw("HDEL", kBase + "gactive", text(limited_));
    return Expected{{"lane_count_low", text(limited_)}, {"lane_missing_on_ring", text(limited_)}};
  });
  expect("a count that is no number", [&] {
    raw("HSET", kBase + "gactive", text(waiting_), "many");
    raw("HSET", kBase + "gactive", text(paused_), "1.5");
    return Expected{{"lane_count_no_number", text(waiting_)}, {"lane_count_no_number", text(paused_)}};
  });
  for (const char* key :
       {"pending", "active", "schedule", "dead", "ring", "wake", "paused", "glimit", "gactive", "gweight", "meta",
        "limiter", "metrics:completed", "metrics:failed", "repeat", "flow:outbox", "parked", "upkeep"}) {
    expect(key, [&] {
      const std::string_view name = key;
      Expected all = replace(kBase + key);
      if (name == "limiter") {
        raw("DEL", kBase + key);
        raw("LPUSH", kBase + key, "x");
      }
      if (name == "paused")  // then it counts as not paused
        all.emplace_back("lane_missing_on_ring", text(paused_));
      if (name == "glimit" || name == "gactive")
        all.emplace_back("lane_missing_on_ring", text(limited_));
      return all;
    });
  }
  expect("a row that is none", [&] { return replace(row(flat_[3])); });
  expect("a lane's set that is none", [&] { return replace(set_of(paused_)); });
}

TEST_F(ToolDoctor, FixMendsLanesAtOneMomentAndLeavesTheRest) {
  fill();
  const std::string waits = text(waiting_), limited = text(limited_), paused = text(paused_), empty = text(lane());
  raw("HSET", kBase + "gactive", waits, "many");
  raw("HINCRBY", kBase + "gactive", limited, "5");
  raw("HSET", kBase + "gactive", paused, "1");
  raw("LREM", kBase + "ring", "0", waits);
  raw("RPUSH", kBase + "ring", paused, empty, empty);
  raw("ZADD", kBase + "dead", "0", "ghost");
  const Value before = raw("DEBUG", "DIGEST");
  // Only said.
  const ToolResult dry = emq({"doctor", "jobs", "--fix", "--dry-run"});
  EXPECT_EQ(dry.exit_code, 1);
  EXPECT_THAT(dry.out, HasSubstr("would mend lane " + waits));
  EXPECT_THAT(dry.out, HasSubstr("would mend lane " + limited));
  EXPECT_EQ(raw("DEBUG", "DIGEST"), before);
  EXPECT_EQ(emq({"doctor", "jobs"}).exit_code, 1);
  EXPECT_EQ(raw("DEBUG", "DIGEST"), before);
  EXPECT_EQ(emq({"doctor", "jobs", "--dry-run"}).exit_code, 2) << "of what";

  const ToolResult done = emq({"doctor", "jobs", "--fix"});
  EXPECT_EQ(done.exit_code, 1) << "the ghost is left";
  EXPECT_THAT(done.out, HasSubstr("will mend lane " + waits));
  EXPECT_THAT(done.out, HasSubstr("lane " + waits + ": count many -> 1, turns 0 -> 1\n"));
  EXPECT_THAT(done.out, HasSubstr("lane " + limited + ": count 6 -> 1, turns 0 -> 0\n"));
  EXPECT_THAT(done.out, HasSubstr("lane " + paused + ": count 1 -> 0, turns 1 -> 0\n"));
  EXPECT_THAT(done.out, HasSubstr("lane " + empty + ": count none -> 0, turns 2 -> 0\n"));
  EXPECT_THAT(found(), ElementsAre(Pair("member_without_row", "ghost")));
  EXPECT_EQ(raw("HGETALL", kBase + "gactive").size(), 4U) << "two lanes, one job each";

  // Once it is sound there is nothing to do.
  raw("ZREM", kBase + "dead", "ghost");
  const Value sound = raw("DEBUG", "DIGEST");
  EXPECT_EQ(emq({"doctor", "jobs", "--fix"}).exit_code, 0);
  EXPECT_EQ(raw("DEBUG", "DIGEST"), sound);

  raw("RPUSH", kBase + "ring", waits);
  const ToolResult json = emq({"doctor", "jobs", "--fix", "--json"});
  EXPECT_EQ(json.exit_code, 0) << json.out;
  const boost::json::value told = json_of(json.out);
  ASSERT_EQ(told.at("repairs").as_array().size(), 1U);
  EXPECT_EQ(told.at("repairs").at(0).at("turns_before").as_int64(), 2);
  EXPECT_EQ(told.at("repairs").at(0).at("turns").as_int64(), 1);
  EXPECT_TRUE(told.at("repairs").at(0).at("done").as_bool());
}

TEST_F(ToolDoctor, OfManyTheFirstAreShown) {
  for (int i = 0; i < 1200; ++i)
    raw("ZADD", kBase + "dead", "0", "ghost " + std::to_string(i));
  EXPECT_EQ(found({"-n", "3"}).size(), 3U);
  const ToolResult result = emq({"doctor", "jobs", "--most", "3"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("and 1197 more"));
  EXPECT_THAT(result.out, HasSubstr("0 rows, 1200 members of sets, 0 lanes: not sound"));
}

TEST_F(ToolDoctor, MoreJobsInFlightThanAreReadAtOnce) {
  const LaneId one = lane();
  const std::vector<NewJob> jobs(1500, NewJob{.payload = "x", .id = {}});
  ASSERT_TRUE(queue().enqueue_many(jobs, {.lane = one}).get());
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(queue().claim_lane_batch({.size = 500}).get());
  EXPECT_EQ(raw("ZCARD", kBase + "active").as_integer(), 1500);
  EXPECT_THAT(found(), ElementsAre());
  raw("HINCRBY", kBase + "gactive", text(one), "1");
  EXPECT_THAT(found(), ElementsAre(Pair("lane_count_high", text(one))));
  raw("HINCRBY", kBase + "gactive", text(one), "-2");
  EXPECT_THAT(found(), ElementsAre(Pair("lane_count_low", text(one))));
}

// Jobs of lanes with and without a limit come, run, fail and end while it looks.
TEST_F(ToolDoctor, AQueueAtWorkIsSound) {
  std::vector<LaneId> lanes;
  for (int i = 0; i < 4; ++i)
    lanes.push_back(lane());
  ASSERT_TRUE(queue().limit_lane(lanes[0], 2).get());
  WorkerOptions options;
  options.concurrency = 16;
  options.backoff = Backoff::fixed(5ms);
  auto worker = Worker::start(
      queue(), [](Job& job) -> Outcome { return job.attempt() % 3 == 1 ? Outcome(Retry("again")) : Outcome(Done()); },
      options);
  ASSERT_TRUE(worker) << worker.error().message();
  std::atomic<bool> go_on{true};
  std::thread producer([&] {
    const std::vector<NewJob> jobs(20, NewJob{.payload = "x", .id = {}});
    for (std::size_t i = 0; go_on; ++i) {
      EnqueueManyOptions more;
      if (i % 5 < 4)
        more.lane = lanes[i % 5];
      EXPECT_TRUE(queue().enqueue_many(jobs, more).get());
      std::this_thread::sleep_for(2ms);
    }
  });
  for (int i = 0; i < 8; ++i)
    EXPECT_THAT(found(), ElementsAre());
  go_on = false;
  producer.join();
  EXPECT_GT(worker->stats().completed, 100U);
}

// The rows of a queue are with one node of several, and the looks at one moment go there.
TEST(ToolDoctorCluster, FindsTheNodeOfTheQueue) {
  auto cluster = echomq::testing::PrivateCluster::start({});
  ASSERT_TRUE(cluster) << cluster.error().message();
  auto client = Client::open(cluster->url(), {.name = "test"});
  ASSERT_TRUE(client) << client.error().message();
  for (const char* name : {"jobs", "other", "third"}) {
    SCOPED_TRACE(name);
    const Queue queue = client->queue(*QueueName::parse(name));
    const auto id = queue.enqueue("x").get();
    ASSERT_TRUE(id) << id.error().message();
    const auto doctor = [&] { return run_tool({"doctor", name}, {}, {{"EMQ_URL", cluster->url()}}); };
    const ToolResult sound = doctor();
    EXPECT_EQ(sound.out, "1 rows, 1 members of sets, 0 lanes: sound\n") << sound.err;
    EXPECT_EQ(sound.exit_code, 0);
    ASSERT_TRUE(client->command("ZREM", "emq:{" + std::string(name) + "}:pending", id->id.text()).get());
    const ToolResult lost = doctor();
    EXPECT_THAT(lost.out, HasSubstr("row_in_no_set            job " + std::string(id->id.text()))) << lost.err;
    EXPECT_EQ(lost.exit_code, 1);
  }
}

}  // namespace
}  // namespace echomq::test
