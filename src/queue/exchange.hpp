// One round trip a batch: what is done with the jobs in hand, and which jobs come next, in one script call.
//
// The scripts `settle` (settlements only), `take` (a claim only) and `settle_and_take` (both). The end state is that of the
// canonical verbs one by one: complete, retry, delay (counted), hand_back for each settlement, in order; then claims in fair turns.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "echomq/id.hpp"
#include "echomq/queue.hpp"
#include "echomq/reply.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

enum class SettleKind : std::uint8_t { done, retry, delay, dead, hand_back };

/// How one job ends. Fenced by its token.
struct Settlement {
  JobId id;
  Token token;
  SettleKind kind = SettleKind::done;
  /// `done`: the result for the flow parent, absent: the id. `retry`, `dead`: the error.
  std::optional<std::string_view> text;
  /// `retry`, `delay`: how long until it is due.
  Milliseconds wait{0};
  /// `retry`: the maximum when the row has no field `max_attempts` of its own. >= 1.
  std::uint32_t max_attempts = 3;
  /// `done`, and `retry` and `dead` that end the job: keeps the result (or id), or the error, in `emq:{q}:result:<id>` for so
  /// long and publishes the id on `emq:{q}:ended`; 0: as the row field `keep` says, without one not at all.
  Milliseconds keep{0};
};

/// What the script said of one settlement, in the order given.
enum class Settled : std::uint8_t {
  completed,
  scheduled,  ///< `retry`: it will run again
  dead,       ///< `retry` past the maximum, `dead`
  delayed,
  handed_back,
  gone,   ///< the row is not there
  stale,  ///< another claim holds, or held, the job
};

struct Exchanged;

/// Which jobs to claim.
struct TakeRequest {
  std::uint32_t most = 1;  ///< 1..1000
  Milliseconds lease{30000};
  bool lanes = true;
  bool flat = true;
  /// Which of the two is served first; the caller alternates it.
  bool lanes_first = false;
  /// A lane's turn gives all that is asked for, whatever its weight, and the next lane the rest. Of a claim from lanes only.
  bool whole_turns = false;
  /// Claims nothing once the server's clock is past it: the gate is `late` then. Of a claim without settlements only.
  std::optional<UnixMillis> last_moment;
  /// Also finds out `flow_parent`: no row tells, so it is a look-up more a flat job.
  bool find_parents = false;
  /// Sees the answer first, on the thread that reads it, and may take jobs out of it; must not block. Of a claim without
  /// settlements only.
  std::function<void(Exchanged&)> at_once;
};

/// A claimed job with what its row says of how to run it.
struct TakenJob {
  ClaimedJob job;
  std::optional<std::uint32_t> max_attempts;  ///< row field `max_attempts`
  std::optional<Milliseconds> timeout;        ///< row field `timeout`, in ms
  std::optional<std::string> backoff;         ///< row field `backoff`, as written
  std::optional<std::string> traceparent;     ///< row field `traceparent`
  std::uint64_t failures =
      0;  ///< claims that ended in a failure: attempts before this one less stalled, handbacks and delays
  bool flow_child = false;   ///< the row names a parent
  bool cancelled = false;    ///< somebody wants it ended: `Queue::cancel` came while an earlier run had it
  bool flow_parent = false;  ///< the job has (had) children; only when `find_parents`
};

enum class Gate : std::uint8_t {
  open,
  paused,       ///< `meta.paused`
  concurrency,  ///< `meta.concurrency` is reached by `active`
  rate,         ///< the fixed window is used up; `wait` says for how long
  late,         ///< the claim came after its `last_moment`
};

/// A flow parent of this queue that died of a child.
struct Fallen {
  JobId parent;
  std::size_t by = 0;  ///< the settlement that ended the child
};

struct Exchanged {
  std::vector<Settled> settled;  ///< one for each settlement
  std::vector<Fallen> fallen;    ///< of those settlements
  std::vector<TakenJob> jobs;
  Gate gate = Gate::open;  ///< why fewer than asked came, when it is not that there are none
  Milliseconds wait{0};    ///< of `rate`
  /// Jobs that could be claimed right now were left behind (an estimate that may be too high, never zero by mistake).
  bool more = false;
  std::uint64_t expired = 0;         ///< jobs past their `expires_at` that the claim moved to dead instead
  std::vector<JobId> expired_ids;    ///< of those, the ones whose id is one
  std::vector<JobId> fallen_of_age;  ///< flow parents of this queue that died of those
  /// Jobs whose id or lane is none: claimed, given to nobody, and dead once their lease has lapsed often enough.
  std::uint64_t unreadable = 0;
  /// The server's clock when it claimed.
  UnixMillis claimed_at{};
  /// The call was sent twice: what is `gone` may have been settled by the first.
  bool resent = false;
};

/// Settles, then takes; either may be empty, not both. Views must live until the call returns.
/// Errors: invalid_argument; those of any call. Repeat: settlements alone are safe to repeat (gone and stale then may mean done);
/// with a claim nothing is repeated (outcome_unknown).
[[nodiscard]] Reply<Exchanged> exchange(const Queue& queue, std::span<const Settlement> settlements,
                                        const std::optional<TakeRequest>& take,
                                        std::optional<Milliseconds> deadline = {});

}  // namespace queue
}  // namespace v1
}  // namespace echomq
