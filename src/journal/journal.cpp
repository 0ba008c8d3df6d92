// The journal of coherence messages: an outbox, and what was applied, in one file.
#include "echomq/journal.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "client/core.hpp"
#include "echomq/queue.hpp"
#include "journal/database.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using journal::Database;
using journal::Statement;
using journal::Transaction;

/// Jobs of one call of a replay.
constexpr std::size_t kChunk = 1000;

/// The canonical tables. The index is ours: it makes the newest version of an id a look, not a scan. So is the last: its one row
/// is the name of the table whose messages these are, which the canonical ones do not say.
constexpr std::string_view kTables[] = {
    "CREATE TABLE IF NOT EXISTS intents (seq INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL UNIQUE, "
    "name_id TEXT NOT NULL, version TEXT NOT NULL, enqueued INTEGER NOT NULL DEFAULT 0, recorded_at INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS applied (name_id TEXT PRIMARY KEY, version TEXT NOT NULL, seq INTEGER NOT NULL)",
    "CREATE INDEX IF NOT EXISTS intents_newest ON intents (name_id, substr(version, 4) DESC)",
    "CREATE TABLE IF NOT EXISTS echomq_table (one INTEGER PRIMARY KEY CHECK (one = 1), name TEXT NOT NULL)",
};

constexpr std::string_view kInsert = "INSERT INTO intents (job_id, name_id, version, recorded_at) VALUES (?, ?, ?, ?)";
constexpr std::string_view kFind = "SELECT seq, name_id, version FROM intents WHERE job_id = ?";
constexpr std::string_view kMark = "UPDATE intents SET enqueued = 1 WHERE job_id = ?";
constexpr std::string_view kApplied = "SELECT version FROM applied WHERE name_id = ?";
constexpr std::string_view kRemember =
    "INSERT INTO applied (name_id, version, seq) VALUES (?, ?, 0) ON CONFLICT (name_id) DO UPDATE SET version = "
    "excluded.version WHERE substr(excluded.version, 4) > substr(applied.version, 4)";

// Versions compare by what follows the namespace, byte by byte, as text does here. Peers check less: what is no intent can
// not be told, so it stands for none that can.
#define ECHOMQ_JOURNAL_READABLE "echomq_is_intent(i.job_id, i.name_id, i.version)"
#define ECHOMQ_JOURNAL_APPLIED                                       \
  "EXISTS (SELECT 1 FROM applied a WHERE a.name_id = i.name_id AND " \
  "substr(a.version, 4) >= substr(i.version, 4))"
#define ECHOMQ_JOURNAL_SUPERSEDED                                               \
  "(" ECHOMQ_JOURNAL_READABLE                                                   \
  " AND i.seq <> (SELECT j.seq FROM intents j WHERE j.name_id = i.name_id AND " \
  "echomq_is_intent(j.job_id, j.name_id, j.version) ORDER BY substr(j.version, 4) DESC, j.seq LIMIT 1))"
constexpr std::string_view kUnreadable = "SELECT count(*) FROM intents i WHERE NOT " ECHOMQ_JOURNAL_READABLE;
constexpr std::string_view kToTell =
    "SELECT seq, job_id, name_id, version FROM intents i WHERE seq > ? AND " ECHOMQ_JOURNAL_READABLE
    " AND NOT " ECHOMQ_JOURNAL_APPLIED " AND NOT " ECHOMQ_JOURNAL_SUPERSEDED " ORDER BY seq LIMIT ?";

[[nodiscard]] bool is_intent(std::string_view job, std::string_view id, std::string_view version) {
  const auto parsed = JobId::parse(job);
  return parsed && parsed->is_job() && BrandedId::parse(id) && BrandedId::parse(version);
}

