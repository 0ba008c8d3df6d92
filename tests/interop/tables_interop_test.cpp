// A table of ours and one of the peer, each with rows in memory, over the same rows of a server: what one writes the other
// reads, in each way of hearing, and nobody goes back to what was before.
#include "echomq/cache.hpp"
#include "interop/exchange_fixture.hpp"

namespace echomq::interop {
namespace {

enum class Way : std::uint8_t { broadcast, tracking, job_lane };

constexpr BrandedId kId{"USR0NgWEfAE00A"};
constexpr LaneId kLane{"PRT0NgWEfAE00X"};

class TablesInterop : public ExchangeTest, public ::testing::WithParamInterface<Way> {
 protected:
  void SetUp() override {
    ExchangeTest::SetUp();
    const Coherence coherence = way() == Way::broadcast  ? Coherence::broadcast
                                : way() == Way::tracking ? Coherence::tracking
                                                         : Coherence::none;
    auto opened = ByteCache::open(client(), {.table = "users", .kind = "USR", .ttl = 60s, .coherence = coherence});
    ASSERT_TRUE(opened) << opened.error().message();
    ours_.emplace(*std::move(opened));
    json::object start{{"name", "p"}, {"table", "users"}, {"kind", "USR"}, {"ttl_ms", 60000}};
    if (way() != Way::job_lane)
      start["coherence"] = way() == Way::broadcast ? "broadcast" : "tracking";
    ASSERT_EQ(ask("table_start", start), "ok");
  }

  [[nodiscard]] static Way way() { return GetParam(); }
  [[nodiscard]] ByteCache& ours() { return *ours_; }

  /// Value and where it is from.
  [[nodiscard]] std::pair<std::string, std::string> we_read() {
    const auto answer = ours().get(kId).get();
    if (!answer)
      return {answer.error().message(), "error"};
    return {answer->value.value_or("nothing"), std::string(to_string(answer->from))};
  }
  [[nodiscard]] std::pair<std::string, std::string> peer_reads() {
    const json::value answer = ask("fetch", {{"name", "p"}, {"id", text(kId)}});
    if (answer.as_object().contains("error"))
      return {"nothing", "error"};
    const json::array& found = answer.at("ok").as_array();
    return {conformance::text_of(found[0]), conformance::text_of(found[1])};
  }

  void we_write(const std::string& value) {
    const BrandedId version = client().mint("USR").value();
    ASSERT_EQ(ours().put(kId, value, version).get(), CachePut::stored);
    EXPECT_EQ(we_read().first, value) << "one's own write";
    const CoherenceMessage message{kId, version};
    if (way() == Way::broadcast) {
      EXPECT_EQ(CacheWriter(client(), "users").broadcast(kId, version).get(), 2);
    } else if (way() == Way::job_lane) {
      ASSERT_TRUE(lane().enqueue(message.text(), {.lane = kLane}).get());
      const json::value job = peer().ask("lane_claim", lane_name(), {{"lease_ms", 60000}}).at("ok");
      const std::string payload = conformance::text_of(job.at(1));
      EXPECT_EQ(payload, message.text());
      const auto told = CoherenceMessage::parse(payload);
      ASSERT_TRUE(told);
      EXPECT_EQ(ask("apply_coherence", {{"name", "p"}, {"id", text(told->id)}, {"version", text(told->version)}}),
                ok(they_have_it_ ? "applied" : "stale"));
    }
    we_have_it_ = true;
  }

  void peer_writes(const std::string& value) {
    const std::string version = peer().mint("VER");
    ASSERT_EQ(ask("put", {{"name", "p"}, {"id", text(kId)}, {"value", value}, {"version", version}}), "ok");
    EXPECT_EQ(peer_reads().first, value) << "one's own write";
    if (way() == Way::broadcast) {
      EXPECT_EQ(ask("broadcast", {{"table", "users"}, {"id", text(kId)}, {"version", version}}), ok(2));
    } else if (way() == Way::job_lane) {
      const std::string job = peer().mint("JOB");
      const std::string payload = std::string(kId.text()) + ":" + version;
      EXPECT_EQ(peer().ask("lane_enqueue", lane_name(), {{"id", job}, {"group", text(kLane)}, {"payload", payload}}),
                ok("enqueued"));
      const auto claimed = lane().claim_lane({.lease = 60s}).get().value();
      ASSERT_TRUE(claimed);
      const auto told = CoherenceMessage::parse(claimed->payload);
      ASSERT_TRUE(told) << claimed->payload;
      EXPECT_EQ(ours().apply(told->id, told->version), we_have_it_ ? Applied::applied : Applied::stale);
    }
    they_have_it_ = true;
  }

  /// Both read it, and have it in memory then.
  void expect_both(const std::string& value) {
    const auto until = std::chrono::steady_clock::now() + 20s;
    const std::pair<std::string, std::string> hit{value, "hit"};
    auto we = we_read();
    auto they = peer_reads();
    while ((we != hit || they != hit) && std::chrono::steady_clock::now() < until) {
      we = we_read();
      they = peer_reads();
    }
    EXPECT_EQ(we, hit);
    EXPECT_EQ(they, hit);
    we_have_it_ = they_have_it_ = true;
  }

 private:
  [[nodiscard]] static std::string lane_name() { return "ecc.coh.users"; }
  [[nodiscard]] Queue lane() { return client().queue(coherence_queue("users")); }

  std::optional<ByteCache> ours_;
  // A row that is not in memory cannot be made to go.
  bool we_have_it_ = false;
  bool they_have_it_ = false;
};

[[nodiscard]] std::string name_of(const ::testing::TestParamInfo<Way>& way) {
  return way.param == Way::broadcast ? "broadcast" : way.param == Way::tracking ? "tracking" : "job_lane";
}
INSTANTIATE_TEST_SUITE_P(Ways, TablesInterop, ::testing::Values(Way::broadcast, Way::tracking, Way::job_lane), name_of);

TEST_P(TablesInterop, WhatOneWritesTheOtherReads) {
  for (int round = 0; round < 100 && !HasFailure(); ++round) {
    const std::string value = "value " + std::to_string(round);
    if (round % 2 == 0) {
      we_write(value);
    } else {
      peer_writes(value);
    }
    expect_both(value);
    // Clocks of two minters: the next version has to be newer, whoever mints it.
    std::this_thread::sleep_for(2ms);
  }
  EXPECT_GE(ours().stats().coherence_applied, 50U);
  EXPECT_EQ(ours().stats().coherence_ignored, 0U);
}

TEST_P(TablesInterop, AnOlderPutOfEitherIsSuperseded) {
  const BrandedId old_version = client().mint("USR").value();
  std::this_thread::sleep_for(2ms);
  peer_writes("new");
  expect_both("new");
  EXPECT_EQ(ours().put(kId, "old", old_version).get(), CachePut::superseded);
  expect_both("new");
  EXPECT_EQ(ask("put", {{"name", "p"}, {"id", text(kId)}, {"value", "old"}, {"version", text(old_version)}}),
            "superseded");
  expect_both("new");
}

}  // namespace
}  // namespace echomq::interop
