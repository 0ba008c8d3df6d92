// `WorkerMetrics`: an observer that counts, and tells how long jobs waited and ran, by queue.
//
// Give one object to all workers of the process; `snapshot()` is for the program, `prometheus()` for whoever scrapes it.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "echomq/latencies.hpp"
#include "echomq/names.hpp"
#include "echomq/observer.hpp"

namespace echomq {
inline namespace v1 {

/// What the workers of one queue that share an observer have done. Counters only grow.
struct QueueMetrics {
  QueueName queue;
  std::uint64_t claimed = 0;
  std::array<std::uint64_t, 7> settled{};  ///< by `JobVerdict`
  std::uint64_t leases_lost = 0;
  std::uint64_t timed_out = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t leaked = 0;
  std::uint64_t recovered = 0;     ///< expired leases whose jobs wait again
  std::uint64_t dead_stalled = 0;  ///< expired leases whose jobs are dead
  std::uint64_t expired = 0;       ///< jobs that were too old to be run, and are dead
  std::int64_t running = 0;        ///< now: handlers that have begun and not ended, leaked ones too
  std::int64_t leaked_now = 0;     ///< now: of those, the ones that were given up
  /// From the mint of the id (in whole milliseconds, by the clock of who admitted it) to the first run's begin by ours; of
  /// a scheduled job that holds its delay. Later runs are not counted. Clocks that differ count as zero at least.
  Latencies wait;
  /// How long handlers took, of whatever outcome.
  Latencies run;

  [[nodiscard]] std::uint64_t ended(JobVerdict verdict) const noexcept {
    return settled[static_cast<std::size_t>(verdict)];
  }
};

/// Thread-safe. An event costs a lookup under a shared lock and a few atomic additions; a queue about 10 kB.
class WorkerMetrics final : public WorkerObserver {
 public:
  WorkerMetrics();
  ~WorkerMetrics() override;

  /// One for each queue that something was told of, by name. Values may be apart by what happens meanwhile.
  [[nodiscard]] std::vector<QueueMetrics> snapshot() const;
  /// All of it in Prometheus' text format 0.0.4 (`text/plain; version=0.0.4`), durations in seconds, labelled with the
  /// queue: counters `echomq_jobs_claimed_total`, `echomq_jobs_settled_total` (label `verdict`),
  /// `echomq_leases_lost_total`, `echomq_jobs_timed_out_total`, `echomq_jobs_cancelled_total`,
  /// `echomq_handlers_leaked_total`, `echomq_jobs_recovered_total` (label `to`: `waiting`, `dead`),
  /// `echomq_jobs_expired_total`; gauges
  /// `echomq_handlers_running`, `echomq_handlers_leaked`; histograms `echomq_job_wait_seconds`, `echomq_job_run_seconds`.
  [[nodiscard]] std::string prometheus() const;

  void claimed(std::span<const Job> jobs) override;
  void started(const Job& job) override;
  void ended(const Job& job, const Outcome& outcome, std::chrono::nanoseconds ran) override;
  void settled(const Job& job, const JobSettled& how) override;
  void lease_lost(const Job& job, LeaseLost when) override;
  void timed_out(const Job& job) override;
  void cancelled(const Job& job) override;
  void leaked(const Job& job) override;
  void leak_returned(const Job& job) override;
  void recovered(const QueueName& queue, std::span<const JobId> waiting, std::span<const JobId> dead) override;
  void expired(const QueueName& queue, std::span<const JobId> dead) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace v1
}  // namespace echomq
