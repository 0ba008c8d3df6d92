// The whole job, admitted in batches and run by a worker, beside a socket that sends the same calls.
#pragma once

#include <chrono>
#include <memory>

#include "cases.hpp"
#include "echomq/worker.hpp"

namespace echomq_bench {

/// `with_events`: the worker publishes `completed` for each job, as it does by default, and so does the floor.
[[nodiscard]] Case make_worker_case(Bed& bed, double scale, bool with_events);

/// Waits until the worker of the bed's queue sleeps on the wake list.
void wait_parked(Bed& bed);
/// Admits `jobs` by `batch`, a few batches in flight.
void admit_by(const echomq::Queue& queue, std::size_t jobs, std::size_t batch);
/// Waits until this worker has completed `jobs`.
void wait_completed(const echomq::Worker& worker, std::size_t jobs);

}  // namespace echomq_bench
