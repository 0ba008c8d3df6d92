// The journal: what is told twice is admitted once, what was not told is told again, and the file is the canonical one.
#include <sqlite3.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>

#include "echomq/journal.hpp"
#include "echomq/queue.hpp"
#include "server/cache_fixture.hpp"
#include "support/journal_disk.hpp"
#include "support/played_node.hpp"

namespace echomq::test {
namespace {

namespace fs = std::filesystem;

constexpr LaneId kGroup{"PRT0NgWEfAE00X"};
constexpr JobId kJob1{"JOB0NgWEfAE001"};
constexpr JobId kJob2{"JOB0NgWEfAE002"};

class CacheJournalTest : public CacheServerTest {
 protected:
  void SetUp() override {
    CacheServerTest::SetUp();
    JournalDisk::install();
    JournalDisk::arm(JournalDisk::Then::count, 0);
    std::string name = (fs::temp_directory_path() / "echomq-journal-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] JournalOptions journal_options(JournalKeeps keeps = JournalKeeps::all) const {
    return {.folder = folder_, .group = kGroup, .table = "t", .keeps = keeps};
  }
  [[nodiscard]] CacheJournal journal(const JournalOptions& with) {
    auto opened = CacheJournal::open(client(), with);
    if (!opened)
      throw std::runtime_error(opened.error().message());
    return *std::move(opened);
  }
  [[nodiscard]] CacheJournal journal(JournalKeeps keeps = JournalKeeps::all) { return journal(journal_options(keeps)); }
  [[nodiscard]] static JobId job(std::uint64_t number) {
    return JobId(*BrandedId::encode("JOB", kJob1.value() + number));
  }
  [[nodiscard]] static BrandedId user(std::uint64_t number) {
    return *BrandedId::encode("USR", kUserA.value() + number);
  }
  [[nodiscard]] static BrandedId version(std::uint64_t number) {
    return *BrandedId::encode("USR", kV1.value() + number);
  }
  /// That no journal opens, for this reason, and that it names the file.
  void expect_refused(const JournalOptions& with, JournalErrc why, const std::string& says) {
    const auto refused = CacheJournal::open(client(), with);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, why) << refused.error().message();
    EXPECT_NE(refused.error().text.find("journal-PRT0NgWEfAE00X.db"), std::string::npos) << refused.error().text;
    EXPECT_NE(refused.error().text.find(says), std::string::npos) << refused.error().text;
  }
  [[nodiscard]] Queue queue() { return client().queue(coherence_queue("t")); }
  /// The payloads that wait in the journal's lane, in order.
  [[nodiscard]] std::vector<std::string> waiting() {
    std::vector<std::string> out;
    for (;;) {
      const auto job = queue().claim_lane().get();
      if (!job || !*job)
        return out;
      EXPECT_EQ((*job)->lane, kGroup);
      out.push_back((*job)->payload);
      EXPECT_TRUE(queue().complete((*job)->id, (*job)->token).get());
    }
  }
  [[nodiscard]] static std::string text(const BrandedId& id, const BrandedId& version) {
    return CoherenceMessage{id, version}.text();
  }
  [[nodiscard]] std::string file() const { return folder_ + "/journal-PRT0NgWEfAE00X.db"; }
  /// The first column of the first row of a statement, by another connection.
  [[nodiscard]] std::string asked(const std::string& sql) const {
    sqlite3* connection = nullptr;
    EXPECT_EQ(sqlite3_open(file().c_str(), &connection), SQLITE_OK);
    sqlite3_stmt* statement = nullptr;
    EXPECT_EQ(sqlite3_prepare_v2(connection, sql.c_str(), -1, &statement, nullptr), SQLITE_OK)
        << sqlite3_errmsg(connection);
    std::string out;
    if (sqlite3_step(statement) == SQLITE_ROW && sqlite3_column_text(statement, 0) != nullptr)
      out = reinterpret_cast<const char*>(sqlite3_column_text(statement, 0));
    sqlite3_finalize(statement);
    sqlite3_close(connection);
    return out;
  }

