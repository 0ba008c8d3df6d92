// Counting what workers tell, and writing it down for who scrapes it.
#include "echomq/metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <utility>

#include "client/histogram.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using Counter = std::atomic<std::uint64_t>;

struct Series {
  Counter claimed{0}, leases_lost{0}, timed_out{0}, cancelled{0}, leaked{0}, recovered{0}, dead_stalled{0}, expired{0};
  std::array<Counter, 7> settled{};
  std::atomic<std::int64_t> running{0}, leaked_now{0};
  client::Histogram wait;
  client::Histogram run;
};

void add(Counter& counter, std::uint64_t count = 1) noexcept { counter.fetch_add(count, std::memory_order_relaxed); }

[[nodiscard]] double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

/// Families of the text format: each is headed once, then has a line for each queue.
class Page {
 public:
  explicit Page(std::span<const QueueMetrics> queues) : queues_(queues) {}

  void head(std::string_view name, std::string_view type, std::string_view help) {
    fmt::format_to(std::back_inserter(out_), "# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
  }
  template <typename F>
  void family(std::string_view name, std::string_view type, std::string_view help, F value) {
    head(name, type, help);
    for (const QueueMetrics& queue : queues_)
      line(name, queue, "", value(queue));
  }
  template <typename T>
  void line(std::string_view name, const QueueMetrics& queue, std::string_view label, T value) {
    fmt::format_to(std::back_inserter(out_), "{}{{queue=\"{}\"{}}} {}\n", name, queue.queue.text(), label, value);
  }
  void histogram(std::string_view name, std::string_view help, const Latencies QueueMetrics::* which) {
    head(name, "histogram", help);
    for (const QueueMetrics& queue : queues_) {
      const Latencies& all = queue.*which;
      const std::string bucket = fmt::format("{}_bucket", name);
      for (std::size_t bound = 0; bound < client::kBounds.size(); ++bound)
        line(bucket, queue, fmt::format(",le=\"{}\"", seconds(client::kBounds[bound])), all.at_most(bound));
      line(bucket, queue, ",le=\"+Inf\"", all.count);
      line(fmt::format("{}_sum", name), queue, "", seconds(all.sum));
      line(fmt::format("{}_count", name), queue, "", all.count);
    }
  }
  [[nodiscard]] std::span<const QueueMetrics> queues() const { return queues_; }
  [[nodiscard]] std::string take() && { return std::move(out_); }

 private:
  std::span<const QueueMetrics> queues_;
  std::string out_;
};

}  // namespace

std::span<const std::chrono::nanoseconds> Latencies::bounds() noexcept { return client::kBounds; }

std::chrono::nanoseconds Latencies::percentile(double share) const noexcept {
  std::uint64_t all = 0;
  for (const std::uint64_t bucket : fine_)
    all += bucket;
  if (all == 0)
    return std::chrono::nanoseconds{0};
  const double wanted = std::ceil(std::clamp(share, 0.0, 1.0) * static_cast<double>(all));
  const auto rank = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(wanted), 1, all);
  std::uint64_t seen = 0;
  for (std::size_t index = 0; index < fine_.size(); ++index) {
    seen += fine_[index];
    if (seen >= rank) {
      const auto last = static_cast<std::int64_t>(client::FineBuckets::last_of(index));
      return std::min(std::chrono::nanoseconds{last}, max);
    }
  }
  return max;
}

std::uint64_t Latencies::at_most(std::size_t bound) const noexcept {
  std::uint64_t out = 0;
  for (std::size_t index = 0; index < bounded_.size() && index <= bound; ++index)
    out += bounded_[index];
  return out;
}

struct WorkerMetrics::State {
  Series& of(const QueueName& queue) {
    {
      const std::shared_lock lock(mutex);
      if (const auto found = series.find(queue); found != series.end())
        return found->second;
    }
    const std::unique_lock lock(mutex);
    return series[queue];
  }

  mutable std::shared_mutex mutex;
  std::map<QueueName, Series> series;  ///< guarded by mutex; entries stay where they are
};

WorkerMetrics::WorkerMetrics() : state_(std::make_unique<State>()) {}
WorkerMetrics::~WorkerMetrics() = default;

std::vector<QueueMetrics> WorkerMetrics::snapshot() const {
  const auto read = [](const auto& counter) { return counter.load(std::memory_order_relaxed); };
  std::vector<QueueMetrics> out;
  const std::shared_lock lock(state_->mutex);
  out.reserve(state_->series.size());
  for (const auto& [queue, series] : state_->series) {
    QueueMetrics& one = out.emplace_back(QueueMetrics{.queue = queue, .wait = {}, .run = {}});
    one.claimed = read(series.claimed);
    for (std::size_t verdict = 0; verdict < one.settled.size(); ++verdict)
      one.settled[verdict] = read(series.settled[verdict]);
    one.leases_lost = read(series.leases_lost);
    one.timed_out = read(series.timed_out);
    one.cancelled = read(series.cancelled);
    one.leaked = read(series.leaked);
    one.recovered = read(series.recovered);
    one.dead_stalled = read(series.dead_stalled);
    one.expired = read(series.expired);
    one.running = read(series.running);
    one.leaked_now = read(series.leaked_now);
    one.wait = series.wait.read();
    one.run = series.run.read();
  }
  return out;
}

