// `CacheJournal`: an outbox for coherence messages of the job lane, in a file of this host (protocol document 4, section 14).
//
// A writer that changes its source of truth and then dies before it has told the caches leaves them with an old row until
// its time is over. With a journal what is to be told is written down first; `replay` tells again whatever may not have
// been heard. Job ids are chosen before a job is sent, so what is told twice is admitted once.
//
// Part of the library `echomq::journal`, which needs SQLite; the file is the canonical one, and peers may share it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include "echomq/cache.hpp"
#include "echomq/client.hpp"
#include "echomq/error.hpp"
#include "echomq/id.hpp"

namespace echomq {
inline namespace v1 {

/// What goes wrong with journals alone; `error.code == JournalErrc::held`. Stable numbers, category `echomq.journal`. The text
/// names the file.
enum class JournalErrc : int {
  held = 1,    ///< another process wrote to the file for longer than `JournalOptions::busy`
  broken = 2,  ///< the file is damaged, or it is that of something else
  storage_failed =
      3,  ///< the file system refused: the disk is full, there is no such folder, the file may not be written to
  other_table = 4,  ///< the file is the journal of another table: give each a lane or a folder of its own
};
[[nodiscard]] const std::error_category& journal_error_category() noexcept;
[[nodiscard]] inline std::error_code make_error_code(JournalErrc code) noexcept {
  return {static_cast<int>(code), journal_error_category()};
}

/// What of the journal outlives what.
enum class JournalKeeps : std::uint8_t {
  /// An intent that was answered for outlives a loss of power: one flush to the disk a `tell` or `record` (`synchronous=FULL`).
  /// What was noted of its way since (admitted, applied) may be lost with power: then it is told, or applied, once more.
  all,
  /// It outlives the death of the process; a loss of power may take the calls of the last moments, never older ones alone
  /// (`synchronous=NORMAL`, as the canonical runtime has it).
  unless_power_fails,
};

struct JournalOptions {
  std::string folder{};  ///< is there; the file is `<folder>/journal-<group>.db`
  LaneId group;          ///< the lane of the jobs, and the name of the file
  CacheName table;       ///< whose coherence queue is written to; the file is that of the first table it was opened for
  JournalKeeps keeps = JournalKeeps::all;
  /// How long a call waits for another process that writes to the same file.
  std::chrono::milliseconds busy{5000};
  /// After so many intents the journal compacts itself, at the latest when it has doubled since; 0: only `compact` does.
  std::uint64_t compact_every = 10'000;
};

struct JournalStats {
  std::uint64_t intents = 0;
  std::uint64_t pending_enqueue = 0;  ///< of those: not known to have been admitted
  std::uint64_t remembered = 0;       ///< ids whose last applied version is known
  std::uint64_t unreadable = 0;       ///< intents of peers that are no ids: they can not be told, and stay
  std::uint64_t bytes = 0;            ///< of the file, without its log
  std::string path;
};

struct JournalReplay {
  std::uint64_t replayed = 0;      ///< told again
  std::uint64_t deduplicated = 0;  ///< whose job was still there
  std::uint64_t superseded = 0;    ///< not told: a newer version of the same id is written down
  std::uint64_t unreadable = 0;    ///< not told: no ids
};

/// What became of a message that a consumer was given.
enum class JournalApplied : std::uint8_t {
  applied,           ///< L1 had an older row, which is gone
  stale,             ///< L1 had none, or one at least as new
  remembered_stale,  ///< a version at least as new was applied before: L1 was not asked
};

/// One thing to be told, with the id of its job.
struct JournalIntent {
  JobId job;
  CoherenceMessage message;
};

/// A journal. Move-only; any number of threads may call, one at a time writes.
///
/// Errors of all: `JournalErrc`, with SQLite's own text; nothing of the call is kept then.
class CacheJournal {
 public:
  /// Opens or makes the file, and looks through it for damage. Errors: also invalid_argument.
  [[nodiscard]] static Result<CacheJournal> open(const Client& client, JournalOptions options);
  CacheJournal(CacheJournal&&) noexcept;
  CacheJournal& operator=(CacheJournal&&) noexcept;
  ~CacheJournal();

  // The writer's side: source of truth, put, then one of these.

  /// Writes down what is to be told, enqueues it on `ecc.coh.<table>` in the journal's lane, and notes that it was admitted.
  /// Waits for the disk and the server; not on a thread of the library.
  /// Errors: would_deadlock; and those of an enqueue: then it stands in the journal, and `replay` tells it. That the note fails
  /// is no error: it is told once more then.
  Result<JobId> tell(const BrandedId& id, const BrandedId& version);
  /// Several, in one transaction and 1,000 a call; their job ids, in order. Errors as `tell`, the first there was; what could be
  /// admitted is, but that after a call of which nothing was (the server is away, or full) no other is sent.
  Result<std::vector<JobId>> tell_many(std::span<const CoherenceMessage> messages);
  /// Tells again what nobody here is known to have applied, with the job ids of then: of each id the newest version alone,
  /// in the order of writing, 1,000 a call. For the start of a process, and after an error of `tell`.
  /// Errors as `tell`; what was admitted before is noted, and another replay goes on. broken_state: rows of such jobs are in the
  /// queue's way (`Queue::enqueue`); all others have been told.
  Result<JournalReplay> replay();

  // The consumer's side: one consumer with one L1 a queue.

  /// Applies a job's payload to the table, unless a version at least as new was applied before, and remembers it.
  /// Errors: also invalid_argument for a payload that is no message, wrong_kind: such a job is no better the next time.
  Result<JournalApplied> apply(const ByteCache& cache, std::string_view payload);
  Result<JournalApplied> apply_and_remember(const ByteCache& cache, const BrandedId& id, const BrandedId& version);
  Result<std::optional<BrandedId>> last_applied(const BrandedId& id);

  // Upkeep, and the steps of `tell` one by one.

  /// Deletes intents that a version at least as new was applied of, or that a newer intent of the same id stands for. Gives the
  /// space back. The number of intents deleted.
  /// With `forget_before` also intents written down before and admitted, and what is remembered of versions minted before. Where
  /// the consumer keeps a journal of its own nothing else bounds the file: choose an instant longer ago than the table's `ttl`, by
  /// then no row that they were about is left.
  Result<std::uint64_t> compact(std::optional<UnixMillis> forget_before = {});
  Result<JournalStats> stats();
  /// The intent's number, from 1 on. The same intent again gives its number; the job id with another message:
  /// invalid_argument.
  Result<std::int64_t> record(const JobId& job, const BrandedId& id, const BrandedId& version);
  /// All or none; numbers in order.
  Result<std::vector<std::int64_t>> record_many(std::span<const JournalIntent> intents);
  Result<void> mark_enqueued(std::span<const JobId> jobs);

 private:
  struct State;
  explicit CacheJournal(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace v1
}  // namespace echomq

template <>
struct std::is_error_code_enum<echomq::JournalErrc> : std::true_type {};
