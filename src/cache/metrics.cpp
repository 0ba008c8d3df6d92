// What cache tables count, in the text format of Prometheus.
#include "echomq/cache_metrics.hpp"

#include <fmt/format.h>

#include <initializer_list>
#include <iterator>
#include <string_view>
#include <utility>

namespace echomq {
inline namespace v1 {
namespace {

using Number = std::uint64_t CacheStats::*;

/// Families of the text format: each is headed once, then has its lines for each table.
class MetricsPage {
 public:
  explicit MetricsPage(std::span<const CacheTableStats> tables) : tables_(tables) {}

  void family(std::string_view name, std::string_view type, std::string_view help, Number number) {
    head(name, type, help);
    for (const CacheTableStats& one : tables_)
      line(name, one, "", one.stats.*number);
  }
  /// One line a label value.
  void family(std::string_view name, std::string_view help, std::string_view label,
              std::initializer_list<std::pair<std::string_view, Number>> values) {
    head(name, "counter", help);
    for (const CacheTableStats& one : tables_) {
      for (const auto& [value, number] : values)
        line(name, one, fmt::format(",{}=\"{}\"", label, value), one.stats.*number);
    }
  }
  void histogram(std::string_view name, std::string_view help, Latencies CacheStats::* which) {
    head(name, "histogram", help);
    const std::string bucket = fmt::format("{}_bucket", name);
    for (const CacheTableStats& one : tables_) {
      const Latencies& all = one.stats.*which;
      for (std::size_t bound = 0; bound < Latencies::bounds().size(); ++bound)
        line(bucket, one, fmt::format(",le=\"{}\"", seconds(Latencies::bounds()[bound])), all.at_most(bound));
      line(bucket, one, ",le=\"+Inf\"", all.count);
      line(fmt::format("{}_sum", name), one, "", seconds(all.sum));
      line(fmt::format("{}_count", name), one, "", all.count);
    }
  }
  [[nodiscard]] std::string take() && { return std::move(out_); }

 private:
  [[nodiscard]] static double seconds(std::chrono::nanoseconds time) {
    return std::chrono::duration<double>(time).count();
  }
  void head(std::string_view name, std::string_view type, std::string_view help) {
    fmt::format_to(std::back_inserter(out_), "# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
  }
  template <typename T>
  void line(std::string_view name, const CacheTableStats& one, std::string_view labels, T value) {
    fmt::format_to(std::back_inserter(out_), "{}{{table=\"{}\"{}}} {}\n", name, one.table.text(), labels, value);
  }

  std::span<const CacheTableStats> tables_;
  std::string out_;
};

}  // namespace

std::string cache_prometheus(std::span<const CacheTableStats> tables) {
  if (tables.empty())
    return {};
  using S = CacheStats;
  MetricsPage page(tables);
  page.family("echomq_cache_hits_total", "counter", "Reads that L1 answered.", &S::hits);
  page.family("echomq_cache_misses_total", "counter", "Reads that L1 did not answer.", &S::misses);
  page.family("echomq_cache_stale_served_total", "counter", "Reads answered by a row whose time was over.",
              &S::stale_served);
  page.family("echomq_cache_coalesced_total", "counter", "Misses that joined a flight that was on its way.",
              &S::coalesced);
  page.family("echomq_cache_flights_total", "What flights of misses and refreshes came to.", "came_to",
              {{"l2", &S::l2_hits}, {"fill", &S::fills}, {"absent", &S::absent}});
  page.family("echomq_cache_load_errors_total", "Loads that failed, were late, or did not begin.", "why",
              {{"error", &S::load_errors}, {"late", &S::load_late}, {"backed_off", &S::backed_off}});
  page.family("echomq_cache_load_waits_total", "counter", "Waits for another process's load.", &S::load_waits);
  page.family("echomq_cache_refreshed_total", "counter", "Rows renewed before their time was over.", &S::refreshed);
  page.family("echomq_cache_superseded_total", "counter", "Answers not kept: something newer was heard of.",
              &S::superseded);
  page.family("echomq_cache_outages_total", "counter", "Reads that went on without the server.", &S::outages);
  page.family("echomq_cache_l2_errors_total", "Rows that the server did not take, or that are none.", "what",
              {{"write", &S::l2_write_errors}, {"corrupt", &S::corrupt}});
  page.family("echomq_cache_rows_gone_total", "Rows of L1 that are there no more.", "why",
              {{"room", &S::evicted},
               {"expired", &S::expired},
               {"replaced", &S::replaced},
               {"invalidated", &S::invalidated},
               {"flushed", &S::flushed}});
  page.family("echomq_cache_too_large_total", "counter", "Values that alone exceed what L1 may hold.", &S::too_large);
  page.family("echomq_cache_coherence_total", "What others said of rows.", "came_to",
              {{"applied", &S::coherence_applied}, {"stale", &S::coherence_stale}, {"ignored", &S::coherence_ignored}});
  page.family("echomq_cache_coherence_refused_total", "counter",
              "Subscriptions of a new connection that the server refused or did not answer.", &S::coherence_refused);
  page.family("echomq_cache_flushes_total", "counter", "Flushes of all of L1.", &S::flushes);
  page.family("echomq_cache_rows", "gauge", "Rows of L1.", &S::rows);
  page.family("echomq_cache_bytes", "gauge", "Bytes of L1, as its bound counts.", &S::bytes);
  page.histogram("echomq_cache_load_seconds", "How long loads took.", &S::load_time);
  page.histogram("echomq_cache_coherence_lag_seconds", "From the mint of a version to its being heard here.",
                 &S::coherence_lag);
  return std::move(page).take();
}

}  // namespace v1
}  // namespace echomq
