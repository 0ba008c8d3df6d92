// The journal under kill -9, a full disk and other processes: whatever a writer had been answered for is told in the end,
// in order, and once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "chaos/child_program.hpp"
#include "echomq/journal.hpp"
#include "echomq/queue.hpp"
#include "echomq/testing/private_server.hpp"
#include "support/journal_disk.hpp"

namespace echomq::test {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr LaneId kGroup{"PRT0NgWEfAE00X"};
constexpr std::uint64_t kFirst = BrandedId{"USR0NgWEfAE00A"}.value();

[[nodiscard]] CacheJournal open_journal(const Client& client, const std::string& folder, const CacheName& table) {
  auto opened = CacheJournal::open(client, {.folder = folder, .group = kGroup, .table = table});
  if (!opened)
    throw std::runtime_error(opened.error().message());
  return *std::move(opened);
}

/// What children have, from the variables of their parent.
class JournalChild : public ::testing::Test {
 protected:
  void SetUp() override {
    if (variable("ECHOMQ_TEST_URL").empty())
      GTEST_SKIP() << "started by the tests below, with their server's address";
    folder_ = variable("ECHOMQ_TEST_FOLDER");
    begin_ = std::strtoull(variable("ECHOMQ_TEST_BEGIN").c_str(), nullptr, 10);
    table_.emplace(*CacheName::parse(variable("ECHOMQ_TEST_TABLE")));
    auto opened = Client::open(variable("ECHOMQ_TEST_URL"));
    ASSERT_TRUE(opened);
    client_.emplace(*std::move(opened));
    said_.open(folder_ + "/said", std::ios::app);
  }
  [[nodiscard]] static BrandedId id(std::uint64_t number) { return *BrandedId::encode("USR", kFirst + number); }
  [[nodiscard]] BrandedId version() { return *client_->mint("USR"); }
  [[nodiscard]] JobId job() { return *client_->mint_job(); }
  /// That a call has answered for this.
  void say(const BrandedId& id, const BrandedId& version) {
    said_ << id.text() << ' ' << version.text() << std::endl;  // NOLINT: at once
  }

  std::string folder_;
  std::uint64_t begin_ = 0;
  std::optional<CacheName> table_;
  std::optional<Client> client_;
  std::ofstream said_;
};

TEST_F(JournalChild, DISABLED_Tells) {
  CacheJournal journal = open_journal(*client_, folder_, *table_);
  for (std::uint64_t i = 0;; ++i) {
    const BrandedId of = id(begin_ + i % 7), at = version();
    ASSERT_TRUE(journal.tell(of, at));
    say(of, at);
  }
}

/// All that a journal does, once; dies at the step of the disk that it is told.
TEST_F(JournalChild, DISABLED_DoesEverything) {
  JournalDisk::install();
  auto cache = ByteCache::open(*client_, {.table = *table_, .kind = "USR"});
  ASSERT_TRUE(cache);
  JournalDisk::arm(JournalDisk::Then::die, static_cast<long>(begin_));
  CacheJournal journal = open_journal(*client_, folder_, *table_);
  const JobId first = job();
  BrandedId at = version();
  ASSERT_TRUE(journal.record(first, id(0), at));
  say(id(0), at);
  ASSERT_TRUE(client_->queue(coherence_queue(*table_))
                  .enqueue(CoherenceMessage{id(0), at}.text(), {.id = first, .lane = kGroup})
                  .get());
  ASSERT_TRUE(journal.mark_enqueued({&first, 1}));
  at = version();
  ASSERT_TRUE(journal.tell(id(0), at));
  say(id(0), at);
  std::vector<CoherenceMessage> several;
  for (const std::uint64_t number : {1, 2, 0})
    several.push_back({id(number), version()});
  ASSERT_TRUE(journal.tell_many(several));
  for (const CoherenceMessage& one : several)
    say(one.id, one.version);
  std::vector<JournalIntent> later;
  for (const std::uint64_t number : {1, 3, 2, 2})
    later.push_back({job(), {id(number), version()}});
  ASSERT_TRUE(journal.record_many(later));
  for (const JournalIntent& one : later)
    say(one.message.id, one.message.version);
  ASSERT_TRUE(journal.replay());
  ASSERT_TRUE(journal.apply_and_remember(*cache, later.front().message.id, later.front().message.version));
  ASSERT_TRUE(journal.compact());
  at = version();
  ASSERT_TRUE(journal.record(job(), id(4), at));
  say(id(4), at);
  ASSERT_TRUE(journal.replay());
  {
    const CacheJournal closed = std::move(journal);
  }
  said_ << "end" << std::endl;  // NOLINT: at once
}

/// Tells until files may grow no more, and says what it was told then.
TEST_F(JournalChild, DISABLED_FillsTheDisk) {
  CacheJournal journal = open_journal(*client_, folder_, *table_);
  const rlimit bound{2'000'000, 2'000'000};
  ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &bound), 0);
  std::string refused;
  int refusals = 0;
  for (std::uint64_t i = 0; refusals < 20 && i < 10'000; ++i) {
    const BrandedId at = version();
    const auto told = journal.tell(id(i), at);
    if (told) {
      say(id(i), at);
      continue;
    }
    ++refusals;
    refused = told.error().message();
  }
  const auto stats = journal.stats();
  std::ofstream(folder_ + "/refused") << refusals << ' ' << (stats ? stats->intents : 0) << ' ' << refused;
}

