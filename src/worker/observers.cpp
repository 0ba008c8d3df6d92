// Telling whoever watches a worker.
#include "worker/observers.hpp"

#include <array>
#include <utility>

#include "client/core.hpp"
#include "queue/state.hpp"
#include "worker/gather.hpp"

namespace echomq {
inline namespace v1 {

WorkerObserver::~WorkerObserver() = default;
void WorkerObserver::claimed(std::span<const Job> /*jobs*/) {}
void WorkerObserver::started(const Job& /*job*/) {}
void WorkerObserver::ended(const Job& /*job*/, const Outcome& /*outcome*/, std::chrono::nanoseconds /*ran*/) {}
void WorkerObserver::settled(const Job& /*job*/, const JobSettled& /*how*/) {}
void WorkerObserver::lease_lost(const Job& /*job*/, LeaseLost /*when*/) {}
void WorkerObserver::timed_out(const Job& /*job*/) {}
void WorkerObserver::cancelled(const Job& /*job*/) {}
void WorkerObserver::leaked(const Job& /*job*/) {}
void WorkerObserver::leak_returned(const Job& /*job*/) {}
void WorkerObserver::recovered(const QueueName& /*queue*/, std::span<const JobId> /*waiting*/,
                               std::span<const JobId> /*dead*/) {}
void WorkerObserver::expired(const QueueName& /*queue*/, std::span<const JobId> /*dead*/) {}

std::string_view to_string(JobVerdict verdict) noexcept {
  switch (verdict) {
    case JobVerdict::done: return "done";
    case JobVerdict::retry: return "retry";
    case JobVerdict::delay: return "delay";
    case JobVerdict::dead: return "dead";
    case JobVerdict::hand_back: return "hand_back";
    case JobVerdict::refused: return "refused";
    case JobVerdict::unsettled: return "unsettled";
  }
  return {};
}

namespace worker {
namespace {

/// `on_settled` and `on_lease_lost` as an observer.
class Callbacks final : public WorkerObserver {
 public:
  explicit Callbacks(const WorkerOptions& options)
      : on_settled_(options.on_settled), on_lease_lost_(options.on_lease_lost) {}

  void settled(const Job& job, const JobSettled& how) override {
    if (!on_settled_)
      return;
    const bool counts = how.verdict != JobVerdict::refused && how.verdict != JobVerdict::unsettled;
    on_settled_(job, counts ? to_string(how.verdict) : how.text);
  }
  void lease_lost(const Job& job, LeaseLost when) override {
    if (on_lease_lost_ && when == LeaseLost::running)
      on_lease_lost_(job);
  }

 private:
  const std::function<void(const Job&, std::string_view)> on_settled_;
  const std::function<void(const Job&)> on_lease_lost_;
};

}  // namespace

std::shared_ptr<Observers> Observers::of(const Queue& queue, const WorkerOptions& options) {
  if (!options.observer && !options.on_settled && !options.on_lease_lost)
    return nullptr;
  return std::shared_ptr<Observers>(new Observers(queue, options));
}

Observers::Observers(const Queue& queue, const WorkerOptions& options)
    : queue_(queue),
      all_{options.observer,
           options.on_settled || options.on_lease_lost ? std::make_shared<Callbacks>(options) : nullptr} {}

template <typename F>
void Observers::tell(std::string_view what, const F& call) noexcept {
  for (const std::shared_ptr<WorkerObserver>& observer : all_) {
    if (!observer)
      continue;
    try {
      call(*observer);
    } catch (...) {
      failures_.fetch_add(1, std::memory_order_relaxed);
      const std::array<LogField, 2> fields = {{{"queue", queue_.name().text()}, {"text", what}}};
      queue_.internal().core->log(LogLevel::error, "worker_callback_failed", fields);
    }
  }
}

void Observers::claimed(std::span<const Job> jobs) {
  tell("claimed", [jobs](WorkerObserver& observer) { observer.claimed(jobs); });
}

void Observers::started(const JobPtr& run) {
  const auto one = [this](const JobPtr& job) {
    tell("started", [seen = Job(job)](WorkerObserver& observer) { observer.started(seen); });
  };
  if (!run->batch) {
    one(run);
    return;
  }
  for (const JobPtr& member : run->batch->members)
    one(member);
}

void Observers::ended(const JobPtr& run, const Outcome& outcome) {
  const auto ran = Clock::now() - run->begun.load(std::memory_order_relaxed);
  const auto one = [this, ran](const JobPtr& job, const Outcome& its) {
    tell("ended", [seen = Job(job), &its, ran](WorkerObserver& observer) { observer.ended(seen, its, ran); });
  };
  if (!run->batch) {
    one(run, outcome);
    return;
  }
  const BatchRun& batch = *run->batch;
  for (std::size_t place = 0; place < batch.members.size(); ++place) {
    const std::optional<Outcome>& verdict = batch.verdicts[place];
    one(batch.members[place], verdict ? *verdict : Retry(std::string(kMissingVerdict)));
  }
}

void Observers::settled(const JobPtr& job, JobVerdict verdict, std::string_view text) {
  const JobSettled how{verdict, text};
  tell("settled", [seen = Job(job), &how](WorkerObserver& observer) { observer.settled(seen, how); });
}

void Observers::lease_lost(const JobPtr& job, LeaseLost when) {
  tell("lease_lost", [seen = Job(job), when](WorkerObserver& observer) { observer.lease_lost(seen, when); });
}

void Observers::timed_out(const JobPtr& job) {
  tell("timed_out", [seen = Job(job)](WorkerObserver& observer) { observer.timed_out(seen); });
}

void Observers::cancelled(const Job& job) {
  tell("cancelled", [&job](WorkerObserver& observer) { observer.cancelled(job); });
}

void Observers::leaked(const JobPtr& job) {
  tell("leaked", [seen = Job(job)](WorkerObserver& observer) { observer.leaked(seen); });
}

void Observers::leak_returned(const JobPtr& job) {
  tell("leak_returned", [seen = Job(job)](WorkerObserver& observer) { observer.leak_returned(seen); });
}

void Observers::recovered(std::span<const JobId> waiting, std::span<const JobId> dead) {
  tell("recovered",
       [this, waiting, dead](WorkerObserver& observer) { observer.recovered(queue_.name(), waiting, dead); });
}

void Observers::expired(std::span<const JobId> dead) {
  tell("expired", [this, dead](WorkerObserver& observer) { observer.expired(queue_.name(), dead); });
}

}  // namespace worker
}  // namespace v1
}  // namespace echomq