/// That a file, before anything is written to it, is empty or a sound journal.
[[nodiscard]] Result<void> is_ours(Database& database, const std::string& path) {
  constexpr std::string_view kColumns[][2] = {
      {"intents", "SELECT seq, job_id, name_id, version, enqueued, recorded_at FROM intents"},
      {"applied", "SELECT name_id, version, seq FROM applied"},
  };
  ECHOMQ_TRY(Statement tables, database.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE "
                                                "'sqlite%'"));
  std::string other;
  bool ours = false;
  for (;;) {
    ECHOMQ_TRY(const bool row, tables.step());
    if (!row)
      break;
    const std::string name(tables.text(0));
    const auto* const columns = std::ranges::find(kColumns, name, [](const auto& one) { return one[0]; });
    if (columns == std::end(kColumns)) {
      other = name;
      continue;
    }
    ours = true;
    ECHOMQ_CHECK(database.prepare((*columns)[1]));
  }
  if (!other.empty() && !ours)
    return journal::failed(JournalErrc::broken, path + " is no journal: it has the table '" + other + "'");
  ECHOMQ_TRY(const std::string sound, database.text("PRAGMA integrity_check(1)"));
  if (sound != "ok")
    return journal::failed(JournalErrc::broken, path + ": " + sound);
  return {};
}

/// That the file is `table`'s: its first opener's. Ids of two tables in one file would supersede each other, and a replay
/// would tell all of them on the queue of whoever calls it.
[[nodiscard]] Result<void> belongs_to(Database& database, const std::string& path, const CacheName& table) {
  ECHOMQ_TRY(const std::string name, database.text("SELECT name FROM echomq_table"));
  if (name.empty()) {
    ECHOMQ_TRY(Statement statement, database.prepare("INSERT INTO echomq_table (one, name) VALUES (1, ?)"));
    return statement.bind(1, table.text()).run();
  }
  if (name != table.text()) {
    return journal::failed(JournalErrc::other_table, path + " is the journal of the table '" + name + "', not of '" +
                                                         std::string(table.text()) +
                                                         "': each table needs a lane or a folder of its own");
  }
  return {};
}

/// Makes what is missing, and sees that whatever will be asked can be.
[[nodiscard]] Result<void> furnish(Database& database, const std::string& path, const CacheName& table) {
  ECHOMQ_CHECK(is_ours(database, path));
  // So that a compaction can give space back; holds for files that are made here.
  ECHOMQ_CHECK(database.run("PRAGMA auto_vacuum=INCREMENTAL"));
  ECHOMQ_CHECK(database.run("PRAGMA journal_mode=WAL"));
  ECHOMQ_CHECK(database.define("echomq_is_intent", is_intent));
  ECHOMQ_TRY(Transaction transaction, Transaction::begin(database));
  for (const std::string_view one : kTables)
    ECHOMQ_CHECK(database.run(one));
  ECHOMQ_CHECK(belongs_to(database, path, table));
  for (const std::string_view statement : {kInsert, kFind, kMark, kApplied, kRemember, kToTell})
    ECHOMQ_CHECK(database.prepare(statement));
  return transaction.commit();
}

[[nodiscard]] std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

[[nodiscard]] Result<void> not_on_our_threads() {
  if (detail::on_library_thread())
    return fail(Errc::would_deadlock, "a journal waits for the server: call it on a thread of your own");
  return {};
}

}  // namespace

struct CacheJournal::State {
  State(const Client& its_client, JournalOptions with, Database its_database, std::string its_path)
      : core(its_client.core()),
        options(std::move(with)),
        queue(its_client.queue(coherence_queue(options.table))),
        path(std::move(its_path)),
        database(std::move(its_database)) {}

  // All of these with the mutex held.

