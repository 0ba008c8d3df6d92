// Jobs that gather until they are a batch: one open batch for the flat set, or one for each lane.
//
// Pure: no thread, no server, no clock of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "echomq/batch.hpp"
#include "worker/alarms.hpp"
#include "worker/job.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {

/// The error of a member of which its handler says nothing.
inline constexpr std::string_view kMissingVerdict = "missing verdict";

/// A batch with its handler. Its members point at it and it at them: each lets go of it when it is settled.
struct BatchRun {
  explicit BatchRun(std::vector<std::shared_ptr<JobState>> its_members)
      : members(std::move(its_members)), verdicts(members.size()), told(members.size()), left(members.size()) {}

  const std::vector<std::shared_ptr<JobState>> members;  ///< in claim order, never empty
  /// One for each member: written by the handler's thread, read when its end is told.
  std::vector<std::optional<Outcome>> verdicts;

  // The control thread's.
  std::vector<BatchMember> told;  ///< in claim order; whole when `left` is 0
  std::size_t left;               ///< members whose settle is not answered
  JobState* carrier = nullptr;    ///< names the run to the pool
  bool leaked = false;            ///< its thread was given up
  bool keeps_slot = false;        ///< and no other could take its place
};

class Gather {
 public:
  using Jobs = std::vector<std::shared_ptr<JobState>>;

  /// `by_lane`: a batch is of one lane. Otherwise all jobs go to one.
  Gather(BatchShape shape, std::uint32_t max_size, bool by_lane)
      : shape_(shape), max_size_(max_size), by_lane_(by_lane) {}

  void add(std::shared_ptr<JobState> job, TimePoint now);
  /// Takes one job out again. False when it is in no open batch.
  [[nodiscard]] bool remove(const JobState* job);
  /// The oldest batch to be handed out: it is full; or it has `min_size` and no more are `expected` to come at once; or
  /// it is as old as it may get. Empty: none is.
  [[nodiscard]] Jobs take_ready(TimePoint now, bool expected);
  /// The oldest batch whose time was over by `then`. Empty: none was.
  [[nodiscard]] Jobs take_over(TimePoint then);
  /// When the time of the oldest batch is over; max without one.
  [[nodiscard]] TimePoint due() const;
  /// How many jobs gather.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  struct Open {
    std::optional<LaneId> lane;
    Jobs jobs;
    TimePoint since;  ///< when the first came
  };
  using Batches = std::list<Open>;
  [[nodiscard]] Jobs take(Batches::iterator batch);
  [[nodiscard]] std::optional<LaneId> key_of(const JobState& job) const {
    return by_lane_ ? job.lane : std::optional<LaneId>();
  }

  const BatchShape shape_;
  const std::size_t max_size_;
  const bool by_lane_;
  Batches batches_;  ///< none is empty; in the order of `since`
  /// The open batch of each key that is not full.
  std::unordered_map<std::optional<LaneId>, Batches::iterator> filling_;
  std::size_t size_ = 0;
};

}  // namespace worker
}  // namespace v1
}  // namespace echomq
