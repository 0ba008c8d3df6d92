// The control thread's clock: one alarm of each kind, the earliest of which ends its sleep.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "echomq/detail/call.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {

using Clock = detail::Clock;
using TimePoint = Clock::time_point;

enum class Alarm : std::uint8_t {
  renew,    ///< extend what is held
  lapse,    ///< a lease that nobody could renew is over by our own clock
  repeat,   ///< send a settle again whose call failed
  claim,    ///< claims may go on after an error
  promote,  ///< a job is due, or may be
  sweep,    ///< a lease of somebody may have expired
  upkeep,   ///< periodic work of the queue may be due
  deliver,  ///< the outbox held records a moment ago
  marks,    ///< requests to cancel are asked for again, since the last asking failed
  limit,    ///< a run's time, or its grace, may be over
  hurry,    ///< an exchange takes its time: the next one goes out beside it
  queued,   ///< jobs that were fetched ahead may find no slot
  gather,   ///< a batch has gathered for as long as it may
  pass,     ///< a token that stood for work of others may be passed on again
  beat,     ///< a parked worker looks at its queue
  stop,     ///< the stop deadline, then the limits that follow it
  kinds,
};

class Alarms {
 public:
  Alarms() { times_.fill(TimePoint::max()); }

  void set(Alarm alarm, TimePoint time) { times_[index(alarm)] = time; }
  void set_earlier(Alarm alarm, TimePoint time) { times_[index(alarm)] = std::min(times_[index(alarm)], time); }
  void clear(Alarm alarm) { times_[index(alarm)] = TimePoint::max(); }
  [[nodiscard]] bool pending(Alarm alarm) const { return times_[index(alarm)] != TimePoint::max(); }

  [[nodiscard]] TimePoint next() const { return *std::min_element(times_.begin(), times_.end()); }
  /// Whether it is time; a due alarm is cleared.
  [[nodiscard]] bool take(Alarm alarm, TimePoint now) {
    if (times_[index(alarm)] > now)
      return false;
    clear(alarm);
    return true;
  }

 private:
  [[nodiscard]] static constexpr std::size_t index(Alarm alarm) { return static_cast<std::size_t>(alarm); }

  std::array<TimePoint, static_cast<std::size_t>(Alarm::kinds)> times_;
};

}  // namespace worker
}  // namespace v1
}  // namespace echomq
