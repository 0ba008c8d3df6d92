// Which of the jobs in hand have a given id.
//
// More than one may: a run that has lost its job goes on while the job is here once more. The jobs themselves are the links of
// a table that grows and never shrinks, so a steady flow allocates nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "echomq/id.hpp"
#include "worker/job.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {

/// The control thread's. Owns nothing: whoever adds a job removes it before it goes.
class HeldIndex {
 public:
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

  void add(JobState& job) {
    if (size_ == heads_.size())
      grow();
    link(job);
    ++size_;
  }
  /// One that was added.
  void remove(JobState& job) {
    JobState** at = &heads_[place_of(job.id)];
    while (*at != &job)
      at = &(*at)->held.next;
    *at = std::exchange(job.held.next, nullptr);
    --size_;
  }
  void clear() {
    heads_.clear();
    size_ = 0;
  }
  /// Calls `see(JobState&)` for each of that id. It must neither add nor remove.
  template <typename See>
  void each_of(const JobId& id, See see) const {
    if (size_ == 0)
      return;
    for (JobState* job = heads_[place_of(id)]; job != nullptr; job = job->held.next) {
      if (job->id == id)
        see(*job);
    }
  }

 private:
  /// The number of heads is a power of two.
  [[nodiscard]] std::size_t place_of(const JobId& id) const { return hash32(id.value()) & (heads_.size() - 1); }
  void link(JobState& job) {
    JobState*& head = heads_[place_of(job.id)];
    job.held.next = head;
    head = &job;
  }
  void grow() {
    std::vector<JobState*> before(std::max<std::size_t>(64, 2 * heads_.size()));
    std::swap(before, heads_);
    for (JobState* job : before) {
      while (job != nullptr) {
        JobState* const next = job->held.next;
        link(*job);
        job = next;
      }
    }
  }

  std::vector<JobState*> heads_;
  std::size_t size_ = 0;
};

}  // namespace worker
}  // namespace v1
}  // namespace echomq