  /// Whether what follows waits for the disk when it is committed.
  [[nodiscard]] Result<Transaction> begin(bool for_good) {
    ECHOMQ_CHECK(database.flush(for_good && options.keeps == JournalKeeps::all));
    return Transaction::begin(database);
  }
  [[nodiscard]] Result<std::int64_t> insert(const JobId& job, const BrandedId& id, const BrandedId& version) {
    // Looked for first: an insert that meets a row takes a number all the same.
    ECHOMQ_TRY(Statement there, database.prepare(kFind));
    ECHOMQ_TRY(const bool found, there.bind(1, job.text()).step());
    if (found) {
      if (there.text(1) == id.text() && there.text(2) == version.text())
        return there.number(0);
      return fail(Errc::invalid_argument, "the job id " + std::string(job.text()) + " is that of another intent");
    }
    ECHOMQ_TRY(Statement statement, database.prepare(kInsert));
    ECHOMQ_CHECK(statement.bind(1, job.text()).bind(2, id.text()).bind(3, version.text()).bind(4, now_ms()).run());
    return database.last_number();
  }
  [[nodiscard]] Result<void> mark(std::span<const JobId> jobs) {
    ECHOMQ_TRY(Transaction transaction, begin(false));
    ECHOMQ_TRY(Statement statement, database.prepare(kMark));
    for (const JobId& job : jobs) {
      ECHOMQ_CHECK(statement.bind(1, job.text()).run());
      statement.again();
    }
    return transaction.commit();
  }
  [[nodiscard]] Result<std::optional<BrandedId>> applied(const BrandedId& id) {
    ECHOMQ_TRY(Statement statement, database.prepare(kApplied));
    ECHOMQ_TRY(const bool found, statement.bind(1, id.text()).step());
    // A peer's text that is no version is as if nothing were remembered: what comes replaces it.
    const auto version = BrandedId::parse(found ? statement.text(0) : std::string_view());
    return version ? std::optional<BrandedId>(*version) : std::nullopt;
  }
  [[nodiscard]] Result<void> remember(const BrandedId& id, const BrandedId& version) {
    ECHOMQ_CHECK(database.flush(false));
    ECHOMQ_TRY(Statement statement, database.prepare(kRemember));
    return statement.bind(1, id.text()).bind(2, version.text()).run();
  }
  [[nodiscard]] Result<std::uint64_t> count(std::string_view sql) {
    ECHOMQ_TRY(const std::int64_t number, database.number(sql));
    return static_cast<std::uint64_t>(number);
  }
  [[nodiscard]] Result<std::uint64_t> compact(std::optional<UnixMillis> forget_before) {
    std::int64_t deleted = 0;
    {
      ECHOMQ_TRY(Transaction transaction, begin(false));
      ECHOMQ_CHECK(
          database.run("DELETE FROM intents AS i WHERE " ECHOMQ_JOURNAL_APPLIED " OR " ECHOMQ_JOURNAL_SUPERSEDED));
      deleted = database.changes();
      if (forget_before) {
        ECHOMQ_TRY(Statement intents, database.prepare("DELETE FROM intents WHERE enqueued <> 0 AND recorded_at < ?"));
        ECHOMQ_CHECK(intents.bind(1, forget_before->time_since_epoch().count()).run());
        deleted += database.changes();
        ECHOMQ_TRY(const BrandedId bound, BrandedId::smallest_for("AAA", *forget_before));
        ECHOMQ_TRY(Statement remembered,
                   database.prepare("DELETE FROM applied WHERE substr(version, 4) < substr(?, 4)"));
        ECHOMQ_CHECK(remembered.bind(1, bound.text()).run());
      }
      ECHOMQ_CHECK(database.run("PRAGMA incremental_vacuum"));
      ECHOMQ_CHECK(transaction.commit());
    }
    // What was deleted is; that a reader or a full disk is in the way of the log's end is for the next time.
    [[maybe_unused]] const Result<void> given_back = database.run("PRAGMA wal_checkpoint(TRUNCATE)");
    return static_cast<std::uint64_t>(deleted);
  }
  /// After `more` intents were written down.
  void compact_by_itself(std::uint64_t more) {
    recorded += more;
    if (options.compact_every == 0 || recorded < compact_at)
      return;
    // When hardly anything can be deleted the next try is as far away as there are rows to look through.
    if (compact({})) {
      const auto left = count("SELECT count(*) FROM intents");
      compact_at = std::max(options.compact_every, left ? *left : 0);
    }
    recorded = 0;
  }
  [[nodiscard]] Result<std::vector<JournalIntent>> to_tell(std::int64_t after, std::int64_t& last) {
    const std::lock_guard lock(mutex);
    ECHOMQ_TRY(Statement statement, database.prepare(kToTell));
    statement.bind(1, after).bind(2, static_cast<std::int64_t>(kChunk));
    std::vector<JournalIntent> out;
    for (;;) {
      ECHOMQ_TRY(const bool row, statement.step());
      if (!row)
        return out;
      last = statement.number(0);
      ECHOMQ_TRY(const JobId job, JobId::parse(statement.text(1)));
      ECHOMQ_TRY(const BrandedId id, BrandedId::parse(statement.text(2)));
      ECHOMQ_TRY(const BrandedId version, BrandedId::parse(statement.text(3)));
      out.push_back({job, {id, version}});
    }
  }

  // Without it.

