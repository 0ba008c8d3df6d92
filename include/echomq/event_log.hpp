// `EventLog`: what became of a queue's jobs, as a log on the server that can be read again; and `LogTail`, which follows it.
//
// The events channel (events.hpp) tells who listens at that moment. This log is written by the scripts that move the jobs, in the same step:
// when a job has moved, its entry stands, whoever died meanwhile. It is off until somebody turns it on, for the whole fleet, and
// bounded. What a runtime does with scripts of its own is not in it. An extension: protocol/README.md, `log`.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/error.hpp"
#include "echomq/id.hpp"
#include "echomq/names.hpp"
#include "echomq/reply.hpp"

namespace echomq {
inline namespace v1 {

/// What is kept.
struct LogOptions {
  /// Entries, about: up to a hundred and those of one call more; >= 1. An entry is 100 to 200 bytes on the server.
  std::uint64_t most = 100'000;
  /// Older ones may go: whenever a newer one is written. Absent: only `most` bounds.
  std::optional<std::chrono::milliseconds> age{};
  /// Claims too (`active`): an entry more a run.
  bool claims = false;
  std::optional<std::chrono::milliseconds> deadline{};
};

/// One entry.
struct LogEntry {
  /// The server's own, `<Unix ms>-<number>`; later ones are higher.
  std::string id;
  /// By the server's clock; never before that of an earlier entry.
  UnixMillis time{};
  /// docs/events.md lists them. New ones may come.
  std::string event;
  /// Absent where the event is of the whole queue: `opened`, `closed`, `obliterated`.
  std::optional<JobId> job;
  /// Claims of the job so far, as its row says.
  std::uint64_t attempts = 0;
  std::optional<std::string> lane;
  /// What else it says: `error` (512 bytes at most), `due` in Unix ms, ...
  std::vector<std::pair<std::string, std::string>> extra;

  /// The value of that name in `extra`, null when there is none.
  [[nodiscard]] const std::string* find(std::string_view name) const noexcept;
};

/// A place in the log, behind an entry. Keep its `text` to go on there later, in any process.
struct LogCursor {
  std::uint64_t milliseconds = 0;  ///< of the entry id
  std::uint64_t number = 0;
  /// How many entries had ever been added up to here; by it a gap is found, and counted. Absent: not known.
  std::optional<std::uint64_t> passed;

  /// The first entry that is kept.
  [[nodiscard]] static LogCursor beginning() noexcept { return {}; }
  /// Before the first entry of that instant.
  [[nodiscard]] static LogCursor since(UnixMillis instant) noexcept;
  [[nodiscard]] std::string text() const;
  /// Of `text`. Errors: invalid_argument.
  [[nodiscard]] static Result<LogCursor> parse(std::string_view text);
  friend bool operator==(const LogCursor&, const LogCursor&) = default;
};

/// Entries that had gone before the reader came.
struct LogGap {
  /// How many; absent when that cannot be known, perhaps none: the cursor did not know how many entries it had passed, or the log was
  /// deleted and begun anew.
  std::optional<std::uint64_t> missed;
  UnixMillis from{};   ///< where the reader was
  UnixMillis until{};  ///< the first entry that is there; where nothing is, as `from`
  bool begun_anew = false;
};

struct LogPage {
  std::vector<LogEntry> entries;  ///< oldest first
  LogCursor next;                 ///< behind the last one
  bool more = false;              ///< there may be more at once
  std::optional<LogGap> gap;      ///< before the first entry of the page
};

struct LogReadOptions {
  std::uint32_t count = 1000;         ///< of one page; 1 to 10,000
  std::optional<UnixMillis> until{};  ///< the last instant that is wanted
  std::optional<std::chrono::milliseconds> deadline{};
};

struct LogInfo {
  bool on = false;
  std::uint64_t most = 0;
  std::optional<std::chrono::milliseconds> age;
  bool claims = false;
  std::uint64_t length = 0;
  std::uint64_t added = 0;  ///< ever, since the log was begun
  std::uint64_t lost = 0;   ///< could not be written, since it was turned on: the key held something else
  std::string first;        ///< entry id; empty when there is none
  LogCursor end;            ///< behind the newest entry
};

/// The log of one queue. Cheap to copy; thread-safe; keeps the client's core alive, not open.
class EventLog {
 public:
  EventLog(const Client& client, const QueueName& queue);

  [[nodiscard]] const QueueName& queue() const noexcept;

  // Errors of all: invalid_argument (naming the argument), client_closed, forked, overloaded, timeout, unreachable, outcome_unknown, and
  // those of the server: server_error (WRONGTYPE), out_of_memory, no_permission.

  /// Turns the log on, or changes what it keeps: whether it was on before. Holds for all processes, from that step of the server on.
  /// Script `log_set`; keys `logging`, `log`, `meta`.
  Reply<bool> turn_on(LogOptions options = {}) const;
  /// Nothing is written any more; what is there stays for a week. Whether it was on.
  Reply<bool> turn_off() const;
  /// Turns it off and deletes it. Whether it was on.
  Reply<bool> forget() const;

  /// A page behind the cursor, and whether something is missing there. Script `log_read`.
  [[nodiscard]] Reply<LogPage> read(const LogCursor& from = {}, LogReadOptions options = {}) const;
  [[nodiscard]] Reply<LogInfo> info() const;

  struct State;
  /// For the rest of this room.
  [[nodiscard]] const State& internal() const noexcept { return *state_; }

 private:
  std::shared_ptr<const State> state_;
};

/// What a `LogTail` tells, on its own thread, in the log's order. What is thrown is counted.
using LogEntryHandler = std::function<void(const LogEntry& entry, const LogCursor& behind)>;
using LogGapHandler = std::function<void(const LogGap& gap)>;

struct LogTailOptions {
  LogEntryHandler on_entry{};
  LogGapHandler on_gap{};
  /// Where to begin; absent: at the end, with what comes.
  std::optional<LogCursor> from{};
  /// How long it waits on the server at a time; >= 1 ms.
  std::chrono::milliseconds beat{5000};
};

struct LogTailStats {
  std::uint64_t entries = 0;
  std::uint64_t gaps = 0;
  std::uint64_t errors = 0;          ///< commands that failed: they are repeated
  std::uint64_t handler_errors = 0;  ///< exceptions that left a handler
};

/// Follows a log until it is stopped: reads on behind its cursor, also after a lost connection or a server that was away, and tells of what
/// went meanwhile. Waits on the server over a connection of its own. Move-only; the destructor stops it.
class LogTail {
 public:
  /// Errors: invalid_argument; those of the first read.
  [[nodiscard]] static Result<LogTail> start(const EventLog& log, LogTailOptions options);
  LogTail(LogTail&&) noexcept;
  LogTail& operator=(LogTail&&) noexcept;
  ~LogTail();

  /// Returns when no handler runs any more; from a handler it only asks.
  void stop();
  /// Behind the last entry that was told.
  [[nodiscard]] LogCursor cursor() const;
  [[nodiscard]] LogTailStats stats() const;

 private:
  class Loop;
  explicit LogTail(std::shared_ptr<Loop> loop) noexcept;
  std::shared_ptr<Loop> loop_;
};

}  // namespace v1
}  // namespace echomq