  std::string folder_;
};

TEST_F(CacheJournalTest, WhatIsToldIsWrittenDownAndAdmitted) {
  CacheJournal one = journal();
  const auto job = one.tell(kUserA, kV1);
  ASSERT_TRUE(job) << job.error().message();
  const auto stats = one.stats();
  ASSERT_TRUE(stats);
  EXPECT_EQ(stats->intents, 1U);
  EXPECT_EQ(stats->pending_enqueue, 0U);
  EXPECT_EQ(stats->remembered, 0U);
  EXPECT_EQ(stats->path, file());
  EXPECT_EQ(waiting(), std::vector<std::string>{text(kUserA, kV1)});
}

TEST_F(CacheJournalTest, NumbersBeginAtOneAndTheSameIntentHasOne) {
  CacheJournal one = journal();
  EXPECT_EQ(one.record(kJob1, kUserA, kV1), 1);
  EXPECT_EQ(one.record(kJob2, kUserB, kV1), 2);
  EXPECT_EQ(one.record(kJob1, kUserA, kV1), 1);
  const auto other = one.record(kJob1, kUserA, kV2);
  ASSERT_FALSE(other);
  EXPECT_TRUE(other.error().is(Errc::invalid_argument)) << other.error().message();
  const auto no_job = one.record(JobId(kUserA), kUserA, kV2);
  ASSERT_FALSE(no_job);
  EXPECT_TRUE(no_job.error().is(Errc::wrong_kind));
  EXPECT_EQ(one.stats()->intents, 2U);
}

// In the canonical runtime a repeated job id killed the journal in the middle of its transaction.
TEST_F(CacheJournalTest, SeveralAreWrittenDownTogetherOrNotAtAll) {
  CacheJournal one = journal();
  ASSERT_TRUE(one.record(kJob1, kUserA, kV1));
  const JournalIntent bad[] = {{kJob2, {kUserA, kV2}}, {kJob1, {kUserB, kV3}}};
  EXPECT_FALSE(one.record_many(bad));
  EXPECT_EQ(one.stats()->intents, 1U);
  const JournalIntent good[] = {{kJob1, {kUserA, kV1}}, {kJob2, {kUserA, kV2}}};
  EXPECT_EQ(one.record_many(good), (std::vector<std::int64_t>{1, 2}));
}

TEST_F(CacheJournalTest, AReplayTellsTheNewestOfEachAndMarksAlsoWhatWasThere) {
  CacheJournal one = journal();
  const JournalIntent intents[] = {
      {kJob1, {kUserA, kV1}}, {kJob2, {kUserA, kV2}}, {JobId("JOB0NgWEfAE003"), {kUserB, kV1}}};
  ASSERT_TRUE(one.record_many(intents));
  ASSERT_TRUE(queue().enqueue(text(kUserB, kV1), {.id = JobId("JOB0NgWEfAE003"), .lane = kGroup}).get());
  const auto told = one.replay();
  ASSERT_TRUE(told) << told.error().message();
  EXPECT_EQ(told->replayed, 1U);
  EXPECT_EQ(told->deduplicated, 1U);
  EXPECT_EQ(told->superseded, 1U);
  EXPECT_EQ(one.stats()->pending_enqueue, 1U) << "the superseded one, which nobody needs";
  EXPECT_EQ(asked("SELECT enqueued FROM intents WHERE job_id = 'JOB0NgWEfAE002'"), "1");
  EXPECT_EQ(waiting(), (std::vector<std::string>{text(kUserA, kV2), text(kUserB, kV1)}));
  // It was not applied here, so another replay tells it again, which harms nothing.
  EXPECT_EQ(one.replay()->replayed, 2U);
}

TEST_F(CacheJournalTest, AVersionIsAppliedOnceAndRemembered) {
  ByteCache cache = table(client(), options());
  CacheJournal one = journal();
  EXPECT_EQ(one.last_applied(kUserA).value(), std::nullopt);
  ASSERT_EQ(cache.put(kUserA, "one", kV1).get(), CachePut::stored);
  EXPECT_EQ(one.apply(cache, text(kUserA, kV2)), JournalApplied::applied);
  EXPECT_EQ(one.apply(cache, text(kUserA, kV2)), JournalApplied::remembered_stale);
  EXPECT_EQ(one.apply(cache, text(kUserA, kV1)), JournalApplied::remembered_stale);
  EXPECT_EQ(one.apply(cache, text(kUserA, kV3)), JournalApplied::stale) << "absent in L1, and remembered all the same";
  EXPECT_EQ(one.last_applied(kUserA).value(), kV3);
  EXPECT_TRUE(one.apply(cache, "no message").error().is(Errc::invalid_argument));
  EXPECT_TRUE(one.apply(cache, text(kOrder, kV1)).error().is(Errc::wrong_kind));
  EXPECT_EQ(one.last_applied(kOrder).value(), std::nullopt);
}

TEST_F(CacheJournalTest, CompactionKeepsWhatIsStillToBeTold) {
  ByteCache cache = table(client(), options());
  CacheJournal one = journal();
  const JournalIntent intents[] = {
      {kJob1, {kUserA, kV1}}, {kJob2, {kUserA, kV3}}, {JobId("JOB0NgWEfAE003"), {kUserB, kV2}}};
  ASSERT_TRUE(one.record_many(intents));
  ASSERT_TRUE(one.apply(cache, text(kUserB, kV2)));
  EXPECT_EQ(one.compact(), 2U) << "the applied one, and the older of the two";
  EXPECT_EQ(one.stats()->intents, 1U);
  EXPECT_EQ(one.replay()->replayed, 1U);
  EXPECT_EQ(waiting(), std::vector<std::string>{text(kUserA, kV3)});
  ASSERT_TRUE(one.apply(cache, text(kUserA, kV3)));
  EXPECT_EQ(one.compact(std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now())), 1U);
  EXPECT_EQ(one.stats()->intents, 0U);
  EXPECT_EQ(one.stats()->remembered, 0U);
}

TEST_F(CacheJournalTest, WhileTheServerIsAwayWhatIsToldStaysWrittenDown) {
  CacheJournal one = journal();
  ASSERT_TRUE(one.tell(kUserA, kV1));
  Client impatient = open(server().url(), {.deadline = 200ms});
  auto opened = CacheJournal::open(impatient, journal_options());
  ASSERT_TRUE(opened);
  server().kill();
  const CoherenceMessage two[] = {{kUserA, kV2}, {kUserB, kV1}};
  EXPECT_FALSE(opened->tell_many(two));
  EXPECT_EQ(opened->stats()->intents, 3U);
  EXPECT_EQ(opened->stats()->pending_enqueue, 2U);
  ASSERT_TRUE(server().restart());
  Result<JournalReplay> told = fail(Errc::timeout, "not yet");
  ASSERT_TRUE(eventually([&] { return (told = opened->replay()).has_value(); })) << told.error().message();
  EXPECT_EQ(opened->stats()->pending_enqueue, 0U);
  EXPECT_EQ(waiting(), (std::vector<std::string>{text(kUserA, kV2), text(kUserB, kV1)}));
}

TEST_F(CacheJournalTest, ALongReplayGoesInCallsOfAThousand) {
  CacheJournal one = journal(JournalKeeps::unless_power_fails);
  std::vector<JournalIntent> intents;
  for (std::uint64_t i = 0; i < 2500; ++i) {
    intents.push_back({job(i), {user(i), kV1}});
  }
  ASSERT_TRUE(one.record_many(intents));
  const auto before = client().stats().writes;
  const auto told = one.replay();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->replayed, 2500U);
  EXPECT_LT(client().stats().writes - before, 500U) << "no round trip a job";
  EXPECT_EQ(one.stats()->pending_enqueue, 0U);
}

