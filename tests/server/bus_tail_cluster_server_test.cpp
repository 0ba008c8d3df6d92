// Tails and subjects in a cluster: streams of many slots, each record once and in order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/subjects.hpp"
#include "echomq/tail.hpp"
#include "echomq/testing/private_cluster.hpp"
#include "keyspace/slot.hpp"

namespace echomq::test {
namespace {

using namespace std::chrono_literals;

class BusTailCluster : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = testing::PrivateCluster::start();
    ASSERT_TRUE(started) << started.error().message();
    cluster_.emplace(*std::move(started));
    auto opened = Client::open(cluster_->url());
    ASSERT_TRUE(opened) << opened.error().message();
    client_.emplace(*std::move(opened));
  }
  template <typename Condition>
  [[nodiscard]] static bool comes_true(Condition condition) {
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until)
        return false;
      std::this_thread::sleep_for(2ms);
    }
    return true;
  }
  std::optional<testing::PrivateCluster> cluster_;
  std::optional<Client> client_;
};

TEST_F(BusTailCluster, StreamsOfAllNodesAndSubjects) {
  constexpr int kQueues = 6;
  constexpr int kRecords = 50;
  struct Reader {
    std::atomic<int> next = 0;
    std::atomic<int> wrong = 0;
  };
  std::array<Reader, kQueues> readers;
  std::vector<Tail> tails;
  std::vector<Stream> streams;
  for (std::size_t i = 0; i < readers.size(); ++i) {
    streams.push_back(client_->stream(*QueueName::parse("q" + std::to_string(i)), "s"));
    auto* const reader = &readers[i];
    auto tail = Tail::start(streams.back(), [reader](const TailMessage& message) {
      const int value = std::stoi(*message.record.find("k"));
      reader->wrong += value == reader->next ? 0 : 1;
      reader->next = value + 1;
    });
    ASSERT_TRUE(tail) << tail.error().message();
    tails.push_back(*std::move(tail));
  }
  std::atomic<int> subjects_heard = 0;
  const Subjects subjects(*client_, "q0");
  auto subject_tail = subjects.tail(*SubjectPattern::parse("eu.>"), [&](const TailMessage&) { ++subjects_heard; });
  ASSERT_TRUE(subject_tail) << subject_tail.error().message();
  for (int i = 0; i < kRecords; ++i) {
    const std::string value = std::to_string(i);
    const Field field{"k", value};
    for (const Stream& stream : streams)
      ASSERT_TRUE(stream.append({&field, 1}).get());
    if (i % 10 == 0) {
      ASSERT_TRUE(subjects.append("eu.de." + value, {&field, 1}).get());
    }
  }
  for (const Reader& reader : readers) {
    EXPECT_TRUE(comes_true([&] { return reader.next == kRecords; })) << reader.next;
    EXPECT_EQ(reader.wrong, 0);
  }
  EXPECT_TRUE(comes_true([&] { return subjects_heard == kRecords / 10; })) << subjects_heard;
}

}  // namespace
}  // namespace echomq::test
