// When failed entries are kept, and let go.
#include "bus/group_delays.hpp"

#include <algorithm>
#include <chrono>

namespace echomq {
inline namespace v1 {
namespace bus {

void DelayedEntries::add(const std::string& entry, TimePoint touched, TimePoint now, Milliseconds wait) {
  if (wait == min_idle_ || entries_.size() >= kMost)
    return;
  entries_[entry] = {.touched = touched, .release = now + wait - std::min(wait, min_idle_), .due = now + wait};
}

DelayedEntries::Due DelayedEntries::take_due(TimePoint now) {
  Due out;
  for (auto it = entries_.begin(); it != entries_.end();) {
    const Entry& one = it->second;
    const bool brief = one.brief(min_idle_);
    bool done = true;
    if (brief && now >= one.due) {
      out.free.push_back(it->first);
    } else if (!brief && now >= one.release) {
      out.touch.push_back(it->first);
    } else {
      if (!brief && now - one.touched >= min_idle_ / 3)
        out.touch.push_back(it->first);
      done = false;
    }
    it = done ? entries_.erase(it) : std::next(it);
  }
  return out;
}

std::vector<std::string> DelayedEntries::to_touch(TimePoint now) const {
  std::vector<std::string> out;
  for (const auto& [entry, one] : entries_) {
    if (!one.brief(min_idle_) && now < one.release && now - one.touched >= min_idle_ / 3)
      out.push_back(entry);
  }
  return out;
}

void DelayedEntries::touched(const std::string& entry, TimePoint now) {
  if (const auto kept = entries_.find(entry); kept != entries_.end())
    kept->second.touched = now;
}

Milliseconds DelayedEntries::until(Milliseconds most) const {
  const auto now = detail::Clock::now();
  for (const auto& [entry, one] : entries_) {
    const auto next = one.brief(min_idle_) ? one.due : std::min(one.release, one.touched + min_idle_ / 3);
    most = std::min(most, std::chrono::ceil<Milliseconds>(next - now));
  }
  return std::max(most, Milliseconds(1));
}

}  // namespace bus
}  // namespace v1
}  // namespace echomq
