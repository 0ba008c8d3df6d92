// Whoever watches a worker: the observer of its options, and its two callbacks as one more observer.
//
// Shared with the pool, whose threads may outlive the engine.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "echomq/observer.hpp"
#include "echomq/queue.hpp"
#include "worker/job.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {

/// Thread-safe. What an observer throws stays here: it is counted and logged.
class Observers {
 public:
  using JobPtr = std::shared_ptr<JobState>;

  /// Null when nobody watches, so that whoever has something to tell pays for one branch.
  [[nodiscard]] static std::shared_ptr<Observers> of(const Queue& queue, const WorkerOptions& options);

  void claimed(std::span<const Job> jobs);
  /// Of a carrier, each member is told of.
  void started(const JobPtr& run);
  void ended(const JobPtr& run, const Outcome& outcome);
  void settled(const JobPtr& job, JobVerdict verdict, std::string_view text);
  void lease_lost(const JobPtr& job, LeaseLost when);
  void timed_out(const JobPtr& job);
  void cancelled(const Job& job);
  void leaked(const JobPtr& job);
  void leak_returned(const JobPtr& job);
  void recovered(std::span<const JobId> waiting, std::span<const JobId> dead);
  void expired(std::span<const JobId> dead);

  /// How many calls have thrown.
  [[nodiscard]] std::uint64_t failures() const noexcept { return failures_.load(std::memory_order_relaxed); }

 private:
  Observers(const Queue& queue, const WorkerOptions& options);
  template <typename F>
  void tell(std::string_view what, const F& call) noexcept;

  const Queue queue_;
  const std::array<std::shared_ptr<WorkerObserver>, 2> all_;  ///< null: none
  std::atomic<std::uint64_t> failures_{0};
};

}  // namespace worker
}  // namespace v1
}  // namespace echomq
