// What a hit of L1 costs, beside the same lookup and copy in a concurrent map of Boost: zipf 0.99, values of 100 bytes.
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <algorithm>
#include <boost/unordered/concurrent_flat_map.hpp>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cache/id_bytes.hpp"
#include "cache/l1.hpp"
#include "echomq/cache.hpp"
#include "echomq/client.hpp"
#include "echomq/testing/private_server.hpp"

namespace {

using namespace echomq;

constexpr std::size_t kValue = 100;

BrandedId id_of(std::size_t index) { return BrandedId::encode("USR", (index + 1) * 4194304 + index % 4096).value(); }

/// A long draw of indexes, so that drawing costs nothing in the loop.
const std::vector<std::uint32_t>& draws(std::size_t count) {
  static std::vector<std::uint32_t> all;
  static std::size_t of = 0;
  if (of != count) {
    std::vector<double> sums(count);
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i)
      sums[i] = sum += 1.0 / std::pow(static_cast<double>(i + 1), 0.99);
    std::vector<std::uint32_t> places(count);
    for (std::size_t i = 0; i < count; ++i)
      places[i] = static_cast<std::uint32_t>(i);
    std::mt19937 random(1);
    std::shuffle(places.begin(), places.end(), random);
    std::uniform_real_distribution<double> uniform(0, sum);
    all.resize(std::size_t{1} << 20);
    for (std::uint32_t& one : all)
      one =
          places[static_cast<std::size_t>(std::lower_bound(sums.begin(), sums.end(), uniform(random)) - sums.begin())];
    of = count;
  }
  return all;
}

/// What L1 uses too.
struct Hash {
  std::size_t operator()(const BrandedId& id) const noexcept { return cache::mix(cache::value_of(id)); }
};

struct Tables {
  testing::PrivateServer server;
  Client client;
  std::optional<ByteCache> cache;
  std::vector<BrandedId> ids;
  boost::concurrent_flat_map<BrandedId, std::string, Hash> map;
  double bytes_a_row = 0;
};

Tables& tables(std::size_t count) {
  static std::unique_ptr<Tables> one;
  if (one && one->ids.size() == count)
    return *one;
  one.reset();
  auto server = testing::PrivateServer::start({}).value();
  auto client = Client::open(server.url()).value();
  one.reset(new Tables{std::move(server), std::move(client), {}, {}, {}, 0});
  for (std::size_t i = 0; i < count; ++i)
    one->ids.push_back(id_of(i));
  const std::string value(kValue, 'v');
  auto loaded = [&value](const BrandedId& id, LoadDone done) { done(std::optional<Loaded<std::string>>({value, id})); };
  CacheOptions options{.table = "t", .kind = "USR", .ttl = std::chrono::hours(1), .l1_bytes = std::size_t{1} << 30};
  one->cache.emplace(ByteCache::open_async(one->client, options, loaded).value());
  const std::size_t before = mallinfo2().uordblks;
  for (std::size_t i = 0; i < count; i += 1000)
    (void)one->cache->get_many(std::span(one->ids).subspan(i, std::min<std::size_t>(1000, count - i))).get();
  one->bytes_a_row = static_cast<double>(mallinfo2().uordblks - before) / static_cast<double>(count);
  for (const BrandedId& id : one->ids)
    one->map.emplace(id, value);
  return *one;
}

void hit(benchmark::State& state) {
  Tables& all = tables(static_cast<std::size_t>(state.range(0)));
  const auto& order = draws(all.ids.size());
  std::size_t at = static_cast<std::size_t>(state.thread_index()) * 7919;
  CachedBytes into;
  std::size_t missed = 0;
  for (auto _ : state) {
    missed += !all.cache->peek(all.ids[order[at++ & (order.size() - 1)]], into);
    benchmark::DoNotOptimize(into);
  }
  if (missed > 0)
    state.SkipWithError("not all of it was in L1");
  state.counters["bytes_a_row"] = benchmark::Counter(all.bytes_a_row, benchmark::Counter::kAvgThreads);
}

void flat_map(benchmark::State& state) {
  Tables& all = tables(static_cast<std::size_t>(state.range(0)));
  const auto& order = draws(all.ids.size());
  std::size_t at = static_cast<std::size_t>(state.thread_index()) * 7919;
  std::string into;
  for (auto _ : state) {
    all.map.cvisit(all.ids[order[at++ & (order.size() - 1)]], [&](const auto& pair) { into = pair.second; });
    benchmark::DoNotOptimize(into);
  }
}

}  // namespace

BENCHMARK(hit)->Name("cache_hit")->Arg(10'000)->Threads(1)->Threads(2);
BENCHMARK(flat_map)->Name("concurrent_flat_map")->Arg(10'000)->Threads(1)->Threads(2);
BENCHMARK(hit)->Name("cache_hit")->Arg(1'000'000)->Threads(1)->Threads(2);
BENCHMARK(flat_map)->Name("concurrent_flat_map")->Arg(1'000'000)->Threads(1)->Threads(2);
