// What a worker asks about the jobs it holds: which of them shall end (script `marks`).
#pragma once

#include <span>
#include <vector>

#include "echomq/id.hpp"
#include "echomq/queue.hpp"
#include "echomq/reply.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

/// Those of `held` whose row carries the mark that `Queue::cancel` leaves, in their order; by scripts of 1000 ids, all in
/// flight at once. None for no ids. Errors: those of any call.
[[nodiscard]] Reply<std::vector<JobId>> marked_of(const Queue& queue, std::span<const JobId> held);

}  // namespace queue
}  // namespace v1
}  // namespace echomq
