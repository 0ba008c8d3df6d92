// Random histories of cache tables over a played server: what each table may do, in any order, with all that gets lost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "echomq/cache.hpp"

namespace echomq::model {

/// How tables hear of each other.
enum class Hears : std::uint8_t { nothing, broadcast, tracking, job_lane };

struct CachePlan {
  Hears hears = Hears::nothing;
  std::uint64_t histories = 1;
  std::uint64_t first_seed = 1;
  /// Also loads that processes share, tags, times to live of single entries, and deadlines of loaders.
  bool extended = false;
};

struct CacheCount {
  std::uint64_t steps = 0;
  std::uint64_t reads = 0;
  std::uint64_t hits = 0;
  std::uint64_t load_waits = 0;
  std::uint64_t drops = 0;
  std::uint64_t invalidations = 0;
};

/// Plays histories of the seeds from `first_seed` on. Gives the first that went wrong, with its seed and all its steps.
///
/// `ECHOMQ_MODEL_SEED` (decimal) replaces the first seed, `ECHOMQ_MODEL_HISTORIES` their number.
[[nodiscard]] std::optional<std::string> play_cache(const CachePlan& plan, CacheCount& count);

}  // namespace echomq::model
