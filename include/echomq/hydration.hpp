// `CacheHydration`: fills a cache table from a stream and follows it, newer wins (protocol document 4, section 8).
//
// Each record names an id and a value; the record's id is the version. What the table or the server has that is newer
// stays, so an old window may be read again, and a hydration that was killed goes on from any earlier position.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "echomq/cache.hpp"
#include "echomq/error.hpp"
#include "echomq/id.hpp"
#include "echomq/stream.hpp"

namespace echomq {
inline namespace v1 {

/// What becomes of a record that is none for this table: without one of the fields or a receipt, with an id that is none or
/// is of another kind.
enum class BadRecord : std::uint8_t { skip, stop };
enum class HydrationEnds : std::uint8_t {
  at_top,  ///< with the newest record
  never,   ///< it waits for more
};

struct HydrationOptions {
  std::string key_field = "key";
  std::string value_field = "value";
  /// Begins behind that entry, such as the `position` of an earlier run. Empty: with the oldest record.
  std::string behind{};
  /// Begins with records minted then or later. Not together with `behind`.
  std::optional<UnixMillis> since{};
  HydrationEnds ends = HydrationEnds::at_top;
  BadRecord bad = BadRecord::skip;
  std::uint32_t page = 1000;            ///< records a read, and of them one put an id; 1 to 10,000
  std::chrono::milliseconds poll{100};  ///< how often it looks for more; also how long it waits after a failure
};

struct HydrationStats {
  std::uint64_t records = 0;     ///< read
  std::uint64_t placed = 0;      ///< put, in both layers
  std::uint64_t superseded = 0;  ///< not put: the server had something newer
  std::uint64_t folded = 0;      ///< not put: the same page had a newer record of the id
  std::uint64_t skipped = 0;     ///< bad ones
  std::uint64_t failures = 0;    ///< reads and puts that failed, and were made again
  /// Times that records had been trimmed or deleted before they were read. One too many when a trim took just what had been
  /// read while there was more, or when it begins `behind` a record that is gone.
  std::uint64_t gaps = 0;
  std::string last_skipped;  ///< its entry id, and why
  std::string last_failure;  ///< what it was
  std::string position;      ///< entry id of the last record that is placed or skipped; empty before the first
  std::string top;           ///< of the stream, when it was looked at last
  /// By how much the newest record is younger than the last that is placed; 0 when they are the same.
  std::chrono::milliseconds lag{0};
};

/// Runs on a thread of its own. Move-only; thread-safe; the table and the client must outlive it.
class CacheHydration {
 public:
  /// Errors: invalid_argument naming the option.
  [[nodiscard]] static Result<CacheHydration> start(const ByteCache& cache, const Stream& stream,
                                                    HydrationOptions options = {});
  CacheHydration(CacheHydration&&) noexcept;
  CacheHydration& operator=(CacheHydration&&) noexcept;
  /// Stops.
  ~CacheHydration();

  /// Waits until it has ended or, when it never does, has placed all that was on the stream at this call.
  /// Errors: timeout; invalid_argument with the record that stopped it (`BadRecord::stop`); client_closed.
  Result<HydrationStats> wait(std::chrono::milliseconds limit) const;
  [[nodiscard]] HydrationStats stats() const;
  /// Ends after the page in hand. Idempotent.
  void stop();

 private:
  struct State;
  explicit CacheHydration(std::shared_ptr<State> state) noexcept;
  std::shared_ptr<State> state_;
};

}  // namespace v1
}  // namespace echomq
