// What the control thread knows of a job that it holds, from the claim until the settle is answered.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "echomq/worker.hpp"
#include "worker/alarms.hpp"
#include "worker/job.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {

enum class Phase : std::uint8_t {
  handed,    ///< with the pool: waits for a thread, or runs
  settling,  ///< the settle is in flight
  waiting,   ///< the settle's call failed; it goes out again at `again`
};

/// How a lease is lost.
enum class Loss : std::uint8_t {
  refused,  ///< the server does not know it any more
  lapsed,   ///< it has run out
};

struct HeldJob {
  HeldJob(std::shared_ptr<JobState> its_job, TimePoint until) : job(std::move(its_job)), lease_until(until) {}

  std::shared_ptr<JobState> job;
  /// By our own clock, measured from before the claim or the renewal was sent: the server's lease ends no earlier.
  TimePoint lease_until;
  Phase phase = Phase::handed;
  bool lost = false;
  /// Lost because the lease had run out: from then on somebody else may have settled the job.
  bool lapsed = false;

  Outcome outcome;
  /// The handler ended it; otherwise the worker hands it back on its own.
  bool by_handler = false;
  unsigned tries = 0;
  /// An earlier settle may have been done although its answer is lost: then "gone" means done.
  bool maybe_done = false;
  /// Fails for good when this try fails too.
  bool last_try = false;
  TimePoint again{};
};

}  // namespace worker
}  // namespace v1
}  // namespace echomq
