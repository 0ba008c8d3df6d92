// The mark that `Queue::cancel` leaves in a row: who carries it (script `marks`), and taking it off.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "client/core.hpp"
#include "echomq/id.hpp"
#include "echomq/queue.hpp"
#include "echomq/reply.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

/// Those of `held` whose row carries the mark that `Queue::cancel` leaves, in their order; by scripts of 1000 ids, all in
/// flight at once. None for no ids. Errors: those of any call.
[[nodiscard]] Reply<std::vector<JobId>> marked_of(const Queue& queue, std::span<const JobId> held);

/// Takes the mark off the row of a job that the script `retry` has just moved to dead: the script does not know it, and neither does a
/// runtime that reprocesses the job, so our next claim would end it. Sent behind the answer; nobody waits for it. Not sent twice: by then
/// the job may run again, and be asked to end.
void take_mark_off(client::Core& core, std::string_view row);

}  // namespace queue
}  // namespace v1
}  // namespace echomq