TEST_F(CacheJournalTest, TheFileIsTheCanonicalOne) {
  {
    CacheJournal one = journal();
    ASSERT_TRUE(one.record(kJob1, kUserA, kV1));
  }
  EXPECT_EQ(asked("PRAGMA journal_mode"), "wal");
  EXPECT_EQ(asked("SELECT seq || job_id || name_id || version || enqueued FROM intents"),
            "1JOB0NgWEfAE001USR0NgWEfAE00AUSR0NgWEfAEJf10");
  EXPECT_EQ(asked("SELECT group_concat(name) FROM pragma_table_info('intents')"),
            "seq,job_id,name_id,version,enqueued,recorded_at");
  EXPECT_EQ(asked("SELECT group_concat(name) FROM pragma_table_info('applied')"), "name_id,version,seq");
  // What a peer writes is told, and what it has written that is no id is passed over.
  (void)asked(
      "INSERT INTO intents (job_id, name_id, version, recorded_at) VALUES ('JOB0NgWEfAE002', 'USR0NgWEfAE00B', "
      "'EVT0NgWEfAEJf3', 5)");
  (void)asked("INSERT INTO intents (job_id, name_id, version, recorded_at) VALUES ('x', 'y', 'z', 5)");
  CacheJournal one = journal();
  EXPECT_EQ(one.replay()->replayed, 2U);
  EXPECT_EQ(waiting(), (std::vector<std::string>{text(kUserA, kV1), text(kUserB, kV3)}));
}

