// The public face of a worker of batches, and what its threads run.
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "echomq/batch.hpp"
#include "result/try.hpp"
#include "worker/engine.hpp"

namespace echomq {
inline namespace v1 {
namespace {

constexpr std::uint32_t kLargest = 1000;
/// Each holds the leases of as many jobs as a batch has.
constexpr std::uint32_t kMostBatches = 1024;
constexpr Milliseconds kLongest = std::chrono::days{365};

template <typename F>
[[nodiscard]] Result<void> check(const F& handler, const BatchWorkerOptions& options) {
  if (!handler)
    return fail(Errc::invalid_argument, "the handler is empty");
  if (options.worker.concurrency < 1 || options.worker.concurrency > kMostBatches) {
    return fail(Errc::invalid_argument, "concurrency must be 1 to " + std::to_string(kMostBatches) + ", got " +
                                            std::to_string(options.worker.concurrency));
  }
  ECHOMQ_CHECK(options.shape.check());
  if (options.shape.timeout > kLongest) {
    return fail(Errc::invalid_argument,
                "timeout must be at most a year, got " + std::to_string(options.shape.timeout.count()) + "ms");
  }
  if (options.max_size < 1 || options.max_size > kLargest) {
    return fail(Errc::invalid_argument,
                "max_size must be 1 to " + std::to_string(kLargest) + ", got " + std::to_string(options.max_size));
  }
  if (options.shape.min_size > options.max_size) {
    return fail(Errc::invalid_argument, "min_size must be at most max_size (" + std::to_string(options.max_size) +
                                            "), got " + std::to_string(options.shape.min_size));
  }
  if (options.source != BatchSource::flat && options.source != BatchSource::lanes) {
    return fail(Errc::invalid_argument,
                "source must be flat or lanes, got " + std::to_string(static_cast<unsigned>(options.source)));
  }
  return {};
}

[[nodiscard]] std::vector<Job> jobs_of(const worker::BatchRun& batch) {
  std::vector<Job> jobs;
  jobs.reserve(batch.members.size());
  for (const auto& member : batch.members)
    jobs.emplace_back(member);
  return jobs;
}

void keep(BatchVerdicts verdicts, worker::BatchRun& batch) {
  for (std::size_t i = 0; i < batch.members.size(); ++i) {
    if (const auto verdict = verdicts.find(batch.members[i]->id); verdict != verdicts.end())
      batch.verdicts[i] = std::move(verdict->second);
  }
}

void keep_exception(worker::BatchRun& batch) {
  const Outcome outcome = worker::outcome_of(std::current_exception());
  batch.verdicts.assign(batch.members.size(), outcome);
}

/// One call of the handler for all members; what it says of each goes into `verdicts`.
Outcome run(const BatchHandler& handler, worker::BatchRun& batch) {
  std::vector<Job> jobs = jobs_of(batch);
  try {
    keep(handler(jobs), batch);
  } catch (...) {
    keep_exception(batch);
  }
  return {};
}

/// The pool keeps the handler and the carrier, and so the batch, until this ends.
Task<Outcome> run_async(const AsyncBatchHandler& handler, worker::BatchRun& batch) {
  std::vector<Job> jobs = jobs_of(batch);
  try {
    BatchVerdicts verdicts = co_await handler(jobs);
    keep(std::move(verdicts), batch);
  } catch (...) {
    keep_exception(batch);
  }
  co_return Outcome();
}

[[nodiscard]] Result<std::shared_ptr<worker::Engine>> start_engine(const Queue& queue, worker::AnyHandler on_carrier,
                                                                   BatchWorkerOptions options) {
  WorkerOptions worker = std::move(options.worker);
  return worker::Engine::start(queue, std::move(on_carrier), std::move(worker), std::move(options));
}

}  // namespace

BatchWorker::BatchWorker(std::shared_ptr<worker::Engine> engine) noexcept : engine_(std::move(engine)) {}
BatchWorker::BatchWorker(BatchWorker&&) noexcept = default;

BatchWorker& BatchWorker::operator=(BatchWorker&& other) noexcept {
  if (this != &other)
    worker::Engine::let_go(std::exchange(engine_, std::exchange(other.engine_, nullptr)));
  return *this;
}

BatchWorker::~BatchWorker() { worker::Engine::let_go(std::move(engine_)); }

Result<BatchWorker> BatchWorker::start(const Queue& queue, BatchHandler handler, BatchWorkerOptions options) {
  ECHOMQ_CHECK(check(handler, options));
  Handler on_carrier = [handler = std::move(handler)](Job& carrier) {
    return run(handler, *carrier.internal()->batch);
  };
  ECHOMQ_TRY(auto engine, start_engine(queue, std::move(on_carrier), std::move(options)));
  return BatchWorker(std::move(engine));
}

Result<BatchWorker> BatchWorker::start_async(const Queue& queue, AsyncBatchHandler handler,
                                             BatchWorkerOptions options) {
  ECHOMQ_CHECK(check(handler, options));
  AsyncHandler on_carrier = [handler = std::move(handler)](Job& carrier) {
    return run_async(handler, *carrier.internal()->batch);
  };
  ECHOMQ_TRY(auto engine, start_engine(queue, std::move(on_carrier), std::move(options)));
  return BatchWorker(std::move(engine));
}

StopReport BatchWorker::stop(std::optional<Milliseconds> deadline) {
  if (!engine_)
    return {};
  return engine_->stop(deadline.value_or(engine_->default_stop_deadline()));
}

BatchWorkerStats BatchWorker::stats() const { return engine_ ? engine_->batch_stats() : BatchWorkerStats{}; }

void BatchWorker::cancel(JobId id) {
  if (engine_)
    engine_->cancel(id);
}

}  // namespace v1
}  // namespace echomq
