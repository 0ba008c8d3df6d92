// `Tail`: follows streams as they grow. All tails of a client share its connections, however many there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "echomq/error.hpp"
#include "echomq/stream.hpp"

namespace echomq {
inline namespace v1 {

/// A record of a followed stream. Valid during the call of the handler only.
struct TailMessage {
  const Stream& stream;
  const Record& record;
};
/// Called on the client's executor, one record at a time and in the order of its stream. It must not wait for answers of
/// the client there; the next records of all tails of the client wait for it. An exception is counted.
using TailHandler = std::function<void(const TailMessage&)>;
/// Called there too: the stream cannot be read any more, such as one whose key holds something else now, or a closed client.
using TailErrorHandler = std::function<void(const Stream& stream, const Error& why)>;

/// Records that were removed before the tail had read them: trimmed, or deleted alone.
struct TailGap {
  /// How many; absent when that cannot be known, perhaps none: the tail began behind an entry that is not there any more, or the
  /// stream was deleted and begun anew.
  std::optional<std::uint64_t> missed;
  std::string from;   ///< they were between this entry id, behind which it has looked,
  std::string until;  ///< and this one
  bool begun_anew = false;
};
/// Called there too, when it is noticed: before the records of a page that is read in the past, else a second after at the latest
/// while records come, and when a lost connection is back.
using TailGapHandler = std::function<void(const Stream& stream, const TailGap& gap)>;

/// A stream to follow, and from where.
struct TailSource {
  Stream stream;
  /// The entry behind which to begin, such as a `Tail::position` of an earlier run or a `position_before`. Empty: with what is
  /// appended from now on. `0`: with the oldest record.
  std::string behind = {};
};

struct TailOptions {
  TailErrorHandler on_error = {};
  TailGapHandler on_gap = {};
};

/// Counters only grow.
struct TailStats {
  std::uint64_t records = 0;         ///< handed to the handler
  std::uint64_t handler_errors = 0;  ///< exceptions that left it
  std::uint64_t gaps = 0;            ///< as `on_gap` is told
  std::uint64_t missed = 0;          ///< records of these, as far as they could be counted
};

/// Follows streams until it is stopped or destroyed. Move-only; thread-safe.
///
/// Each record comes once, in the order of its stream, whatever becomes of the connection. What was removed before it was read is
/// not there to come; it is told as a gap, and counted (`TailGap`), by a look at the stream (XINFO) once a second while records come. Tails of one stream share its reading: one XREAD that waits on the server carries all streams of the
/// client, over one connection; in a cluster one for each slot. A tail that begins in the past reads XRANGE pages until
/// it has come to where the others are. Idle it costs the server a command in five seconds, for all of them.
/// Where streams are many and records come one by one, reads are put off so that they take a small part of the server's time: by
/// a millisecond for each 125 streams.
class Tail {
 public:
  /// Answers when the positions are known, one round trip for all: what is appended afterwards comes. Errors: invalid_argument (naming
  /// the argument), would_deadlock on a thread of the library, and those of `Stream::info`, such as server_error for a key that is
  /// no stream.
  [[nodiscard]] static Result<Tail> start(std::span<const TailSource> sources, TailHandler handler,
                                          TailOptions options = {});
  [[nodiscard]] static Result<Tail> start(const Stream& stream, TailHandler handler, std::string behind = {},
                                          TailOptions options = {});
  Tail(Tail&&) noexcept;
  Tail& operator=(Tail&&) noexcept;
  ~Tail();

  /// Follows one more, of the same client. From the handler: only with a position, else `would_deadlock`.
  [[nodiscard]] Result<void> add(const TailSource& source);
  /// The handler does not run once this has returned; waits for it when it runs, unless this is called from it.
  void stop();
  /// The entry id of the newest record of that source (in the order of `start` and `add`) that was handed over, or where it
  /// began: what to go on behind. Empty for an index that is none.
  [[nodiscard]] std::string position(std::size_t source = 0) const;
  [[nodiscard]] TailStats stats() const;

  struct State;

 private:
  friend class Subjects;
  explicit Tail(std::shared_ptr<State> state) noexcept;
  /// Calls `on_error`, on the executor, as for a stream that is followed.
  void tell(const Stream& stream, const Error& error) const;
  std::shared_ptr<State> state_;
};

}  // namespace v1
}  // namespace echomq