// Ids of another table would supersede those of this one, and be told on its queue.
TEST_F(CacheJournalTest, AFileIsThatOfOneTable) {
  {
    CacheJournal one = journal();
    ASSERT_TRUE(one.record(kJob1, kUserA, kV1));
  }
  JournalOptions of_another = journal_options();
  of_another.table = "other";
  expect_refused(of_another, JournalErrc::other_table, "is the journal of the table 't', not of 'other'");
  EXPECT_EQ(journal().replay()->replayed, 1U) << "its own table has what it wrote";
  EXPECT_EQ(waiting(), std::vector<std::string>{text(kUserA, kV1)});
  of_another.folder = folder_ + "/other";
  fs::create_directory(of_another.folder);
  CacheJournal apart = journal(of_another);
  EXPECT_TRUE(apart.record(kJob2, kUserA, kV2));
}

TEST_F(CacheJournalTest, OfTwoTablesThatMakeAFileAtOnceOneHasIt) {
  for (int round = 0; round < 10; ++round) {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
    std::atomic<int> opened{0}, refused{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 6; ++i) {
      threads.emplace_back([&, i] {
        JournalOptions with = journal_options();
        with.table = i % 2 == 0 ? CacheName("t") : CacheName("other");
        const auto one = CacheJournal::open(client(), with);
        if (one) {
          ++opened;
        } else {
          refused += one.error().code == JournalErrc::other_table ? 1 : 0;
        }
      });
    }
    for (std::thread& thread : threads)
      thread.join();
    EXPECT_EQ(opened, 3);
    EXPECT_EQ(refused, 3);
  }
}

// The statements of the canonical runtime, on a file that we have made and while we have it open.
TEST_F(CacheJournalTest, APeerReadsAndWritesAFileOfOurs) {
  CacheJournal one = journal();
  ASSERT_TRUE(one.record(kJob1, kUserA, kV1));
  for (const char* sql :
       {"PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", "PRAGMA busy_timeout=5000",
        "CREATE TABLE IF NOT EXISTS intents (seq INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL UNIQUE, "
        "name_id "
        "TEXT NOT NULL, version TEXT NOT NULL, enqueued INTEGER NOT NULL DEFAULT 0, recorded_at INTEGER NOT NULL)",
        "CREATE TABLE IF NOT EXISTS applied (name_id TEXT PRIMARY KEY, version TEXT NOT NULL, seq INTEGER NOT NULL)",
        "INSERT INTO intents (job_id, name_id, version, recorded_at) VALUES ('JOB0NgWEfAE002', 'USR0NgWEfAE00B', "
        "'USR0NgWEfAEJf1', 5)",
        "UPDATE intents SET enqueued = 1 WHERE job_id = 'JOB0NgWEfAE002'",
        "INSERT INTO applied (name_id, version, seq) VALUES ('USR0NgWEfAE00A', 'USR0NgWEfAEJf1', 0)",
        "DELETE FROM intents WHERE EXISTS (SELECT 1 FROM applied a WHERE a.name_id = intents.name_id AND "
        "substr(a.version, 4) >= substr(intents.version, 4))"})
    (void)asked(sql);
  EXPECT_EQ(asked("SELECT group_concat(seq || job_id || name_id || version || enqueued) FROM intents"),
            "2JOB0NgWEfAE002USR0NgWEfAE00BUSR0NgWEfAEJf11");
  EXPECT_EQ(asked("SELECT group_concat(name_id || version || seq) FROM applied"), "USR0NgWEfAE00AUSR0NgWEfAEJf10");
  EXPECT_EQ(one.last_applied(kUserA).value(), kV1);
  EXPECT_EQ(one.replay()->replayed, 1U);
  EXPECT_EQ(waiting(), std::vector<std::string>{text(kUserB, kV1)});
  EXPECT_EQ(asked("PRAGMA integrity_check"), "ok");
}

