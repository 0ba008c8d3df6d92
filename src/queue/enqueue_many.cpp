// The batch verb of admission: its checks and its ids.
#include <utility>
#include <vector>

#include "queue/admit_many.hpp"
#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {

Reply<std::vector<Result<Admission>>> Queue::enqueue_many(std::span<const NewJob> jobs,
                                                          EnqueueManyOptions options) const {
  using namespace queue;
  if (jobs.empty())
    return fail(Errc::empty_pipeline, "enqueue_many: there are no jobs");
  ECHOMQ_CHECK(check_due(options.at, options.in));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].payload.size() <= kMaxText)
      continue;
    ECHOMQ_CHECK(check_text(fmt::format("payload of job {}", i), jobs[i].payload));
  }

  // All ids before the first byte goes out: a minter that stops half way must not leave half a batch.
  const State& state = *state_;
  std::vector<AdmitItem> items;
  items.reserve(jobs.size());
  for (const NewJob& job : jobs) {
    AdmitItem item{.payload = job.payload};
    if (job.id) {
      item.id = *job.id;
    } else {
      ECHOMQ_TRY(const BrandedId minted, state.core->mint("JOB"));
      item.id = JobId(minted);
      item.minted = true;
    }
    items.push_back(item);
  }

  const keyspace::QueueKeys& keys = state.keys;
  const Decimal value = options.in ? Decimal(*options.in) : options.at ? Decimal(*options.at) : Decimal(0);
  const ScriptParts frame(state.scripts.admit,
                          views(keys.pending(), keys.schedule(), keys.ring(), keys.paused(), keys.glimit(),
                                keys.gactive(), keys.wake(), keys.parked()),
                          views(keys.base(), options.lane ? options.lane->text() : std::string_view(),
                                std::string_view(options.in   ? "in"
                                                 : options.at ? "at"
                                                              : ""),
                                value));
  return AdmitMany::start(*state.core, frame.parts(), items, settings(Repeat::safe, options.deadline));
}

}  // namespace v1
}  // namespace echomq
