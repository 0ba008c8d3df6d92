// What several tables of a cache did and said, and whether that may be: a checker of histories of versions.
//
// Versions of an id are one order, that of the source of truth. A table is right when it behaves like a register that only
// grows, as far as it can know: what it reads is at least what it was told, what it has written and what it has read
// before; and whatever nobody told it of it still reads once its time is over.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace echomq::model {

/// One event. `begin` and `end` are stamps of one order that all tables share (steps, or nanoseconds of one clock).
struct CacheEvent {
  enum class Kind : std::uint8_t {
    written,  ///< the source of truth has `version` (a value, or `absent`: none) from `begin` on
    placed,   ///< a put of `version` through `table` was answered as stored or superseded: L2 has it, or a newer one
    heard,    ///< at `end` the table had been told of `version`
    read,     ///< an answer
    /// At `end` an `invalidate` through the table had ended; when it began the source had `version`. Against what loads alone
    /// have brought, for a put that was under way comes after it; of any table, or (`of_own`) of this one.
    invalidated,
    dropped,  ///< the same of a drop of the id's tag; against what stood under the tag
    /// At `end` a row was deleted in L2, or was over that had less time than others: an older put on its way may come after it.
    ended,
  };
  Kind kind = Kind::read;
  int table = 0;
  int id = 0;
  std::uint64_t version = 0;  ///< of an absent answer nothing
  bool said =
      true;  ///< of what is heard: the version was, not only that the row had changed. If not, it holds until it `ended`
  bool absent = false;
  bool stale = false;   ///< the answer was marked so
  bool loaded = false;  ///< of a read: nobody has put that version
  bool own = false;     ///< of a read: only this table has loaded it until then, and nobody put it
  bool of_own = false;  ///< of an invalidation: against the table's own loads alone
  bool tagged = false;  ///< of a read: that version was always put or loaded under the id's tag
  /// Of a read: how long at most that version lives where it is kept, when not as long as others.
  std::optional<std::int64_t> lives_ms = std::nullopt;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t begin_ms = 0;
  std::int64_t end_ms = 0;
};

/// What is asked of a history.
struct CacheBounds {
  std::int64_t fresh_ms = 0;  ///< after so long since a newer version was placed no answer is older
  std::int64_t stale_ms = 0;  ///< nor one marked stale
  std::int64_t slack_ms = 0;  ///< of both, what is not the row's time to live: of versions that have their own
  bool read = true;           ///< what it has read, too: not where rows are deleted, for L2 may then get older ones
};

/// The first read that may not be, and why; nothing when all may.
[[nodiscard]] std::optional<std::string> find_violation(const std::vector<CacheEvent>& history, CacheBounds bounds);

}  // namespace echomq::model
