// Streams under load, beside the Node speaker: both append, both consume as one group, both read; and strangers read the files of an
// archive while it is written.
#include <stdlib.h>

#include <atomic>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "echomq/archive.hpp"
#include "echomq/archiver.hpp"
#include "echomq/group_consumer.hpp"
#include "echomq/stream.hpp"
#include "interop/exchange_fixture.hpp"

namespace echomq::interop {
namespace {

constexpr int kThreads = 2;
constexpr int kOurs = 3000;    // records of each of our threads
constexpr int kTheirs = 1500;  // records of the peer
constexpr int kBatch = 100;    // of one of its calls

class StreamLoad : public ExchangeTest {
 protected:
  [[nodiscard]] Stream stream() { return client().stream("q", "s"); }

  /// Records `<prefix><number>`, some of them under way at once.
  void append(const std::string& prefix, int count, int first = 0) {
    std::deque<Reply<EventId>> window;
    const auto take = [&] {
      const auto id = window.front().get();
      EXPECT_TRUE(id) << id.error().message();
      window.pop_front();
    };
    for (int i = 0; i < count; ++i) {
      const std::string value = prefix + std::to_string(first + i);
      const Field field{"k", value};
      window.push_back(stream().append({&field, 1}));
      if (window.size() >= 32)
        take();
    }
    while (!window.empty())
      take();
  }
  /// The numbers behind each appender's letter, in the order in which they stand.
  [[nodiscard]] static std::map<char, std::vector<int>> by_appender(const std::vector<std::string>& values) {
    std::map<char, std::vector<int>> out;
    for (const std::string& value : values)
      out[value.at(0)].push_back(std::stoi(value.substr(1)));
    return out;
  }
  static void expect_in_order(const std::vector<int>& numbers, int count) {
    ASSERT_EQ(numbers.size(), static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i)
      ASSERT_EQ(numbers[static_cast<std::size_t>(i)], i);
  }
};

TEST_F(StreamLoad, BothAppendReadAndConsumeAsOneGroup) {
  std::mutex mutex;
  std::map<std::string, int> handled;  // guarded by mutex
  GroupConsumerOptions options;
  options.start = GroupStart::head;
  options.count = 50;
  options.min_idle = 60s;
  auto ours = GroupConsumer::start(
      stream().group("g").value(), "ours",
      [&](const StreamMessage& message) {
        const std::lock_guard lock(mutex);
        ++handled[*message.record.find("k")];
        return Handled::done;
      },
      options);
  ASSERT_TRUE(ours) << ours.error().message();
  // A second peer reads and acknowledges, while the first appends.
  NodePeer reader(server().url());
  const std::int64_t consuming = reader.start("group_run", "q",
                                              {{"stream", "s"},
                                               {"group", "g"},
                                               {"consumer", "theirs"},
                                               {"group_start", "head"},
                                               {"min_idle_ms", 60'000},
                                               {"calls", 1200},
                                               {"verdicts", json::object{}}});
  std::vector<std::int64_t> batches;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([this, thread] { append(std::string(1, static_cast<char>('a' + thread)), kOurs); });
  for (int at = 0; at < kTheirs; at += kBatch) {
    json::array records;
    for (int i = at; i < at + kBatch; ++i)
      records.push_back(json::array{json::array{"k", "n" + std::to_string(i)}});
    const json::value answer = ask("stream_append_batch", {{"stream", "s"}, {"records", std::move(records)}});
    ASSERT_TRUE(answer.is_object() && answer.as_object().contains("ok")) << json::serialize(answer);
    ASSERT_EQ(answer.at("ok").as_array().size(), std::size_t{kBatch});
  }
  for (std::thread& thread : threads)
    thread.join();
  const json::value theirs = reader.wait(consuming);
  constexpr int kAll = kThreads * kOurs + kTheirs;
  const auto all_handled = [&] {
    const std::lock_guard lock(mutex);
    return handled.size() + theirs.as_array().size() >= std::size_t{kAll};
  };
  for (const auto until = std::chrono::steady_clock::now() + 20s;
       !all_handled() && std::chrono::steady_clock::now() < until;)
    std::this_thread::sleep_for(5ms);
  ours->stop();
  // Each record once, by one of them; and nothing is left unacknowledged.
  std::map<std::string, int> times = handled;
  for (const json::value& row : theirs.as_array()) {
    ++times[std::string(row.at(1).at("k").as_string())];
    EXPECT_EQ(row.at(2).as_int64(), 1) << "handed out once";
  }
  EXPECT_GT(handled.size(), 0U);
  EXPECT_GT(theirs.as_array().size(), 0U);
  EXPECT_EQ(times.size(), std::size_t{kAll});
  for (const auto& [value, count] : times)
    ASSERT_EQ(count, 1) << value;
  EXPECT_EQ(client().command("XPENDING", "emq:{q}:stream:s", "g").get().value()[0].as_integer(), 0);

  // Both read the same, and each appender's records stand in its order.
  std::vector<std::string> values;
  std::vector<std::string> receipts;
  auto page = stream().read().get();
  while (page) {
    for (const Record& record : page->records) {
      values.push_back(*record.find("k"));
      receipts.emplace_back(record.id.value().text());
    }
    if (!page->rest)
      break;
    page = stream().read(page->rest->first, page->rest->second).get();
  }
  const json::value read = ask("stream_read", {{"stream", "s"}});
  ASSERT_EQ(read.at("ok").as_array().size(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const json::value& row = read.at("ok").at(i);
    ASSERT_EQ(std::string(row.at(0).as_string()), receipts[i]);
    ASSERT_EQ(std::string(row.at(1).at("k").as_string()), values[i]);
  }
  auto by = by_appender(values);
  for (int thread = 0; thread < kThreads; ++thread)
    expect_in_order(by[static_cast<char>('a' + thread)], kOurs);
  expect_in_order(by['n'], kTheirs);
  std::printf("%zu records by ours, %zu by the peer\n", handled.size(), theirs.as_array().size());
}

TEST_F(StreamLoad, StrangersReadTheFilesOfAnArchiveWhileItIsWritten) {
  char pattern[] = "/tmp/echomq-archive-XXXXXX";
  const std::string folder = ::mkdtemp(pattern);
  auto store = LocalSegments::open(folder).value();
  ArchiverOptions options;
  options.period = 10ms;
  options.segment_bytes = 20'000;
  options.frame_records = 100;
  options.retention.emplace();
  options.retention->keep.count = 100;
  auto archiver = Archiver::make(stream(), store, options);
  ASSERT_TRUE(archiver) << archiver.error().message();
  archiver->start();
  NodeProcess stranger("archive_reader.js", {folder});
  const auto look = [&](const std::string& line) {
    stranger.write_line(line);
    const auto answer = stranger.read_line(30s);
    EXPECT_TRUE(answer) << "no answer";
    return answer ? json::parse(*answer).as_object() : json::object{};
  };
  std::atomic<bool> done{false};
  std::atomic<std::size_t> lengths{0};
  int rounds = 0;
  std::thread ours([&] {
    // On a busy machine it may have been read once while the first of these came.
    for (; rounds < 10 || (lengths < 2 && rounds < 200); ++rounds)
      append("a", kOurs, rounds * kOurs);
    done = true;
  });
  std::int64_t looks = 0;
  std::set<std::int64_t> sizes;
  std::string fault;
  while (!done && fault.empty()) {
    const json::object seen = look("look");
    if (const json::value* told = seen.if_contains("fault")) {
      fault = std::string(told->as_string());
      break;
    }
    looks = seen.at("looks").as_int64();
    sizes.insert(seen.at("lines").as_int64());
    lengths = sizes.size();
    ask("stream_append", {{"stream", "s"}, {"fields", json::array{json::array{"k", "n" + std::to_string(looks - 1)}}}});
  }
  ours.join();
  EXPECT_EQ(fault, "");
  EXPECT_TRUE(archiver->fold()) << "the rest";
  archiver->stop();
  EXPECT_EQ(archiver->stats().errors, 0U);
  const json::object all = look("all");
  ASSERT_FALSE(all.contains("fault")) << json::serialize(all);
  std::vector<std::string> values;
  for (const json::value& value : all.at("values").as_array())
    values.emplace_back(value.as_string());
  auto by = by_appender(values);
  expect_in_order(by['a'], rounds * kOurs);
  expect_in_order(by['n'], static_cast<int>(looks));
  EXPECT_GT(sizes.size(), 1U) << "it was read while it grew";
  std::printf("%zu lines, read %lld times while they came, %zu lengths\n", values.size(), static_cast<long long>(looks),
              sizes.size());
  EXPECT_EQ(stranger.finish(10s), 0);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace echomq::interop
