// A sweep that also says which flow parents died of it.
#pragma once

#include <vector>

#include "echomq/id.hpp"
#include "echomq/queue.hpp"
#include "echomq/reply.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

struct SweptLapsed {
  Swept swept;
  std::vector<JobId> fallen;  ///< flow parents of this queue that died of those that are dead
};

/// Script `sweep_lapsed`: `Queue::sweep_stalled`, and the dead lose the mark that `Queue::cancel` leaves.
[[nodiscard]] Reply<SweptLapsed> sweep_lapsed(const Queue& queue, const SweepOptions& options);

}  // namespace queue
}  // namespace v1
}  // namespace echomq