// A loss of power may leave any beginning of the log: what is found then is what some call had left behind, never a part.
TEST_F(CacheJournalTest, FromAnyBeginningOfTheLogAWholeNumberOfCallsComesBack) {
  std::vector<std::string> at_rest;
  {
    CacheJournal one = journal();
    for (std::uint64_t call = 0; call < 12; ++call) {
      std::vector<JournalIntent> intents;
      for (std::uint64_t i = 0; i < 3; ++i) {
        intents.push_back({job(3 * call + i), {user(3 * call + i), kV1}});
      }
      ASSERT_TRUE(one.record_many(intents));
    }
    // Copied while it is open: nothing has been moved from the log into the file by a close.
    fs::create_directory(folder_ + "/copy");
    for (const char* end : {"", "-wal"})
      fs::copy_file(file() + end, folder_ + "/copy/journal-PRT0NgWEfAE00X.db" + end);
  }
  const std::string copy = folder_ + "/copy/journal-PRT0NgWEfAE00X.db";
  const auto size = fs::file_size(copy + "-wal");
  ASSERT_GT(size, 10'000U);
  std::uint64_t last = 0;
  for (std::uintmax_t keep = 0; keep <= size; keep += 997) {
    const std::string torn = folder_ + "/torn";
    fs::remove_all(torn);
    fs::create_directory(torn);
    fs::copy_file(copy, torn + "/journal-PRT0NgWEfAE00X.db");
    fs::copy_file(copy + "-wal", torn + "/journal-PRT0NgWEfAE00X.db-wal");
    fs::resize_file(torn + "/journal-PRT0NgWEfAE00X.db-wal", keep);
    JournalOptions there = journal_options();
    there.folder = torn;
    auto opened = CacheJournal::open(client(), there);
    ASSERT_TRUE(opened) << keep << ": " << opened.error().message();
    const std::uint64_t intents = opened->stats()->intents;
    EXPECT_EQ(intents % 3, 0U) << keep;
    EXPECT_GE(intents, last) << keep;
    last = intents;
  }
  EXPECT_GE(last, 33U);
}

TEST_F(CacheJournalTest, WhatCannotBeOpenedSaysWhy) {
  JournalOptions nowhere = journal_options();
  nowhere.folder = folder_ + "/not there";
  expect_refused(nowhere, JournalErrc::storage_failed, "not there");
  std::ofstream(file()) << "this is no database, and it is long enough to be looked at as one: "
                        << std::string(200, 'x');
  expect_refused(journal_options(), JournalErrc::broken, "not a database");
  for (const JournalOptions& bad : {JournalOptions{.folder = "", .group = kGroup, .table = "t"},
                                    JournalOptions{.folder = folder_, .group = kGroup, .table = "t", .busy = -1ms}}) {
    const auto refused = CacheJournal::open(client(), bad);
    ASSERT_FALSE(refused);
    EXPECT_TRUE(refused.error().is(Errc::invalid_argument)) << refused.error().message();
  }
}

TEST_F(CacheJournalTest, AFileOfSomethingElseIsLeftAlone) {
  (void)asked("CREATE TABLE customers (name TEXT)");
  expect_refused(journal_options(), JournalErrc::broken, "customers");
  EXPECT_EQ(asked("SELECT group_concat(name) FROM sqlite_schema"), "customers");
  EXPECT_EQ(asked("PRAGMA journal_mode"), "delete");
  fs::remove(file());
  (void)asked("CREATE TABLE intents (seq INTEGER PRIMARY KEY, what TEXT)");
  expect_refused(journal_options(), JournalErrc::broken, "no such column");
  EXPECT_EQ(asked("SELECT group_concat(name) FROM sqlite_schema"), "intents");
  EXPECT_EQ(asked("PRAGMA journal_mode"), "delete");
}

TEST_F(CacheJournalTest, ADamagedFileIsFoundWhenItIsOpened) {
  {
    CacheJournal one = journal();
    std::vector<JournalIntent> intents;
    for (std::uint64_t i = 0; i < 2000; ++i)
      intents.push_back({job(i), {user(i), kV1}});
    ASSERT_TRUE(one.record_many(intents));
  }
  ASSERT_FALSE(fs::exists(file() + "-wal")) << "the last who closes it moves all into the file";
  const auto whole = fs::file_size(file());
  ASSERT_GT(whole, 20U * 4096);
  // A page in the middle is overwritten; or the end is gone.
  const std::string copy = folder_ + "/copy";
  fs::copy_file(file(), copy);
  for (const std::uintmax_t page : {whole / 4096 / 2, whole / 4096 / 2 + 5}) {
    fs::copy_file(copy, file(), fs::copy_options::overwrite_existing);
    std::fstream(file(), std::ios::in | std::ios::out | std::ios::binary)
            .seekp(static_cast<std::streamoff>(page * 4096))
        << std::string(4096, '\xEE');
    expect_refused(journal_options(), JournalErrc::broken, "");
  }
  fs::copy_file(copy, file(), fs::copy_options::overwrite_existing);
  fs::resize_file(file(), whole / 2);
  expect_refused(journal_options(), JournalErrc::broken, "");
  fs::copy_file(copy, file(), fs::copy_options::overwrite_existing);
  EXPECT_EQ(journal().stats()->intents, 2000U);
}

// What a canonical peer has made: its tables, nothing of ours.
TEST_F(CacheJournalTest, AFileOfAPeerIsRead) {
  (void)asked("PRAGMA journal_mode=WAL");
  (void)asked(
      "CREATE TABLE intents (seq INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL UNIQUE, name_id TEXT NOT "
      "NULL, "
      "version TEXT NOT NULL, enqueued INTEGER NOT NULL DEFAULT 0, recorded_at INTEGER NOT NULL)");
  // Between the two tables it may have died.
  (void)asked(
      "INSERT INTO intents (job_id, name_id, version, recorded_at) VALUES ('JOB0NgWEfAE001', 'USR0NgWEfAE00A', "
      "'USR0NgWEfAEJf1', 5)");
  CacheJournal one = journal();
  EXPECT_EQ(one.replay()->replayed, 1U);
  EXPECT_EQ(waiting(), std::vector<std::string>{text(kUserA, kV1)});
  EXPECT_EQ(one.record(kJob2, kUserB, kV1), 2);
}

// A newer one that can not be told stands for none that can.
TEST_F(CacheJournalTest, WhatAPeerWroteThatIsNoIntentHidesNothing) {
  CacheJournal one = journal();
  ASSERT_TRUE(one.record(kJob1, kUserA, kV1));
  (void)asked(
      "INSERT INTO intents (job_id, name_id, version, recorded_at) VALUES "
      "('JOB0NgWEfAE002', 'USR0NgWEfAE00A', 'USRzzzzzzzzzzz', 5), ('no job', 'USR0NgWEfAE00A', 'USR0NgWEfAEJf3', 5), "
      "('EVT0NgWEfAE003', 'USR0NgWEfAE00A', 'USR0NgWEfAEJf3', 5), ('JOB0NgWEfAE004', 'USR0NgWEfAE00A', x'FF', 5)");
  (void)asked("INSERT INTO applied (name_id, version, seq) VALUES ('USR0NgWEfAE00B', 'old', 0)");
  EXPECT_EQ(one.compact(), 0U);
  const auto told = one.replay();
  ASSERT_TRUE(told) << told.error().message();
  EXPECT_EQ(told->replayed, 1U);
  EXPECT_EQ(told->superseded, 0U);
  EXPECT_EQ(told->unreadable, 4U);
  EXPECT_EQ(one.stats()->unreadable, 4U);
  EXPECT_EQ(waiting(), std::vector<std::string>{text(kUserA, kV1)});
  EXPECT_EQ(one.last_applied(kUserB).value(), std::nullopt);
}

// A row in no set refuses its job for ever; what comes behind it is told all the same.
TEST_F(CacheJournalTest, AJobThatIsRefusedStopsNoOther) {
  CacheJournal one = journal();
  const JournalIntent intents[] = {{kJob1, {kUserA, kV1}}, {kJob2, {kUserB, kV1}}};
  ASSERT_TRUE(one.record_many(intents));
  raw("HSET", "emq:{ecc.coh.t}:job:JOB0NgWEfAE001", "payload", "x", "attempts", "0");
  const auto told = one.replay();
  ASSERT_FALSE(told);
  EXPECT_TRUE(told.error().is(Errc::broken_state)) << told.error().message();
  EXPECT_EQ(waiting(), std::vector<std::string>{text(kUserB, kV1)});
  EXPECT_EQ(one.stats()->pending_enqueue, 1U);
  raw("DEL", "emq:{ecc.coh.t}:job:JOB0NgWEfAE001");
  EXPECT_TRUE(one.replay());
  EXPECT_EQ(one.stats()->pending_enqueue, 0U);
}

/// A server that admits jobs, but for the scripts of admission that it is told to refuse, counted from 1.
class CacheJournalPlayed : public CacheJournalTest {
 protected:
  void play(std::set<int> refused) {
    node_.begin(
        [this, refused = std::move(refused)](const PlayedNode::Words& words) -> std::optional<std::string> {
          if (words[0] != "EVALSHA")
            return "+OK\r\n";
          if (words[3] == "{emq}:nodes") {
            const auto now = std::chrono::system_clock::now().time_since_epoch();
            return "*3\r\n:5\r\n:60000\r\n:" +
                   std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) + "\r\n";
          }
          if (refused.contains(++scripts_))
            return "-ERR refused\r\n";
          // Behind the keys: base, group, when, value; then two parts a job.
          const std::size_t jobs = (words.size() - 3 - std::stoul(words[2]) - 4) / 2;
          std::string verdicts = "*" + std::to_string(jobs) + "\r\n";
          for (std::size_t i = 0; i < jobs; ++i)
            verdicts += ":1\r\n";
          return verdicts;
        },
        {});
    to_node_.emplace(open("valkey://" + node_.address()));
    auto opened = CacheJournal::open(*to_node_, journal_options());
    ASSERT_TRUE(opened) << opened.error().message();
    journal_.emplace(*std::move(opened));
  }
  [[nodiscard]] Result<std::vector<JobId>> tell(std::size_t count) {
    return journal_->tell_many(std::vector<CoherenceMessage>(count, CoherenceMessage{kUserA, kV1}));
  }
  [[nodiscard]] std::uint64_t pending() { return journal_->stats()->pending_enqueue; }

  std::atomic<int> scripts_{0};
  PlayedNode node_;
  std::optional<Client> to_node_;
  std::optional<CacheJournal> journal_;
};

