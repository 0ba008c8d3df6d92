// A thread makes its turns by itself: beside a second thread both sides stand under the same load.
#include "cache_hit_case.hpp"

#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <barrier>
#include <boost/unordered/concurrent_flat_map.hpp>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "cache/id_bytes.hpp"
#include "echomq/cache.hpp"
#include "echomq/client.hpp"
#include "measure.hpp"
#include "must.hpp"

namespace echomq_bench {
namespace {

using echomq::BrandedId;
using echomq::ByteCache;
using echomq::CachedBytes;

constexpr std::size_t kValue = 100;
constexpr std::size_t kDraws = std::size_t{1} << 20;
// Lookups: the first of a turn, which bring what the other side's turn has pushed out of the processor's caches, do not count.
constexpr std::size_t kFirst = 100'000;
constexpr std::size_t kTurn = 300'000;

/// What L1 uses too.
struct Hash {
  std::size_t operator()(const BrandedId& id) const noexcept { return echomq::cache::digits_of(id).hash(); }
};

using Map = boost::concurrent_flat_map<BrandedId, std::string, Hash>;

struct Tables {
  std::vector<BrandedId> ids;
  std::optional<ByteCache> cache;
  Map map;
  double bytes_a_row = 0;
};

/// Indexes drawn beforehand, so that drawing costs nothing in a turn.
[[nodiscard]] std::vector<std::uint32_t> draw(std::size_t count) {
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
  std::vector<std::uint32_t> draws(kDraws);
  for (std::uint32_t& one : draws)
    one = places[static_cast<std::size_t>(std::lower_bound(sums.begin(), sums.end(), uniform(random)) - sums.begin())];
  return draws;
}

void fill(Tables& tables, const echomq::Client& client, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    tables.ids.push_back(must(BrandedId::encode("USR", (i + 1) * 4194304 + i % 4096)));
  const std::string value(kValue, 'v');
  auto loaded = [&value](const BrandedId& id, echomq::LoadDone done) {
    done(std::optional<echomq::Loaded<std::string>>({value, id}));
  };
  const echomq::CacheOptions options{.table = must(echomq::CacheName::parse("hits")),
                                     .kind = "USR",
                                     .ttl = std::chrono::hours(1),
                                     .l1_bytes = std::size_t{1} << 30};
  tables.cache.emplace(must(ByteCache::open_async(client, options, loaded)));
  const std::size_t before = mallinfo2().uordblks;
  for (std::size_t i = 0; i < count; i += 1000) {
    const auto some = std::span(tables.ids).subspan(i, std::min<std::size_t>(1000, count - i));
    (void)tables.cache->get_many(some).get();
  }
  tables.bytes_a_row = static_cast<double>(mallinfo2().uordblks - before) / static_cast<double>(count);
  for (const BrandedId& id : tables.ids)
    tables.map.emplace(id, value);
}

[[nodiscard]] double own_nanoseconds() {
  timespec now{};
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

/// Nanoseconds a lookup.
template <typename Body>
[[nodiscard]] double turn(const Body& body) {
  for (std::size_t i = 0; i < kFirst; ++i)
    body();
  const double before = own_nanoseconds();
  for (std::size_t i = 0; i < kTurn; ++i)
    body();
  return (own_nanoseconds() - before) / kTurn;
}

struct Turns {
  std::vector<double> hits, maps, ratios;
};

[[nodiscard]] Turns take_turns(const Tables& tables, const std::vector<std::uint32_t>& draws, std::size_t at,
                               std::size_t pairs) {
  Turns turns;
  CachedBytes row;
  std::string value;
  std::size_t missed = 0;
  const auto next = [&]() -> const BrandedId& { return tables.ids[draws[at++ & (kDraws - 1)]]; };
  const auto hit = [&] {
    missed += tables.cache->peek(next(), row) ? 0 : 1;
    asm volatile("" : : "m"(row) : "memory");
  };
  const auto map = [&] {
    tables.map.cvisit(next(), [&](const auto& pair) { value = pair.second; });
    asm volatile("" : : "m"(value) : "memory");
  };
  for (std::size_t i = 0; i < pairs; ++i) {
    // Either goes first in every second pair.
    double of_map = i % 2 == 0 ? turn(map) : 0;
    const double of_hit = turn(hit);
    if (i % 2 != 0)
      of_map = turn(map);
    turns.hits.push_back(of_hit);
    turns.maps.push_back(of_map);
    turns.ratios.push_back(of_hit / of_map);
  }
  if (missed > 0 || value.size() != kValue || !row.value || row.value->size() != kValue)
    give_up("not every row was in L1: " + std::to_string(missed) + " were not");
  return turns;
}

void append(std::vector<double>& to, const std::vector<double>& from) { to.insert(to.end(), from.begin(), from.end()); }

[[nodiscard]] HitVerdict measure(const Tables& tables, const std::vector<std::uint32_t>& draws, unsigned threads,
                                 std::size_t pairs) {
  std::vector<Turns> each(threads);
  {
    std::barrier start(threads);
    std::vector<std::jthread> running;
    for (unsigned i = 0; i < threads; ++i) {
      running.emplace_back([&, i] {
        start.arrive_and_wait();
        (void)take_turns(tables, draws, i * 7919, pairs / 20 + 1);
        each[i] = take_turns(tables, draws, i * 104729, pairs);
      });
    }
  }
  Turns all;
  for (const Turns& one : each) {
    append(all.hits, one.hits);
    append(all.maps, one.maps);
    append(all.ratios, one.ratios);
  }
  HitVerdict verdict;
  verdict.entries = tables.ids.size();
  verdict.threads = threads;
  verdict.ratio = percentile(all.ratios, 0.5);
  verdict.hit = {percentile(all.hits, 0.1), percentile(all.hits, 0.5), percentile(all.hits, 0.9)};
  verdict.map = percentile(all.maps, 0.5);
  verdict.bytes_a_row = tables.bytes_a_row;
  return verdict;
}

}  // namespace

std::vector<HitVerdict> measure_hits(const std::string& url, double scale) {
  const echomq::Client client = must(echomq::Client::open(url));
  const auto pairs = std::max<std::size_t>(static_cast<std::size_t>(100 * scale), 20);
  const auto most = std::max<std::size_t>(static_cast<std::size_t>(1'000'000 * std::min(scale, 1.0)), 100'000);
  std::vector<HitVerdict> out;
  for (const std::size_t count : {std::size_t{10'000}, most}) {
    Tables tables;
    fill(tables, client, count);
    const std::vector<std::uint32_t> draws = draw(count);
    for (const unsigned threads : {1U, 2U})
      out.push_back(measure(tables, draws, threads, pairs));
  }
  return out;
}

}  // namespace echomq_bench
