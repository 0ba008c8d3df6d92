// The order of records when several processes with clocks apart append to one stream at once.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "chaos/child_program.hpp"
#include "server/bus_fixture.hpp"

namespace echomq::test {
namespace {

constexpr int kProcesses = 4;
constexpr int kAppenders = 2;  // of a process
constexpr auto kApart = 50ms;  // each process's clock from the next one's
constexpr std::size_t kInFlight = 1000;

/// The child: appends from several threads without waiting, and writes down what became of each record, in call order:
/// `<appender> <number> <receipt>`, or the error in its place.
TEST(OrderChild, DISABLED_Append) {
  const std::string url = variable("ECHOMQ_CHILD_URL");
  if (url.empty())
    GTEST_SKIP() << "started by the tests below, with their server's address";
  const int process = std::atoi(variable("ECHOMQ_CHILD_NUMBER").c_str());
  const int records = std::atoi(variable("ECHOMQ_CHILD_RECORDS").c_str());
  auto client = Client::open(url);
  ASSERT_TRUE(client) << client.error().message();
  const Stream stream = skewed_stream(*client, process * kApart);
  // All processes begin together.
  ASSERT_TRUE(client->command("INCR", "ready").get());
  while (!client->command("GET", "begin").get().value().as_text())
    std::this_thread::sleep_for(1ms);
  std::vector<std::thread> threads;
  for (int t = 0; t < kAppenders; ++t) {
    threads.emplace_back([&, name = std::to_string(process * kAppenders + t)] {
      std::ofstream out(variable("ECHOMQ_CHILD_RESULTS") + "." + name);
      std::deque<Reply<EventId>> replies;
      int taken = 0;
      const auto take = [&] {
        const auto id = replies.front().get();
        out << name << ' ' << taken++ << ' ' << (id ? std::string(id->text()) : "! " + id.error().message()) << '\n';
        replies.pop_front();
      };
      for (int i = 0; i < records; ++i) {
        const std::string value = std::to_string(i);
        const Field fields[] = {{"appender", name}, {"number", value}};
        replies.push_back(stream.append(fields));
        if (replies.size() >= kInFlight)
          take();
      }
      while (!replies.empty())
        take();
      out << "end\n";
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

class BusOrder : public BusServerTest {
 protected:
  void SetUp() override {
    BusServerTest::SetUp();
    char pattern[] = "/tmp/echomq-order-XXXXXX";
    folder_ = ::mkdtemp(pattern);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void append_from_all(int records_of_an_appender) {
    std::vector<std::unique_ptr<ChildProgram>> children;
    for (int i = 0; i < kProcesses; ++i) {
      children.push_back(std::make_unique<ChildProgram>(
          "OrderChild.DISABLED_Append", std::vector<std::pair<std::string, std::string>>{
                                            {"ECHOMQ_CHILD_URL", server().url()},
                                            {"ECHOMQ_CHILD_NUMBER", std::to_string(i)},
                                            {"ECHOMQ_CHILD_RECORDS", std::to_string(records_of_an_appender)},
                                            {"ECHOMQ_CHILD_RESULTS", folder_ + "/receipts"}}));
    }
    const auto started_by = std::chrono::steady_clock::now() + 60s;
    while (raw("GET", "ready").as_text().value_or("") != std::to_string(kProcesses)) {
      ASSERT_LT(std::chrono::steady_clock::now(), started_by);
      std::this_thread::sleep_for(5ms);
    }
    const auto begin = std::chrono::steady_clock::now();
    raw("SET", "begin", "1");
    const auto until = begin + 600s;
    for (auto& child : children) {
      while (!child->ended() && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(5ms);
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

    const std::int64_t ahead =
        (EventId::from_entry_id(stream().info().get().value().top).value().minted_at().time_since_epoch() -
         std::chrono::duration_cast<Milliseconds>(std::chrono::system_clock::now().time_since_epoch()))
            .count();

    // What the appenders were told.
    std::map<std::string, std::pair<std::string, int>> told;  // receipt: appender, number
    std::size_t refused = 0;
    for (int a = 0; a < kProcesses * kAppenders; ++a) {
      std::ifstream in(folder_ + "/receipts." + std::to_string(a));
      std::string line, last;
      while (std::getline(in, line)) {
        last = line;
        std::istringstream words(line);
        std::string appender, receipt;
        int number = 0;
        if (!(words >> appender >> number >> receipt))
          continue;
        if (receipt == "!") {
          ++refused;
          ADD_FAILURE() << line;
          continue;
        }
        EXPECT_TRUE(told.emplace(receipt, std::pair(appender, number)).second) << "given twice: " << line;
      }
      ASSERT_EQ(last, "end") << "appender " << a << " has not ended";
    }
    EXPECT_EQ(refused, 0U);
    const std::size_t all_records = static_cast<std::size_t>(records_of_an_appender) * kProcesses * kAppenders;
    EXPECT_EQ(told.size(), all_records);

    // What stands.
    std::map<std::string, int> next;
    std::size_t stand = 0;
    std::size_t turns = 0;
    std::string last;
    auto page = stream().read().get();
    for (;;) {
      ASSERT_TRUE(page) << page.error().message();
      for (const Record& record : page->records) {
        ++stand;
        ASSERT_TRUE(record.id);
        ASSERT_EQ(record.entry, record.id->entry_id().text());
        const std::string& appender = *record.find("appender");
        const int number = std::stoi(*record.find("number"));
        ASSERT_EQ(number, next[appender]++) << "the records of appender " << appender << " stand in its call order";
        const auto found = told.find(std::string(record.id->text()));
        ASSERT_NE(found, told.end()) << "nobody was told of " << record.entry;
        ASSERT_EQ(found->second, std::pair(appender, number));
        turns += appender != last ? 1 : 0;
        last = appender;
      }
      if (!page->rest)
        break;
      page = stream().read(page->rest->first, page->rest->second).get();
    }
    EXPECT_EQ(stand, all_records);
    EXPECT_GT(turns, 8U) << "the appenders did not append at the same time";
    std::printf("%zu records by %d appenders in %d processes, %.1f s, %zu turns, %zu refused, top %lld ms ahead\n",
                stand, kProcesses * kAppenders, kProcesses, seconds, turns, refused, static_cast<long long>(ahead));
  }

 private:
  std::string folder_;
};

TEST_F(BusOrder, EightAppendersInFourProcessesWithClocksApart) { append_from_all(5'000); }

class LongRunBusOrder : public BusOrder {};

TEST_F(LongRunBusOrder, AMillionRecordsOfEightAppendersInFourProcesses) { append_from_all(125'000); }

}  // namespace
}  // namespace echomq::test
