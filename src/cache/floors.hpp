// What a shard has heard of ids lately, also of those that it has no row of: L2 may still have something older, or get it
// from a load that was slow. With the shard's mutex.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <utility>

#include "cache/l1.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {

class Floors {
 public:
  static constexpr std::size_t kMost = 1024;  // then those are forgotten of which nothing was heard for longest

  /// Where there are `kMost` already, none of them over.
  enum class Full : std::uint8_t { forget_oldest, leave_out };

  /// Nothing older than `version` is good until then. Something newer that is known ends when it would have, and then this holds: what
  /// a source that went back gives does not keep the newest alive.
  void raise(std::uint64_t id, std::uint64_t version, Ticks now, Ticks until, Full full = Full::forget_oldest) {
    if (full == Full::leave_out && floors_.size() >= kMost && !floors_.contains(id) &&
        floors_.find(order_.front())->second.last() > now)
      return;
    const auto [at, fresh] = floors_.try_emplace(id);
    Floor& floor = at->second;
    floor.raise(version, now, until);
    if (fresh) {
      floor.place = order_.insert(order_.end(), id);
    } else {
      order_.splice(order_.end(), order_, floor.place);
    }
    // A step or two each time, so that what is over goes and no call takes long.
    for (int steps = 0; steps < 2; ++steps) {
      const auto oldest = floors_.find(order_.front());
      if (floors_.size() <= kMost && oldest->second.last() > now)
        return;
      if (oldest == at)
        return;
      order_.pop_front();
      floors_.erase(oldest);
    }
  }
  /// 0 when nothing is known.
  [[nodiscard]] std::uint64_t of(std::uint64_t id, Ticks now) const {
    if (floors_.empty())
      return 0;
    const auto at = floors_.find(id);
    return at == floors_.end() ? 0 : at->second.at(now);
  }
  [[nodiscard]] std::size_t size() const noexcept { return floors_.size(); }

 private:
  struct Step {
    std::uint64_t version = 0;
    Ticks until = 0;
  };
  struct Floor {
    void raise(std::uint64_t version, Ticks now, Ticks until) {
      if (newest.until <= now)
        newest = std::exchange(below, {});
      if (newest.until <= now)
        newest = {};
      if (below.until <= newest.until)
        below = {};
      if (version >= newest.version) {
        newest = {version, std::max(newest.until, until)};
      } else if (version >= below.version) {
        below = {version, std::max(below.until, until)};
      }  // what is older than both is noted when one of them is over
    }
    [[nodiscard]] std::uint64_t at(Ticks now) const {
      return newest.until > now ? newest.version : below.until > now ? below.version : 0;
    }
    [[nodiscard]] Ticks last() const { return std::max(newest.until, below.until); }

    Step newest;
    Step below;  // what holds longer, of what is older
    std::list<std::uint64_t>::iterator place;
  };
  std::unordered_map<std::uint64_t, Floor> floors_;
  std::list<std::uint64_t> order_;  // the ids, each once, by when they were heard of last
};

}  // namespace cache
}  // namespace v1
}  // namespace echomq