  /// Jobs to the queue, and a mark on those that it has, new or from before. The error of the call, or the first of its jobs,
  /// but for those whose rows are in their own way: that is noted in `refused`, for it will be so the next time.
  [[nodiscard]] Result<void> enqueue(std::span<const JournalIntent> intents, JournalReplay& told,
                                     std::optional<Error>& refused) {
    std::vector<std::string> payloads;
    std::vector<NewJob> jobs;
    payloads.reserve(intents.size());  // so that what the jobs point at stays where it is
    jobs.reserve(intents.size());
    for (const JournalIntent& intent : intents) {
      payloads.push_back(intent.message.text());
      jobs.push_back({payloads.back(), intent.job});
    }
    ECHOMQ_TRY(const auto admitted, queue.enqueue_many(jobs, {.lane = options.group}).get());
    std::vector<JobId> there;
    std::optional<Error> failed;
    for (std::size_t i = 0; i < admitted.size(); ++i) {
      if (admitted[i]) {
        ++(admitted[i]->verdict == Admitted::duplicate ? told.deduplicated : told.replayed);
        there.push_back(intents[i].job);
        continue;
      }
      std::optional<Error>& first = admitted[i].error().is(Errc::broken_state) ? refused : failed;
      if (!first)
        first = admitted[i].error();
    }
    if (!there.empty()) {
      // They are told, whether it can be noted or not: without a note they are told once more.
      const std::lock_guard lock(mutex);
      [[maybe_unused]] const Result<void> noted = mark(there);
    }
    if (failed)
      return fail(*std::move(failed));
    return {};
  }

  const std::shared_ptr<client::Core> core;
  const JournalOptions options;
  const Queue queue;
  const std::string path;
  std::mutex mutex;
  Database database;  // this and the next two: guarded by mutex
  std::uint64_t recorded = 0;
  std::uint64_t compact_at = options.compact_every;
};