// 250 jobs a script, four scripts a call.
TEST_F(CacheJournalPlayed, AnErrorOfSomeOfManyStopsNoneBehindThem) {
  ASSERT_NO_FATAL_FAILURE(play({2}));
  const auto told = tell(2500);
  ASSERT_FALSE(told);
  EXPECT_NE(told.error().text.find("refused"), std::string::npos) << told.error().message();
  EXPECT_EQ(scripts_, 10);
  EXPECT_EQ(pending(), 250U) << "for a replay";
}

TEST_F(CacheJournalPlayed, BehindACallOfWhichNothingWasAdmittedNoneIsSent) {
  ASSERT_NO_FATAL_FAILURE(play({5, 6, 7, 8}));
  ASSERT_FALSE(tell(2500));
  EXPECT_EQ(scripts_, 8);
  EXPECT_EQ(pending(), 1500U);
}

TEST_F(CacheJournalTest, AnAnswerHasWaitedForTheDiskOnce) {
  const auto flushes = [](CacheJournal& one) {
    EXPECT_TRUE(one.tell(kUserA, kV1));
    JournalDisk::arm(JournalDisk::Then::count, 0);
    EXPECT_TRUE(one.tell(kUserA, kV2));
    return JournalDisk::syncs();
  };
  {
    CacheJournal careful = journal();
    EXPECT_EQ(flushes(careful), 1);
  }
  CacheJournal quick = journal(JournalKeeps::unless_power_fails);
  EXPECT_EQ(flushes(quick), 0);
}

