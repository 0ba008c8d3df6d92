// Whether a reader of a stream has missed records that were removed before it came to them. No I/O.
//
// A server says how many entries were ever added to a stream (`entries-added`); a reader knows how many it has passed, once it has
// been at a place of which that is known. So what it missed is counted, wherever it was removed. Where the reader began in the past,
// its place is not known: then what the stream begins with tells whether anything behind it can be missing.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bus/checks.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {

/// What a server says of a stream at one moment.
struct StreamLook {
  std::uint64_t added = 0;           ///< ever
  std::uint64_t length = 0;          ///< of these that are there; 0 too for a stream that is none
  std::optional<EntryNumber> first;  ///< the oldest that is there
  EntryNumber top;                   ///< the highest ever
};

/// As `TailGap`.
struct MissedRecords {
  std::optional<std::uint64_t> missed;
  EntryNumber from;
  EntryNumber until;
  bool begun_anew = false;
};

/// Of one cursor. Of one thread.
class GapWatch {
 public:
  /// Begins behind an entry; `passed`: how many had been added up to there, when that is known.
  explicit GapWatch(EntryNumber behind, std::optional<std::uint64_t> passed = {})
      : cursor_(behind), clean_(behind), passed_(passed) {}

  /// Whether it counts. Until it does, it must look after each read.
  [[nodiscard]] bool counts() const noexcept { return passed_.has_value(); }
  /// Records behind the cursor were read, and the cursor has moved behind them.
  [[nodiscard]] std::optional<MissedRecords> read(const std::vector<EntryNumber>& records);
  /// What the stream was like after the last read, and before the next one.
  [[nodiscard]] std::optional<MissedRecords> looked(const StreamLook& look);

 private:
  /// Entries up to `at` are `added`, by the server.
  [[nodiscard]] std::optional<MissedRecords> compare(EntryNumber at, std::uint64_t added);
  /// A look while it does not count.
  [[nodiscard]] std::optional<MissedRecords> find_place(const StreamLook& look, std::uint64_t removed, bool at_end,
                                                        bool nothing_left);

  EntryNumber cursor_;
  /// Up to here nothing is missing that was not told.
  EntryNumber clean_;
  /// How many had been added up to the cursor, by what was read.
  std::optional<std::uint64_t> passed_;
  /// What the reader will have passed when it has come to this entry.
  struct Ahead {
    EntryNumber at;
    std::uint64_t added;
  };
  std::optional<Ahead> ahead_;
  std::vector<EntryNumber> last_;  ///< the last read, while it does not count
};

}  // namespace bus
}  // namespace v1
}  // namespace echomq