class JournalKill : public ::testing::Test {
 protected:
  using Messages = std::vector<std::pair<std::string, std::string>>;

  void SetUp() override {
    auto started = echomq::testing::PrivateServer::start({.listen = echomq::testing::Listen::unix_socket});
    ASSERT_TRUE(started);
    server_.emplace(*std::move(started));
    auto opened = Client::open(server_->url());
    ASSERT_TRUE(opened);
    client_.emplace(*std::move(opened));
    std::string name = (fs::temp_directory_path() / "echomq-journal-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    another();
  }
  void TearDown() override { fs::remove_all(root_); }
  /// A folder and a table nobody has used.
  void another() {
    const std::string number = std::to_string(++folders_);
    folder_ = root_ + "/" + number;
    fs::create_directory(folder_);
    table_ = "t" + number;
  }

  [[nodiscard]] ChildProgram child(const std::string& what, std::uint64_t begin) const {
    return ChildProgram("JournalChild.DISABLED_" + what, {{"ECHOMQ_TEST_FOLDER", folder_},
                                                          {"ECHOMQ_TEST_TABLE", table_},
                                                          {"ECHOMQ_TEST_URL", server_->url()},
                                                          {"ECHOMQ_TEST_BEGIN", std::to_string(begin)}});
  }
  static void end(ChildProgram& one) {
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (!one.ended() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(500us);
    ASSERT_TRUE(one.ended());
  }
  /// What children have been answered for, and whether one came to its end.
  [[nodiscard]] Messages said(bool* ended = nullptr) const {
    Messages out;
    std::ifstream file(folder_ + "/said");
    for (std::string id, version; file >> id;) {
      if (id == "end") {
        if (ended != nullptr)
          *ended = true;
      } else if (file >> version && version.size() == 14) {
        out.emplace_back(id, version);
      }
    }
    return out;
  }
  [[nodiscard]] CacheJournal journal() const { return open_journal(*client_, folder_, *CacheName::parse(table_)); }
  /// After a replay: all jobs of the lane, in order.
  [[nodiscard]] Messages told() const {
    CacheJournal again = journal();
    const auto replayed = again.replay();
    EXPECT_TRUE(replayed) << replayed.error().message();
    Messages out;
    const Queue queue = client_->queue(coherence_queue(*CacheName::parse(table_)));
    for (;;) {
      const auto job = queue.claim_lane().get();
      if (!job || !*job)
        return out;
      const auto message = CoherenceMessage::parse((*job)->payload);
      EXPECT_TRUE(message);
      out.emplace_back(message->id.text(), message->version.text());
      EXPECT_TRUE(queue.complete((*job)->id, (*job)->token).get());
    }
  }
  static std::set<std::string> ids_of(const Messages& messages) {
    std::set<std::string> ids;
    for (const auto& [id, version] : messages)
      ids.insert(id);
    return ids;
  }
  /// Of each id something at least as new as what was answered for is told; each once, and in order.
  static void expect_all_of(const Messages& answered, const Messages& heard) {
    std::map<std::string, std::string> newest;
    for (const auto& [id, version] : heard) {
      EXPECT_LT(newest[id], version) << "of " << id << ": out of order, or twice";
      newest[id] = version;
    }
    for (const auto& [id, version] : answered)
      EXPECT_GE(newest[id], version) << id << " was answered for and is not told";
  }

  std::optional<echomq::testing::PrivateServer> server_;
  std::optional<Client> client_;
  std::string root_, folder_, table_;
  int folders_ = 0;
};

// Before, in and after each write, flush, lock and barrier of all that a journal does.
TEST_F(JournalKill, AtEachStepOfTheDisk) {
  std::uint64_t step = 1;
  for (bool ended = false; !ended && !HasFailure(); ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    ASSERT_LT(step, 2000U);
    another();
    ChildProgram one = child("DoesEverything", step);
    end(one);
    const Messages answered = said(&ended);
    const Messages heard = told();
    expect_all_of(answered, heard);
    CacheJournal again = journal();
    EXPECT_TRUE(again.compact());
    EXPECT_EQ(again.stats()->pending_enqueue, 0U) << "but for superseded ones, which are gone now";
    fs::remove_all(folder_);
  }
  RecordProperty("steps", std::to_string(step));
  EXPECT_GT(step, 60U) << "or the child has ended before it did everything";
}

TEST_F(JournalKill, AtAnyMomentWhatWasAnsweredForIsTold) {
  const auto seed = static_cast<unsigned>(std::chrono::steady_clock::now().time_since_epoch().count());
  std::minstd_rand random(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (std::uint64_t round = 0; round < 8; ++round) {
    ChildProgram one = child("Tells", round * 10'000);
    const std::size_t enough = said().size() + 1 + random() % 30;
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (said().size() < enough && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    one.kill();
  }
  const Messages answered = said();
  const Messages heard = told();
  ASSERT_GE(answered.size(), 8U);
  expect_all_of(answered, heard);
  // At most one a round was under way when its writer died.
  EXPECT_LE(heard.size(), answered.size() + 8);
}

TEST_F(JournalKill, ProcessesThatShareAFileLoseNothing) {
  std::vector<std::unique_ptr<ChildProgram>> writers;
  // All of them make the file.
  for (std::uint64_t i = 0; i < 3; ++i)
    writers.push_back(std::make_unique<ChildProgram>(
        "JournalChild.DISABLED_Tells",
        std::vector<std::pair<std::string, std::string>>{{"ECHOMQ_TEST_FOLDER", folder_},
                                                         {"ECHOMQ_TEST_TABLE", table_},
                                                         {"ECHOMQ_TEST_URL", server_->url()},
                                                         {"ECHOMQ_TEST_BEGIN", std::to_string(i * 10'000)}}));
  {
    CacheJournal here = journal();
    const auto until = std::chrono::steady_clock::now() + 60s;
    std::uint64_t deleted = 0;
    // On a busy machine one of them may begin when the others have written all that.
    while ((said().size() < 600 || ids_of(said()).size() < 21 || deleted == 0) &&
           std::chrono::steady_clock::now() < until) {
      EXPECT_TRUE(here.replay());
      const auto now = here.compact();
      ASSERT_TRUE(now) << now.error().message();
      deleted += *now;
    }
    EXPECT_GT(deleted, 0U);
  }
  for (const auto& one : writers)
    EXPECT_FALSE(one->ended()) << "a writer gave up";
  for (const auto& one : writers)
    one->kill();
  const Messages answered = said();
  EXPECT_GE(answered.size(), 600U);
  EXPECT_EQ(ids_of(answered).size(), 21U) << "each of the three has written";
  expect_all_of(answered, told());
}

TEST_F(JournalKill, AFullDiskIsToldOfAndLosesNothing) {
  ChildProgram one = child("FillsTheDisk", 0);
  end(one);
  std::ifstream file(folder_ + "/refused");
  std::size_t refusals = 0, intents = 0;
  std::string why;
  file >> refusals >> intents;
  std::getline(file, why);
  const Messages answered = said();
  EXPECT_EQ(refusals, 20U);
  EXPECT_GE(answered.size(), 10U);
  EXPECT_EQ(intents, answered.size()) << "nothing is kept of what was refused";
  EXPECT_THAT(why, ::testing::HasSubstr("storage failed"));
  EXPECT_THAT(why, ::testing::HasSubstr("journal-PRT0NgWEfAE00X.db"));
  const Messages heard = told();
  expect_all_of(answered, heard);
  EXPECT_EQ(heard.size(), answered.size());
  // With room again it goes on.
  CacheJournal again = journal();
  EXPECT_TRUE(again.tell(*BrandedId::encode("USR", kFirst), *client_->mint("USR")));
  EXPECT_EQ(again.stats()->intents, answered.size() + 1);
}

}  // namespace
}  // namespace echomq::test
