// What cache tables count, as a page for who scrapes it.
#pragma once

#include <span>
#include <string>

#include "echomq/cache.hpp"

namespace echomq {
inline namespace v1 {

/// One table of this process, and what it has counted (`stats()`).
struct CacheTableStats {
  CacheName table;
  CacheStats stats;
};

/// All of it in Prometheus' text format 0.0.4, durations in seconds, labelled with the table; empty without tables.
/// Counters: reads are `echomq_cache_hits_total` and `echomq_cache_misses_total`; of misses
/// `echomq_cache_stale_served_total` and `echomq_cache_coalesced_total`; flights, of refreshes too,
/// `echomq_cache_flights_total` (label `came_to`: `l2`, `fill`, `absent`); `echomq_cache_load_errors_total`
/// (label `why`: `error`, `late`, `backed_off`), `echomq_cache_load_waits_total`, `echomq_cache_refreshed_total`,
/// `echomq_cache_superseded_total`, `echomq_cache_outages_total`, `echomq_cache_l2_errors_total` (label `what`:
/// `write`, `corrupt`), `echomq_cache_rows_gone_total` (label `why`: `room`, `expired`, `replaced`, `invalidated`,
/// `flushed`), `echomq_cache_too_large_total`, `echomq_cache_coherence_total` (label `came_to`: `applied`, `stale`,
/// `ignored`), `echomq_cache_flushes_total`; gauges `echomq_cache_rows`, `echomq_cache_bytes`; histograms
/// `echomq_cache_load_seconds`, `echomq_cache_coherence_lag_seconds`.
[[nodiscard]] std::string cache_prometheus(std::span<const CacheTableStats> tables);

}  // namespace v1
}  // namespace echomq
