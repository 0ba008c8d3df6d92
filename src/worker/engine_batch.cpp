// A worker of batches: what is claimed gathers, is handed to the handler as a whole, and is settled as a whole.
//
// The pool knows only of carriers, one a batch; leases, limits, cancellation, settles and the stop know only of members.
// A batch is handed out when a slot is free, so none waits in the pool.
#include <algorithm>
#include <utility>

#include "worker/engine.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {
namespace {

/// A batch whose time is over and that finds no slot for so long is better off with another worker.
constexpr Milliseconds kLongestDue{100};

}  // namespace

std::size_t Engine::free_batches() const {
  return options_.concurrency - std::min<std::size_t>(batches_, options_.concurrency);
}

bool Engine::gather_full() const { return gather_->size() >= gather_cap(); }

std::size_t Engine::gather_room() const {
  const std::size_t cap = gather_cap();
  const std::size_t taken = gather_->size() + asked_;
  if (taken >= cap)
    return 0;
  // A lane's turn is as large as a batch, however much of other lanes has gathered: else none would ever be full.
  return batch_->source == BatchSource::lanes ? batch_->max_size : cap - taken;
}

void Engine::gather(Jobs& jobs) {
  for (JobPtr& job : jobs)
    gather_->add(std::move(job), now_);
}

void Engine::hand_out_batches() {
  while (free_batches() > 0) {
    Jobs members = gather_->take_ready(now_, claims_ > 0);
    if (members.empty())
      break;
    begin_batch(std::move(members));
  }
  if (free_batches() > 0) {
    alarms_.set(Alarm::gather, gather_->due());
    return;
  }
  // Without a slot there is nothing to be woken for.
  bool changed = parked_;
  if (parked_)
    leave_parking();
  for (;;) {
    const Jobs members = gather_->take_over(now_ - kLongestDue);
    if (members.empty())
      break;
    changed = true;
    for (const JobPtr& job : members) {
      --handed_;
      job->held.outcome = HandBack();
      settle(job);
    }
  }
  counters_.running.store(static_cast<std::uint32_t>(handed_), std::memory_order_relaxed);
  const TimePoint due = gather_->due();
  alarms_.set(Alarm::gather, due == TimePoint::max() ? due : due + kLongestDue);
  if (changed)
    exchange_more();
}

void Engine::begin_batch(Jobs members) {
  ClaimedJob first{
      .id = members.front()->id, .token = members.front()->token, .payload = {}, .lane = members.front()->lane};
  auto carrier = std::allocate_shared<JobState>(BlockAllocator<JobState>(blocks_), queue_, std::move(first));
  auto batch = std::make_shared<BatchRun>(std::move(members));
  batch->carrier = carrier.get();
  for (std::size_t place = 0; place < batch->members.size(); ++place) {
    JobState& job = *batch->members[place];
    job.held.batch = batch;
    job.held.place = place;
    batch->told[place].id = job.id;
  }
  carrier->batch = std::move(batch);
  ++batches_;
  counters_.batches.fetch_add(1, std::memory_order_relaxed);
  count_batches();
  pool_->submit(std::span(&carrier, 1));
}

void Engine::batch_ended(const JobState& carrier) {
  BatchRun& batch = *carrier.batch;
  if (batch.leaked) {
    leak_returned(batch.members.front());
  }
  if (!batch.leaked || batch.keeps_slot) {
    --batches_;
    count_batches();
  }
  for (std::size_t place = 0; place < batch.members.size(); ++place) {
    const JobPtr& job = batch.members[place];
    if (job->held.leaked && !job->held.late)
      continue;  // settled without its handler
    std::optional<Outcome>& verdict = batch.verdicts[place];
    // One that was handed back while it ran has come to that, whatever its handler says now.
    if (verdict && !job->withdrawn.load(std::memory_order_relaxed))
      batch.told[place].verdict = verdict->kind;
    run_ended(job, verdict ? *std::move(verdict) : Retry(std::string(kMissingVerdict)));
  }
}

void Engine::give_up_batch(BatchRun& batch) {
  // Whoever is neither given up nor lost still waits for a verdict of this handler.
  const bool awaited = std::any_of(batch.members.begin(), batch.members.end(),
                                   [](const JobPtr& job) { return !job->held.leaked && !job->held.lost; });
  if (awaited || batch.leaked)
    return;
  batch.leaked = true;
  batch.keeps_slot = pool_->abandon(batch.carrier) == HandlerPool::Abandoned::stuck;
  if (!batch.keeps_slot)
    --batches_;
  count_batches();
  leaks(batch.members.front());
}

void Engine::leave_batch(JobState& job) {
  const std::shared_ptr<BatchRun> batch = std::move(job.held.batch);
  job.held.batch = nullptr;
  if (--batch->left > 0 || !batch_->on_batch)
    return;
  try {
    batch_->on_batch(partition_batch(batch->told));
  } catch (...) {
    counters_.errors.fetch_add(1, std::memory_order_relaxed);
    log(LogLevel::error, "worker_callback_failed", &job, "on_batch");
  }
}

void Engine::count_batches() {
  counters_.batches_running.store(static_cast<std::uint32_t>(batches_), std::memory_order_relaxed);
}

bool Engine::withdraw(const JobPtr& job) {
  if (!gather_)
    return pool_->withdraw(job.get());
  return !job->held.batch && gather_->remove(job.get());
}

BatchWorkerStats Engine::batch_stats() const {
  BatchWorkerStats out;
  out.jobs = stats();
  out.batches = counters_.batches.load(std::memory_order_relaxed);
  out.running = counters_.batches_running.load(std::memory_order_relaxed);
  return out;
}

}  // namespace worker
}  // namespace v1
}  // namespace echomq
