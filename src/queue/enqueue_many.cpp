// The batch verbs of admission: their checks and their ids.
#include <utility>
#include <vector>

#include "queue/admit_many.hpp"
#include "queue/run_fields.hpp"
#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace queue;

/// All ids before the first byte goes out: a minter that stops half way must not leave half a batch.
template <typename Job>
[[nodiscard]] Result<std::vector<AdmitItem>> with_ids(client::Core& core, std::span<const Job> jobs) {
  std::vector<AdmitItem> items;
  items.reserve(jobs.size());
  for (const Job& job : jobs) {
    AdmitItem item{.payload = job.payload};
    if (job.id) {
      item.id = *job.id;
    } else {
      ECHOMQ_TRY(const BrandedId minted, core.mint("JOB"));
      item.id = JobId(minted);
      item.minted = true;
    }
    items.push_back(item);
  }
  return items;
}

[[nodiscard]] Result<void> check_payload(std::size_t index, std::string_view payload) {
  return check_text(fmt::format("payload of job {}", index), payload);
}

/// Each job with a target and fields of its own.
[[nodiscard]] Reply<std::vector<Result<Admission>>> admit_each(const Queue::State& state,
                                                               std::span<const AdmitItem> items,
                                                               std::span<const AdmitTail> tails,
                                                               wire::CallSettings how) {
  const ScriptParts frame(state.scripts.admit, admit_keys(state.keys), views(state.keys.base(), "", "each", "0"));
  return AdmitMany::start(*state.core, frame.parts(), items, tails, how);
}

}  // namespace

Reply<std::vector<Result<Admission>>> Queue::enqueue_many(std::span<const NewJob> jobs,
                                                          EnqueueManyOptions options) const {
  if (jobs.empty())
    return fail(Errc::empty_pipeline, "enqueue_many: there are no jobs");
  ECHOMQ_CHECK(check_due(options.at, options.in));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  ECHOMQ_CHECK(check_run(options.run, options.in));
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].payload.size() > kMaxText)
      ECHOMQ_CHECK(check_payload(i, jobs[i].payload));
  }

  const State& state = *state_;
  ECHOMQ_TRY(const std::vector<AdmitItem> items, with_ids(*state.core, jobs));
  const wire::CallSettings how = settings(Repeat::safe, options.deadline);
  if (options.run.any()) {
    RecordTail same;
    same.set(options.lane, options.at, options.in, options.run);
    const std::vector<AdmitTail> tails(items.size(), same.parts());
    return admit_each(state, items, tails, how);
  }
  const keyspace::QueueKeys& keys = state.keys;
  const Decimal value = options.in ? Decimal(*options.in) : options.at ? Decimal(*options.at) : Decimal(0);
  const ScriptParts frame(state.scripts.admit, admit_keys(keys),
                          views(keys.base(), options.lane ? options.lane->text() : std::string_view(),
                                std::string_view(options.in   ? "in"
                                                 : options.at ? "at"
                                                              : ""),
                                value));
  return AdmitMany::start(*state.core, frame.parts(), items, {}, how);
}

Reply<std::vector<Result<Admission>>> Queue::enqueue_mixed(std::span<const MixedJob> jobs,
                                                           std::optional<Milliseconds> deadline) const {
  if (jobs.empty())
    return fail(Errc::empty_pipeline, "enqueue_mixed: there are no jobs");
  ECHOMQ_CHECK(check_deadline(deadline));
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const MixedJob& job = jobs[i];
    if (job.payload.size() > kMaxText)
      ECHOMQ_CHECK(check_payload(i, job.payload));
    auto right = check_due(job.at, job.in);
    if (right)
      right = check_run(job.run, job.in);
    if (!right) {
      Error why = std::move(right).error();
      why.text += fmt::format(" (job {})", i);
      return std::unexpected<Error>(std::move(why));
    }
  }

  const State& state = *state_;
  ECHOMQ_TRY(const std::vector<AdmitItem> items, with_ids(*state.core, jobs));
  std::vector<RecordTail> records(jobs.size());
  std::vector<AdmitTail> tails;
  tails.reserve(jobs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    records[i].set(jobs[i].lane, jobs[i].at, jobs[i].in, jobs[i].run);
    tails.push_back(records[i].parts());
  }
  return admit_each(state, items, tails, settings(Repeat::safe, deadline));
}

}  // namespace v1
}  // namespace echomq
