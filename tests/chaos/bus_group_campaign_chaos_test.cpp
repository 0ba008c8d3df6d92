// Consumers of one group in processes of their own, one of which is killed each second, while records come, some of which fail
// always or kill who handles them, and while what is done is trimmed.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "child_program.hpp"
#include "server/bus_fixture.hpp"

namespace echomq::test {
namespace {

constexpr std::size_t kConsumers = 4;
constexpr std::uint32_t kLimit = 5;
constexpr auto kMinIdle = 400ms;
constexpr std::string_view kFails = "fails";
constexpr std::string_view kKills = "kills";

[[nodiscard]] std::int64_t now_ms() {
  return std::chrono::duration_cast<Milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// The child: consumes until it is killed. Each run writes one line, in one write, before it ends:
/// `<number> <slot of the consumer> <attempt> <Unix ms>`.
TEST(GroupChild, DISABLED_Consume) {
  const std::string url = variable("ECHOMQ_CHILD_URL");
  if (url.empty())
    GTEST_SKIP() << "started by the tests below, with their server's address";
  const pid_t parent = ::getppid();
  const std::string slot = variable("ECHOMQ_CHILD_SLOT");
  const int results = ::open(variable("ECHOMQ_CHILD_RESULTS").c_str(), O_WRONLY | O_APPEND | O_CREAT, 0600);
  ASSERT_GE(results, 0);
  auto client = Client::open(url);
  ASSERT_TRUE(client) << client.error().message();
  const Stream stream = client->stream(QueueName{"q"}, StreamName{"s"});
  const auto handler = [results, slot](const StreamMessage& message) {
    const std::string& kind = *message.record.find("kind");
    const std::string line = *message.record.find("number") + ' ' + slot + ' ' + std::to_string(message.attempts) +
                             ' ' + std::to_string(now_ms()) + '\n';
    if (::write(results, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      std::abort();
    if (kind == kKills)
      ::_exit(1);
    thread_local std::mt19937 dice{std::random_device{}()};
    std::this_thread::sleep_for(std::chrono::microseconds{dice() % 2000});
    return kind == kFails ? Handled::failed : Handled::done;
  };
  GroupConsumerOptions options{.start = GroupStart::head, .min_idle = kMinIdle, .beat = 100ms, .count = 20};
  options.max_attempts = kLimit;
  auto consumer =
      GroupConsumer::start(stream.group("g").value(), variable("ECHOMQ_CHILD_CONSUMER"), handler, std::move(options));
  ASSERT_TRUE(consumer) << consumer.error().message();
  while (::getppid() == parent)
    std::this_thread::sleep_for(50ms);
}

class BusGroupCampaign : public BusServerTest {
 protected:
  struct Sent {
    std::string_view kind;
    EventId id;
    std::int64_t at;
    std::vector<std::int64_t> runs;  // Unix ms
    std::uint64_t most_attempts = 0;
    bool dead = false;
  };

  void SetUp() override {
    BusServerTest::SetUp();
    char pattern[] = "/tmp/echomq-group-XXXXXX";
    folder_ = ::mkdtemp(pattern);
    ASSERT_TRUE(group().create(GroupStart::head).get());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] StreamGroup group() { return stream().group("g").value(); }
  [[nodiscard]] std::unique_ptr<ChildProgram> child(std::size_t slot) {
    return std::make_unique<ChildProgram>(
        "GroupChild.DISABLED_Consume",
        std::vector<std::pair<std::string, std::string>>{{"ECHOMQ_CHILD_URL", server().url()},
                                                         {"ECHOMQ_CHILD_SLOT", std::to_string(slot)},
                                                         {"ECHOMQ_CHILD_CONSUMER", names_[slot]},
                                                         {"ECHOMQ_CHILD_RESULTS", folder_ + "/results"}});
  }

  void send(std::size_t count) {
    std::vector<Reply<EventId>> replies;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t number = sent_.size();
      const std::string_view kind = number % 997 == 500 ? kKills : number % 97 == 50 ? kFails : "plain";
      const std::string text = std::to_string(number);
      const Field fields[] = {{"number", text}, {"kind", kind}};
      sent_.push_back({kind, {}, now_ms(), {}});
      replies.push_back(stream().append(fields));
    }
    for (std::size_t i = 0; i < count; ++i) {
      const auto id = replies[i].get();
      ASSERT_TRUE(id) << id.error().message();
      sent_[sent_.size() - count + i].id = *id;
    }
  }

  /// Reads the lines that were written since, and the graves.
  void look() {
    if (!results_.is_open())
      results_.open(folder_ + "/results");
    results_.clear();
    tail_.append(std::istreambuf_iterator<char>(results_), {});
    // A line may be seen before it is there whole.
    for (std::size_t end = tail_.find('\n'); end != std::string::npos; end = tail_.find('\n')) {
      const std::string line = tail_.substr(0, end);
      tail_.erase(0, end + 1);
      std::istringstream words(line);
      std::size_t number = 0, slot = 0;
      std::uint64_t attempts = 0;
      std::int64_t at = 0;
      ASSERT_TRUE(words >> number >> slot >> attempts >> at) << line;
      sent_[number].runs.push_back(at);
      sent_[number].most_attempts = std::max(sent_[number].most_attempts, attempts);
      ++runs_of_slot_[slot];
    }
    for (;;) {
      auto page = dead_from_.empty() ? dead().read().get() : dead().read("(" + dead_from_).get();
      ASSERT_TRUE(page) << page.error().message();
      if (page->records.empty())
        break;
      for (const Record& record : page->records) {
        Sent& one = sent_[std::stoul(*record.find("number"))];
        EXPECT_EQ(*record.find("origin"), one.id.entry_id().text());
        EXPECT_EQ(*record.find("origin_id"), one.id.text());
        EXPECT_GE(std::stoul(*record.find("attempts")), kLimit);
        graves_ += one.dead ? 0 : 1;
        graves_twice_ += one.dead ? 1 : 0;
        one.dead = true;
        dead_from_ = record.entry;
      }
    }
  }
  [[nodiscard]] Stream dead() { return client().stream(QueueName{"q"}, StreamName{"s:dead"}); }
  [[nodiscard]] static bool over(const Sent& one) { return one.kind == "plain" ? !one.runs.empty() : one.dead; }

  /// Up to the oldest record that has still to be handled or buried; what was handled and not acknowledged goes too.
  void trim() {
    while (done_ < sent_.size() && over(sent_[done_]))
      ++done_;
    if (done_ == 0)
      return;
    const auto removed = stream().trim_through(sent_[done_ - 1].id).get();
    ASSERT_TRUE(removed) << removed.error().message();
    trimmed_ += *removed;
  }

  void campaign(std::chrono::seconds length) {
    std::array<std::unique_ptr<ChildProgram>, kConsumers> consumers;
    for (std::size_t slot = 0; slot < kConsumers; ++slot) {
      names_[slot] = "c" + std::to_string(slot);
      consumers[slot] = child(slot);
    }
    std::size_t kills = 0;
    std::size_t suicides = 0;
    auto next_kill = std::chrono::steady_clock::now() + 1s;
    const auto end = std::chrono::steady_clock::now() + length;
    const auto replace_dead = [&] {
      for (std::size_t slot = 0; slot < kConsumers; ++slot) {
        if (!consumers[slot]->ended())
          continue;
        ++suicides;
        consumers[slot] = child(slot);
      }
    };
    // Longer where too little has befallen it: on a busy machine.
    const auto befallen = [&] {
      const auto poisoned = std::ranges::count_if(sent_, [](const Sent& one) { return one.kind != "plain"; });
      return poisoned > 10 && suicides > 0 && trimmed_ > 0;
    };
    while (std::chrono::steady_clock::now() < end || (std::chrono::steady_clock::now() < end + 20s && !befallen())) {
      if (sent_.size() - done_ < 3000) {
        ASSERT_NO_FATAL_FAILURE(send(20));
      }
      replace_dead();
      if (std::chrono::steady_clock::now() >= next_kill) {
        // Every other one comes back under a new name: then its entries are taken over by whoever looks first.
        const std::size_t slot = kills % kConsumers;
        consumers[slot]->kill();
        if (++kills % 2 == 0)
          names_[slot] += "x";
        consumers[slot] = child(slot);
        next_kill += 1s;
      }
      ASSERT_NO_FATAL_FAILURE(look());
      ASSERT_NO_FATAL_FAILURE(trim());
      std::this_thread::sleep_for(10ms);
    }
    // What is left needs `kLimit` times `min_idle` at most, once everybody lives.
    const auto until = std::chrono::steady_clock::now() + 30s;
    const auto rests = [&] {
      const auto rows = group().pending({.count = 1}).get();
      return std::all_of(sent_.begin(), sent_.end(), over) && rows && rows->empty();
    };
    while (!rests() && std::chrono::steady_clock::now() < until) {
      replace_dead();
      look();
      std::this_thread::sleep_for(10ms);
    }
    std::this_thread::sleep_for(3 * kMinIdle);
    look();
    for (auto& consumer : consumers)
      consumer->kill();
    judge(kills, suicides);
  }

  void judge(std::size_t kills, std::size_t suicides) {
    std::size_t runs = 0, poisoned = 0, again = 0;
    std::int64_t longest = 0;
    for (std::size_t i = 0; i < sent_.size(); ++i) {
      const Sent& one = sent_[i];
      runs += one.runs.size();
      if (one.kind == "plain") {
        EXPECT_FALSE(one.runs.empty()) << "record " << i << " was never handled";
        EXPECT_FALSE(one.dead) << "record " << i << " was buried, and has done nothing";
        again += one.runs.empty() ? 0 : one.runs.size() - 1;
        if (!one.runs.empty())
          longest = std::max(longest, *std::min_element(one.runs.begin(), one.runs.end()) - one.at);
        continue;
      }
      ++poisoned;
      EXPECT_TRUE(one.dead) << "record " << i << ", which " << one.kind << ", is not in the dead stream";
      EXPECT_FALSE(one.runs.empty()) << "record " << i << " was buried unseen";
      EXPECT_LE(one.most_attempts, kLimit) << "record " << i << " was handled beyond its limit";
    }
    const auto left = group().pending({.count = 10}).get().value();
    EXPECT_TRUE(left.empty()) << left.size() << " entries are pending";
    std::printf(
        "%zu records (%zu poisoned), %zu kills, %zu died of a record, %zu runs, %zu of them again, %zu buried (%zu "
        "twice), "
        "%zu trimmed, longest wait %lld ms; runs by consumer %zu %zu %zu %zu\n",
        sent_.size(), poisoned, kills, suicides, runs, again, graves_, graves_twice_, trimmed_,
        static_cast<long long>(longest), runs_of_slot_[0], runs_of_slot_[1], runs_of_slot_[2], runs_of_slot_[3]);
    EXPECT_EQ(graves_, poisoned);
    EXPECT_LE(graves_twice_, kills + suicides);
    EXPECT_GT(poisoned, 10U);
    EXPECT_GT(suicides, 0U);
    EXPECT_GT(trimmed_, 0U);
    // A record waits for the load before it, and once or more for `min_idle` when its consumer dies.
    EXPECT_LT(longest, 10'000) << "a record starved";
    for (const std::size_t of_slot : runs_of_slot_)
      EXPECT_GT(of_slot, runs / 20) << "a consumer starved";
  }

 private:
  std::string folder_;
  std::array<std::string, kConsumers> names_;
  std::vector<Sent> sent_;
  std::ifstream results_;
  std::string tail_;  ///< read, without its end of line
  std::string dead_from_;
  std::array<std::size_t, kConsumers> runs_of_slot_{};
  std::size_t done_ = 0;
  std::size_t trimmed_ = 0;
  std::size_t graves_ = 0;
  std::size_t graves_twice_ = 0;
};

TEST_F(BusGroupCampaign, TenSecondsOfKillsPoisonAndTrims) { campaign(10s); }

class LongRunBusGroupCampaign : public BusGroupCampaign {};

TEST_F(LongRunBusGroupCampaign, AMinuteOfKillsPoisonAndTrims) { campaign(60s); }

}  // namespace
}  // namespace echomq::test
