// `LockPlane`: lock markers and leases of the jobs that one holder has in hand.
//
// A marker (`emq:{q}:job:<id>:lock`) tells operators that a worker is at it: `remove` refuses the job as locked. It is
// not the lease, and expires by itself. Use it where jobs are claimed by hand; `Worker` renews leases without it.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <vector>

#include "echomq/error.hpp"
#include "echomq/id.hpp"
#include "echomq/names.hpp"
#include "echomq/queue.hpp"
#include "echomq/reply.hpp"

namespace echomq {
inline namespace v1 {

struct LockPlaneOptions {
  Milliseconds lease{30000};             ///< of every beat; > 0
  std::optional<Milliseconds> extend{};  ///< from beat to beat; > 0; absent: half the lease
  double marker_multiple = 2.0;          ///< a marker lives so many leases; > 0
};

/// Not thread-safe: one holder's. It has no thread of its own: call `beat` every `interval()`.
class LockPlane {
 public:
  /// Errors: invalid_argument naming the option and its value.
  [[nodiscard]] static Result<LockPlane> create(const Queue& queue, LockPlaneOptions options = {});

  /// Remembers the job and writes its marker (extension `lock_mark`), also over another holder's; the row's field
  /// `lock` only where the server can expire it. A job whose row is gone gets none. Tracked again: the new token counts.
  Reply<void> track(JobId id, Token token);
  /// Forgets it and takes its marker off (extension `lock_clear`), unless another holder has written it since. A job that
  /// is not tracked is ignored.
  Reply<void> untrack(JobId id);
  /// Extends the leases and markers of all that is tracked (extension `lock_beat`); gives the ids that are no longer
  /// held. They stay tracked. Nothing is sent when nothing is tracked.
  Reply<std::vector<JobId>> beat();

  [[nodiscard]] std::size_t count() const noexcept { return held_.size(); }
  [[nodiscard]] bool is_tracked(const JobId& id) const { return held_.contains(id); }
  /// How long to wait between two beats: at least 1 ms, less than the lease.
  [[nodiscard]] Milliseconds interval() const noexcept { return interval_; }

 private:
  LockPlane(Queue queue, Milliseconds lease, Milliseconds interval, Milliseconds marker);

  Queue queue_;
  Milliseconds lease_;
  Milliseconds interval_;
  Milliseconds marker_;
  std::map<JobId, Token> held_;
};

}  // namespace v1
}  // namespace echomq