Result<CacheJournal> CacheJournal::open(const Client& client, JournalOptions options) {
  if (options.folder.empty())
    return fail(Errc::invalid_argument, "folder must not be empty");
  if (options.busy < std::chrono::milliseconds(0) || options.busy > std::chrono::hours(1))
    return fail(Errc::invalid_argument, "busy must be 0 to 1 hour, got " + std::to_string(options.busy.count()) + "ms");
  std::string path = options.folder + "/journal-" + std::string(options.group.text()) + ".db";
  ECHOMQ_TRY(Database database, Database::open(path, options.busy));
  // Of two that turn a new file into a journal at once SQLite refuses one without waiting.
  for (const auto until = std::chrono::steady_clock::now() + options.busy;;) {
    const Result<void> ready = furnish(database, path, options.table);
    if (ready)
      break;
    if (ready.error().code != JournalErrc::held || std::chrono::steady_clock::now() >= until)
      return fail(ready.error());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return CacheJournal(std::make_unique<State>(client, std::move(options), std::move(database), std::move(path)));
}

CacheJournal::CacheJournal(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
CacheJournal::CacheJournal(CacheJournal&&) noexcept = default;
CacheJournal& CacheJournal::operator=(CacheJournal&&) noexcept = default;
CacheJournal::~CacheJournal() = default;

Result<JobId> CacheJournal::tell(const BrandedId& id, const BrandedId& version) {
  const CoherenceMessage message{id, version};
  ECHOMQ_TRY(const std::vector<JobId> jobs, tell_many({&message, 1}));
  return jobs.front();
}

Result<std::vector<JobId>> CacheJournal::tell_many(std::span<const CoherenceMessage> messages) {
  ECHOMQ_CHECK(not_on_our_threads());
  std::vector<JournalIntent> intents;
  std::vector<JobId> jobs;
  for (const CoherenceMessage& message : messages) {
    ECHOMQ_TRY(const BrandedId job, state_->core->mint("JOB"));
    intents.push_back({JobId(job), message});
    jobs.emplace_back(job);
  }
  if (intents.empty())
    return jobs;
  ECHOMQ_CHECK(record_many(intents));
  JournalReplay told;
  std::optional<Error> first;
  for (std::size_t at = 0; at < intents.size(); at += kChunk) {
    const std::uint64_t before = told.replayed + told.deduplicated;
    std::optional<Error> refused;
    const Result<void> sent =
        state_->enqueue(std::span(intents).subspan(at, std::min(kChunk, intents.size() - at)), told, refused);
    if (!first)
      first = sent ? std::move(refused) : std::optional<Error>(sent.error());
    // A call of which nothing was admitted may have waited for its deadline, and so would each of the others.
    if (!sent && told.replayed + told.deduplicated == before)
      break;
  }
  if (first)
    return fail(*std::move(first));
  return jobs;
}

Result<JournalReplay> CacheJournal::replay() {
  ECHOMQ_CHECK(not_on_our_threads());
  JournalReplay told;
  {
    const std::lock_guard lock(state_->mutex);
    ECHOMQ_TRY(told.superseded, state_->count("SELECT count(*) FROM intents i WHERE NOT " ECHOMQ_JOURNAL_APPLIED
                                              " AND " ECHOMQ_JOURNAL_SUPERSEDED));
    ECHOMQ_TRY(told.unreadable, state_->count(kUnreadable));
  }
  std::optional<Error> refused;
  for (std::int64_t last = 0;;) {
    const std::int64_t after = last;
    ECHOMQ_TRY(const std::vector<JournalIntent> intents, state_->to_tell(after, last));
    if (intents.empty())
      break;
    ECHOMQ_CHECK(state_->enqueue(intents, told, refused));
  }
  if (refused)
    return fail(*std::move(refused));
  return told;
}

Result<JournalApplied> CacheJournal::apply(const ByteCache& cache, std::string_view payload) {
  ECHOMQ_TRY(const CoherenceMessage message, CoherenceMessage::parse(payload));
  return apply_and_remember(cache, message.id, message.version);
}

Result<JournalApplied> CacheJournal::apply_and_remember(const ByteCache& cache, const BrandedId& id,
                                                        const BrandedId& version) {
  const std::lock_guard lock(state_->mutex);
  ECHOMQ_TRY(const std::optional<BrandedId> before, state_->applied(id));
  if (before && !is_newer(version, *before))
    return JournalApplied::remembered_stale;
  // The row first: a crash in between applies it again, the other order would never.
  ECHOMQ_TRY(const Applied outcome, cache.apply(id, version));
  ECHOMQ_CHECK(state_->remember(id, version));
  return outcome == Applied::applied ? JournalApplied::applied : JournalApplied::stale;
}

Result<std::optional<BrandedId>> CacheJournal::last_applied(const BrandedId& id) {
  const std::lock_guard lock(state_->mutex);
  return state_->applied(id);
}

Result<std::uint64_t> CacheJournal::compact(std::optional<UnixMillis> forget_before) {
  const std::lock_guard lock(state_->mutex);
  return state_->compact(forget_before);
}

Result<JournalStats> CacheJournal::stats() {
  const std::lock_guard lock(state_->mutex);
  JournalStats out{.path = state_->path};
  ECHOMQ_TRY(out.intents, state_->count("SELECT count(*) FROM intents"));
  ECHOMQ_TRY(out.pending_enqueue, state_->count("SELECT count(*) FROM intents WHERE enqueued = 0"));
  ECHOMQ_TRY(out.remembered, state_->count("SELECT count(*) FROM applied"));
  ECHOMQ_TRY(out.unreadable, state_->count(kUnreadable));
  ECHOMQ_TRY(out.bytes, state_->count("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"));
  return out;
}

Result<std::int64_t> CacheJournal::record(const JobId& job, const BrandedId& id, const BrandedId& version) {
  const JournalIntent intent{job, {id, version}};
  ECHOMQ_TRY(const std::vector<std::int64_t> numbers, record_many({&intent, 1}));
  return numbers.front();
}

Result<std::vector<std::int64_t>> CacheJournal::record_many(std::span<const JournalIntent> intents) {
  for (const JournalIntent& intent : intents) {
    if (!intent.job.is_job())
      return fail(Errc::wrong_kind, "'" + std::string(intent.job.text()) + "' is no job id");
  }
  const std::lock_guard lock(state_->mutex);
  ECHOMQ_TRY(Transaction transaction, state_->begin(true));
  std::vector<std::int64_t> numbers;
  for (const JournalIntent& intent : intents) {
    ECHOMQ_TRY(const std::int64_t number, state_->insert(intent.job, intent.message.id, intent.message.version));
    numbers.push_back(number);
  }
  ECHOMQ_CHECK(transaction.commit());
  state_->compact_by_itself(intents.size());
  return numbers;
}

Result<void> CacheJournal::mark_enqueued(std::span<const JobId> jobs) {
  const std::lock_guard lock(state_->mutex);
  return state_->mark(jobs);
}

}  // namespace v1
}  // namespace echomq
