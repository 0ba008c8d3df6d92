// Jobs that gather until they are a batch.
#include "worker/gather.hpp"

#include <algorithm>
#include <utility>

namespace echomq {
inline namespace v1 {
namespace worker {

void Gather::add(std::shared_ptr<JobState> job, TimePoint now) {
  const std::optional<LaneId> key = key_of(*job);
  auto filling = filling_.find(key);
  if (filling == filling_.end()) {
    batches_.push_back({.lane = key, .jobs = {}, .since = now});
    filling = filling_.emplace(key, std::prev(batches_.end())).first;
  }
  Jobs& jobs = filling->second->jobs;
  jobs.push_back(std::move(job));
  ++size_;
  if (jobs.size() >= max_size_)
    filling_.erase(filling);
}

bool Gather::remove(const JobState* job) {
  const std::optional<LaneId> key = key_of(*job);
  for (auto batch = batches_.begin(); batch != batches_.end(); ++batch) {
    if (batch->lane != key)
      continue;
    const auto found =
        std::find_if(batch->jobs.begin(), batch->jobs.end(), [job](const auto& its) { return its.get() == job; });
    if (found == batch->jobs.end())
      continue;
    // The caller's reference may be this very one; the job stays the caller's to keep alive.
    batch->jobs.erase(found);
    --size_;
    if (batch->jobs.empty()) {
      (void)take(batch);
    } else {
      filling_.try_emplace(key, batch);  // one that was full takes more again, unless another does
    }
    return true;
  }
  return false;
}

Gather::Jobs Gather::take(Batches::iterator batch) {
  const auto filling = filling_.find(batch->lane);
  if (filling != filling_.end() && filling->second == batch)
    filling_.erase(filling);
  Jobs jobs = std::move(batch->jobs);
  size_ -= jobs.size();
  batches_.erase(batch);
  return jobs;
}

Gather::Jobs Gather::take_ready(TimePoint now, bool expected) {
  const auto ready = std::find_if(batches_.begin(), batches_.end(), [&](const Open& batch) {
    const std::size_t count = batch.jobs.size();
    return count >= max_size_ || (count >= shape_.min_size && !expected) || now - batch.since >= shape_.timeout;
  });
  return ready == batches_.end() ? Jobs() : take(ready);
}

Gather::Jobs Gather::take_over(TimePoint then) {
  if (batches_.empty() || due() > then)
    return {};
  return take(batches_.begin());
}

TimePoint Gather::due() const { return batches_.empty() ? TimePoint::max() : batches_.front().since + shape_.timeout; }

}  // namespace worker
}  // namespace v1
}  // namespace echomq
