// One run of one job: what its handler, the control thread and a leaked thread share.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>

#include "echomq/queue.hpp"
#include "echomq/worker.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {

/// Immutable but for its flags. The handler's thread owns it by `shared_ptr`: a handler that never returns keeps it.
struct JobState {
  JobState(Queue its_queue, ClaimedJob claimed)
      : queue(std::move(its_queue)),
        id(claimed.id),
        token(claimed.token),
        payload(std::move(claimed.payload)),
        lane(claimed.lane) {}

  const Queue queue;
  const JobId id;
  const Token token;
  const std::string payload;
  const std::optional<LaneId> lane;

  std::stop_source stop;
  std::atomic<bool> lease_lost{false};
  /// Handed back while its handler ran: what the handler still does counts for nothing.
  std::atomic<bool> withdrawn{false};
};

}  // namespace worker
}  // namespace v1
}  // namespace echomq
