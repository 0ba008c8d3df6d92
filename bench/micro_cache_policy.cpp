// The hit rate of L1 beside other policies at equal capacity, in hundredths, on four traces: not a time, but a table.
#include <benchmark/benchmark.h>

#include <cstdio>

#include "cache_policies.hpp"

namespace {

using namespace echomq::policies;

void hit_rates(benchmark::State& state) {
  const auto most = static_cast<std::size_t>(state.range(0));
  const auto shards = static_cast<std::size_t>(state.range(1));
  double worst = 0;
  for (auto _ : state) {
    std::fprintf(stderr, "\n%zu entries, %zu shards\n%-6s %6s %6s %6s %8s %11s %6s %13s\n", most, shards, "trace",
                 "LRU", "LFU", "ARC", "S3-FIFO", "W-TinyLFU", "ours", "below best");
    for (const Trace& trace : traces(most, 100 * most)) {
      const Rates all = rates(most, shards, trace);
      worst = std::max(worst, all.best() - all.ours);
      std::fprintf(stderr, "%-6s %6.2f %6.2f %6.2f %8.2f %11.2f %6.2f %13.2f\n", trace.name.c_str(), all.lru, all.lfu,
                   all.arc, all.s3_fifo, all.w_tiny_lfu, all.ours, all.best() - all.ours);
    }
  }
  state.counters["below_best_must_be_2"] = worst;
}

}  // namespace

BENCHMARK(hit_rates)
    ->Name("cache_hit_rates")
    ->Args({1'000, 1})
    ->Args({10'000, 4})
    ->Iterations(1)
    ->Unit(benchmark::kSecond);
