// Entries of a consumer that failed and shall not come back yet. Knows nothing of the server: says which are to be kept from
// others, and which are to be let go.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "echomq/detail/call.hpp"
#include "echomq/stream.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {

/// Not thread-safe.
class DelayedEntries {
 public:
  using TimePoint = detail::Clock::time_point;
  /// More of them come back after `min_idle`.
  static constexpr std::size_t kMost = 10'000;

  explicit DelayedEntries(Milliseconds min_idle) : min_idle_(min_idle) {}

  /// It becomes idle for `min_idle`, and so anybody's, when its delay of `wait` is over. `touched` was when the server last
  /// counted it as in hand.
  void add(const std::string& entry, TimePoint touched, TimePoint now, Milliseconds wait);
  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }

  struct Due {
    std::vector<std::string> touch;  ///< to be refreshed, so that others do not take them over
    std::vector<std::string> free;   ///< to be made idle: whoever looks next may have them
  };
  /// What is to be done now.
  [[nodiscard]] Due take_due(TimePoint now);
  /// Those that are to be refreshed now.
  [[nodiscard]] std::vector<std::string> to_touch(TimePoint now) const;
  /// It was refreshed.
  void touched(const std::string& entry, TimePoint now);
  /// Somebody else has it, or it is in hand again; whether it was kept here.
  [[nodiscard]] bool forget(const std::string& entry) { return entries_.erase(entry) > 0; }
  /// How long there is nothing to be done, `most` at most; 1 ms at least.
  [[nodiscard]] Milliseconds until(Milliseconds most) const;

 private:
  struct Entry {
    TimePoint touched;
    TimePoint release;  ///< `min_idle` before it is due
    TimePoint due;
    [[nodiscard]] bool brief(Milliseconds min_idle) const { return due - release < min_idle; }
  };

  const Milliseconds min_idle_;
  std::map<std::string, Entry> entries_;
};

}  // namespace bus
}  // namespace v1
}  // namespace echomq