// At each step of the disk from which on it takes no more: an answer is kept, an error is not, and it goes on later.
TEST_F(CacheJournalTest, AFullDiskLosesNothingSilently) {
  ByteCache cache = table(client(), options());
  long refused_steps = 0;
  for (long at = 1, done = 0; done == 0; ++at) {
    SCOPED_TRACE("step " + std::to_string(at));
    JournalOptions here = journal_options();
    here.folder = folder_ + "/" + std::to_string(at);
    fs::create_directory(here.folder);
    CacheJournal one = journal(here);
    ASSERT_TRUE(one.record(job(0), user(0), version(0)));
    JournalDisk::arm(JournalDisk::Then::refuse, at);
    bool failed = false;
    const auto heed = [&](const auto& result) {
      if (!result) {
        failed = true;
        EXPECT_NE(result.error().code, JournalErrc::held) << result.error().message();
        EXPECT_NE(result.error().text.find("journal-"), std::string::npos) << result.error().message();
      }
      return result.has_value();
    };
    std::uint64_t intents = 1;
    for (std::uint64_t i = 1; i <= 3; ++i) {
      const JournalIntent two[] = {{job(2 * i), {user(i), version(i)}}, {job(2 * i + 1), {user(i), version(i + 1)}}};
      intents += heed(one.record_many(two)) ? 2U : 0U;
    }
    const bool remembered = heed(one.apply_and_remember(cache, user(0), version(0)));
    const auto compacted = one.compact();
    if (heed(compacted))
      intents -= *compacted;
    done = failed ? 0 : 1;
    refused_steps += failed ? 1 : 0;
    EXPECT_TRUE(one.stats()) << "what is there can still be read";
    EXPECT_EQ(one.stats().value_or(JournalStats()).intents, intents);
    JournalDisk::arm(JournalDisk::Then::count, 0);
    EXPECT_EQ(one.stats()->intents, intents);
    EXPECT_EQ(one.stats()->remembered, remembered ? 1U : 0U);
    EXPECT_TRUE(one.record(job(90), user(90), version(0))) << "with room again";
    {
      const CacheJournal closed = std::move(one);
    }
    CacheJournal again = journal(here);
    EXPECT_EQ(again.stats()->intents, intents + 1);
    ASSERT_LT(at, 500);
  }
  EXPECT_GT(refused_steps, 8);
}

