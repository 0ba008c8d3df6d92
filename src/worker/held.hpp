// What the control thread knows of a job that it holds, from the claim until the settle is answered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "echomq/worker.hpp"
#include "worker/alarms.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {

struct BatchRun;
struct JobState;

enum class Phase : std::uint8_t {
  handed,    ///< with the pool (waits for a thread, or runs), or gathered for a batch
  ready,     ///< its end is known and goes out with the next exchange
  settling,  ///< the settle is in flight
  waiting,   ///< the settle's call failed; it goes out again at `again`
};

/// How a lease is lost.
enum class Loss : std::uint8_t {
  refused,  ///< the server does not know it any more
  lapsed,   ///< it has run out
};

/// Part of its `JobState`, touched by the control thread alone.
struct Held {
  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

  /// Where it stands among the engine's; `kNowhere` once it is let go.
  std::size_t index = kNowhere;
  /// By our own clock, measured from before the claim or the renewal was sent: the server's lease ends no earlier.
  TimePoint lease_until{};
  JobState* next = nullptr;  ///< in the index of ids
  /// When the answer to its claim was handled.
  TimePoint since{};
  /// When its run is over time, then when its grace is.
  TimePoint limit = TimePoint::max();
  Phase phase = Phase::handed;
  bool lost = false;
  /// Lost because the lease had run out: from then on somebody else may have settled the job.
  bool lapsed = false;
  /// Its handler was asked to stop, and `limit` is the end of its grace.
  bool in_grace = false;
  /// Its handler did not return within the grace and was given up; the job is settled without it.
  bool leaked = false;
  /// No thread could take its handler's place: the slot is free when it has returned.
  bool keeps_slot = false;
  /// But its lease was lost before: somebody else may have the job, and what the handler comes to is told all the same.
  bool late = false;
  /// Somebody wanted it ended, and that was told.
  bool cancel_told = false;
  /// What became of it was told to whoever watches: once for each claim.
  bool told = false;

  Outcome outcome;
  /// The handler ended it; otherwise the worker did on its own.
  bool by_handler = false;
  /// Goes out by itself, so that what is wrong with it stops nobody else.
  bool alone = false;
  unsigned tries = 0;
  unsigned broken = 0;  ///< tries of a large result, by itself, whose connection ended
  /// An earlier settle may have been done although its answer is lost: then "gone" means done.
  bool maybe_done = false;
  /// Fails for good when this try fails too.
  bool last_try = false;
  TimePoint again{};

  /// The batch it was handed out in, until its settle is answered; null in a worker of single jobs, and while it gathers.
  std::shared_ptr<BatchRun> batch;
  std::size_t place = 0;  ///< among the batch's members
};

}  // namespace worker
}  // namespace v1
}  // namespace echomq