std::string WorkerMetrics::prometheus() const {
  const std::vector<QueueMetrics> queues = snapshot();
  if (queues.empty())
    return {};
  Page page(queues);
  page.family("echomq_jobs_claimed_total", "counter", "Jobs claimed.", [](const auto& its) { return its.claimed; });
  page.head("echomq_jobs_settled_total", "counter", "Settles, by what became of the job.");
  for (const QueueMetrics& queue : queues) {
    for (std::size_t verdict = 0; verdict < queue.settled.size(); ++verdict) {
      page.line("echomq_jobs_settled_total", queue,
                fmt::format(",verdict=\"{}\"", to_string(static_cast<JobVerdict>(verdict))), queue.settled[verdict]);
    }
  }
  page.family("echomq_leases_lost_total", "counter", "Leases lost before their job was settled.",
              [](const auto& its) { return its.leases_lost; });
  page.family("echomq_jobs_timed_out_total", "counter", "Runs that were asked to stop because their time was over.",
              [](const auto& its) { return its.timed_out; });
  page.family("echomq_jobs_cancelled_total", "counter", "Claimed jobs that somebody wanted ended.",
              [](const auto& its) { return its.cancelled; });
  page.family("echomq_handlers_leaked_total", "counter", "Handlers that were given up.",
              [](const auto& its) { return its.leaked; });
  page.head("echomq_jobs_recovered_total", "counter", "Jobs taken back whose leases had expired.");
  for (const QueueMetrics& queue : queues) {
    page.line("echomq_jobs_recovered_total", queue, ",to=\"waiting\"", queue.recovered);
    page.line("echomq_jobs_recovered_total", queue, ",to=\"dead\"", queue.dead_stalled);
  }
  page.family("echomq_jobs_expired_total", "counter", "Jobs that were too old to be run.",
              [](const auto& its) { return its.expired; });
  page.family("echomq_handlers_running", "gauge", "Handlers that run now, leaked ones too.",
              [](const auto& its) { return its.running; });
  page.family("echomq_handlers_leaked", "gauge", "Handlers that were given up and still run.",
              [](const auto& its) { return its.leaked_now; });
  page.histogram("echomq_job_wait_seconds", "From the mint of a job's id to the begin of its first run.",
                 &QueueMetrics::wait);
  page.histogram("echomq_job_run_seconds", "How long handlers took.", &QueueMetrics::run);
  return std::move(page).take();
}

void WorkerMetrics::claimed(std::span<const Job> jobs) {
  if (!jobs.empty())
    add(state_->of(jobs.front().queue()).claimed, jobs.size());
}

void WorkerMetrics::started(const Job& job) {
  Series& series = state_->of(job.queue());
  series.running.fetch_add(1, std::memory_order_relaxed);
  if (job.attempt() == 1)
    series.wait.add(std::chrono::system_clock::now() - job.id().minted_at());
}

void WorkerMetrics::ended(const Job& job, const Outcome& /*outcome*/, std::chrono::nanoseconds ran) {
  Series& series = state_->of(job.queue());
  series.running.fetch_sub(1, std::memory_order_relaxed);
  series.run.add(ran);
}

void WorkerMetrics::settled(const Job& job, const JobSettled& how) {
  add(state_->of(job.queue()).settled[static_cast<std::size_t>(how.verdict)]);
}

void WorkerMetrics::lease_lost(const Job& job, LeaseLost /*when*/) { add(state_->of(job.queue()).leases_lost); }
void WorkerMetrics::timed_out(const Job& job) { add(state_->of(job.queue()).timed_out); }
void WorkerMetrics::cancelled(const Job& job) { add(state_->of(job.queue()).cancelled); }

void WorkerMetrics::leaked(const Job& job) {
  Series& series = state_->of(job.queue());
  add(series.leaked);
  series.leaked_now.fetch_add(1, std::memory_order_relaxed);
}

void WorkerMetrics::leak_returned(const Job& job) {
  state_->of(job.queue()).leaked_now.fetch_sub(1, std::memory_order_relaxed);
}

void WorkerMetrics::recovered(const QueueName& queue, std::span<const JobId> waiting, std::span<const JobId> dead) {
  Series& series = state_->of(queue);
  add(series.recovered, waiting.size());
  add(series.dead_stalled, dead.size());
}

void WorkerMetrics::expired(const QueueName& queue, std::span<const JobId> dead) {
  add(state_->of(queue).expired, dead.size());
}

}  // namespace v1
}  // namespace echomq
