// What `sweep_stalled` does not say of the jobs that it has ended.
#pragma once

#include <span>
#include <vector>

#include "echomq/id.hpp"
#include "echomq/queue.hpp"
#include "echomq/reply.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

/// Takes the mark that `Queue::cancel` leaves off the rows of `dead`, which one sweep has just ended, and gives the flow parents
/// of this queue that died of them: those that are dead and that no child outside of `dead` has killed.
[[nodiscard]] Reply<std::vector<JobId>> after_sweep(const Queue& queue, std::span<const JobId> dead);

}  // namespace queue
}  // namespace v1
}  // namespace echomq