// The file is bounded by what is still to be told, not by what ever was.
TEST_F(CacheJournalTest, ItCompactsItself) {
  JournalOptions with = journal_options(JournalKeeps::unless_power_fails);
  with.compact_every = 1000;
  CacheJournal one = journal(with);
  std::uint64_t most = 0;
  for (std::uint64_t round = 0; round < 60; ++round) {
    std::vector<JournalIntent> intents;
    for (std::uint64_t i = 0; i < 500; ++i)
      intents.push_back({job(round * 500 + i), {user(i % 100), version(round * 500 + i)}});
    ASSERT_TRUE(one.record_many(intents));
    most = std::max(most, one.stats()->intents);
  }
  EXPECT_LE(most, 1100U);
  EXPECT_LE(one.stats()->bytes, 400'000U);
  EXPECT_LE(fs::file_size(file() + "-wal"), 3'000'000U);
  ASSERT_TRUE(one.compact());
  EXPECT_EQ(one.stats()->intents, 100U);
  EXPECT_LE(one.stats()->bytes, 60'000U) << "space is given back";
  EXPECT_EQ(fs::file_size(file() + "-wal"), 0U);
  EXPECT_EQ(one.replay()->replayed, 100U);
}

TEST_F(CacheJournalTest, OneIdThatIsWrittenOverAndOverIsToldOnce) {
  JournalOptions with = journal_options(JournalKeeps::unless_power_fails);
  with.compact_every = 0;
  CacheJournal one = journal(with);
  std::vector<JournalIntent> intents;
  for (std::uint64_t i = 0; i < 50'000; ++i)
    intents.push_back({job(i), {kUserA, version(i)}});
  ASSERT_TRUE(one.record_many(intents));
  const auto begun = std::chrono::steady_clock::now();
  const auto told = one.replay();
  // Were each compared with each, it would be minutes.
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 20s);
  EXPECT_EQ(told->replayed, 1U);
  EXPECT_EQ(told->superseded, 49'999U);
  EXPECT_EQ(waiting(), std::vector<std::string>{text(kUserA, version(49'999))});
  EXPECT_EQ(one.compact(), 49'999U);
}

// Where the consumer has a journal of its own nothing is ever applied here.
TEST_F(CacheJournalTest, WhatWasAdmittedLongAgoMayBeForgotten) {
  CacheJournal one = journal();
  ASSERT_TRUE(one.tell(kUserA, kV1));
  ASSERT_TRUE(one.record(kJob1, kUserB, kV1));
  EXPECT_EQ(one.compact(), 0U);
  const auto now = [] {
    return std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
  };
  EXPECT_EQ(one.compact(now() - 1h), 0U);
  EXPECT_EQ(one.compact(now() + 1s), 1U) << "the admitted one; the other was never told";
  EXPECT_EQ(one.stats()->pending_enqueue, 1U);
}

TEST_F(CacheJournalTest, ManyMayMakeTheFileAtOnce) {
  for (int round = 0; round < 10; ++round) {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
    std::vector<std::thread> threads;
    std::atomic<int> failures{0};
    for (std::uint64_t i = 0; i < 6; ++i) {
      threads.emplace_back([&, i] {
        auto opened = CacheJournal::open(client(), journal_options());
        if (!opened || !opened->record(job(i), kUserA, kV1)) {
          ++failures;
          ADD_FAILURE() << (opened ? std::string("record") : opened.error().message());
        }
      });
    }
    for (std::thread& thread : threads)
      thread.join();
    ASSERT_EQ(failures, 0);
    EXPECT_EQ(journal().stats()->intents, 6U);
  }
}

TEST_F(CacheJournalTest, WhoWaitsTooLongForAnotherWriterIsTold) {
  JournalOptions with = journal_options();
  with.busy = 50ms;
  CacheJournal one = journal(with);
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(file().c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  const auto waited = one.record(kJob1, kUserA, kV1);
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().code, JournalErrc::held) << waited.error().message();
  expect_refused(with, JournalErrc::held, "locked");
  sqlite3_exec(other, "COMMIT", nullptr, nullptr, nullptr);
  sqlite3_close(other);
  EXPECT_EQ(one.record(kJob1, kUserA, kV1), 1);
}

TEST_F(CacheJournalTest, TwoProcessesMayShareAFile) {
  CacheJournal one = journal();
  CacheJournal two = journal();
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (CacheJournal* each : {&one, &two}) {
    threads.emplace_back([&, each] {
      for (std::uint64_t i = 0; i < 50; ++i)
        failures += each->record(JobId(*client().mint("JOB")), kUserA, kV1) ? 0 : 1;
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(one.stats()->intents, 100U);
}

}  // namespace
}  // namespace echomq::test
