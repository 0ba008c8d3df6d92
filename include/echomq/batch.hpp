// Batches of flat jobs: when to take one, one handler call for all of it, and what became of each member.
//
// A batch is a unit of claiming only: every member has its own token and is settled by its own verdict.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "echomq/error.hpp"
#include "echomq/id.hpp"
#include "echomq/queue.hpp"
#include "echomq/worker.hpp"

namespace echomq {
inline namespace v1 {

/// When a batch is taken: as soon as `min_size` jobs wait, or when the window is `timeout` old and any job waits.
struct BatchShape {
  std::uint32_t min_size = 1;
  Milliseconds timeout{1000};

  /// Both must be 1 or more. Errors: invalid_argument naming the knob and its value.
  [[nodiscard]] Result<void> check() const;
  /// How many to claim now: all that wait; nothing: look again later. Pure.
  [[nodiscard]] std::optional<std::uint64_t> decide(std::uint64_t depth, Milliseconds elapsed) const noexcept;
};

/// What became of a member's settle.
enum class BatchSettled : std::uint8_t {
  accepted,   ///< complete, delay or hand-back was done
  scheduled,  ///< it will be run again
  dead,       ///< it has failed for good
  refused,    ///< stale, gone, or no answer: somebody else has it, or its lease ends
};

/// One member of a batch that was settled.
struct BatchMember {
  JobId id;
  std::optional<Outcome::Kind> verdict;  ///< absent: the handler gave none
  BatchSettled settled = BatchSettled::refused;
};

/// The members of a batch, each in exactly one list, in claim order.
struct BatchReport {
  std::vector<JobId> completed;
  std::vector<JobId> delayed;
  std::vector<JobId> dead;     ///< told by the settle's answer, never by the verdict
  std::vector<JobId> retried;  ///< all others: run again, handed back, or refused
};

/// Sorts members into the lists. Pure.
[[nodiscard]] BatchReport partition_batch(std::span<const BatchMember> members);

struct BatchOptions {
  std::uint32_t size = 1000;       ///< at most so many jobs; >= 1
  Milliseconds lease{30000};       ///< > 0. Not renewed: it must cover the handler and the settles
  Milliseconds retry_delay{1000};  ///< of a failure without a wait of its own; >= 0
  std::uint32_t max_attempts = 3;  ///< >= 1
  WorkerEvents events = WorkerEvents::settled;
};

/// Gets all jobs of a batch in claim order and gives their outcomes in the same order. One that is absent, or beyond
/// the end of the list, is a failure `missing verdict`; an exception is a failure of all with its message.
using BatchHandler = std::function<std::vector<std::optional<Outcome>>(std::span<const ClaimedJob>)>;

/// One round: claims a batch (`Queue::claim_batch`), calls the handler once on this thread, settles each member by its
/// own outcome, and then publishes. Empty report: nothing was there, and the handler was not called. Blocks; not for a
/// thread of the library. A member whose settle fails is in `retried`: it is run again after its lease.
/// Errors: invalid_argument naming the option, and those of `claim_batch`.
[[nodiscard]] Result<BatchReport> run_batch(const Queue& queue, const BatchHandler& handler,
                                            const BatchOptions& options = {});

}  // namespace v1
}  // namespace echomq
