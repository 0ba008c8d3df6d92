// How soon a table has dropped what another client wrote.
#include "cache_case.hpp"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "echomq/cache.hpp"
#include "measure.hpp"
#include "must.hpp"

namespace echomq_bench {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using echomq::BrandedId;
using echomq::ByteCache;
using echomq::CachedBytes;
using echomq::Coherence;

[[nodiscard]] double microseconds(Clock::duration span) {
  return std::chrono::duration<double, std::micro>(span).count();
}

/// Looks without a pause: when the row went is what is measured, not when somebody was told.
[[nodiscard]] Clock::time_point when_gone(const ByteCache& cache, const BrandedId& id) {
  CachedBytes into;
  const auto until = Clock::now() + 10s;
  while (cache.peek(id, into)) {
    if (Clock::now() > until)
      give_up("the table has not dropped its row in ten seconds");
    std::this_thread::yield();
  }
  return Clock::now();
}

}  // namespace

PushVerdict measure_push(Bed& bed, const std::string& url, double scale) {
  const auto count = std::max<std::size_t>(static_cast<std::size_t>(2000 * scale), 200);
  bed.flush();
  const echomq::Client other = must(echomq::Client::open(url));
  const auto table = [&](const char* name, Coherence coherence) {
    return must(ByteCache::open(
        other, {.table = must(echomq::CacheName::parse(name)), .kind = "USR", .ttl = 600s, .coherence = coherence}));
  };
  const ByteCache hears = table("bench", Coherence::broadcast);
  const ByteCache tracks = table("bench-tracking", Coherence::tracking);
  const echomq::CacheWriter writer(bed.client(), hears.options().table);
  const BrandedId id = must(BrandedId::encode("USR", 1));
  const std::string value(100, 'x');
  std::uint64_t number = 1;
  const auto next = [&] { return must(BrandedId::encode("USR", ++number)); };
  const auto row = [&](const char* name) { return "ecc:{" + std::string(name) + "}:" + std::string(id.text()); };
  const auto write = [&](const char* name) {
    return bed.client().command("SET", row(name), std::string(next().text()) + value, "PX", "600000");
  };
  const auto read = [&](const ByteCache& cache) {
    CachedBytes into;
    // What was written before may still be dropped once more.
    for (int i = 0; i < 100; ++i) {
      (void)must(cache.get(id).get());
      std::this_thread::sleep_for(50us);
      if (cache.peek(id, into))
        return;
    }
    give_up("the table does not keep its row");
  };
  std::minstd_rand random(1);
  std::vector<double> pings, pushes, tracked;
  // Every kind of call comes after a pause, so that threads and clocks have gone to sleep before each alike.
  const auto pause = [&] { std::this_thread::sleep_for(std::chrono::microseconds(500 + random() % 1000)); };
  for (std::size_t i = 0; i < count; ++i) {
    (void)must(write("bench").get());
    read(hears);
    (void)must(write("bench-tracking").get());
    read(tracks);
    pause();
    Clock::time_point start = Clock::now();
    (void)must(bed.client().command("PING").get());
    pings.push_back(microseconds(Clock::now() - start));
    const BrandedId version = next();
    pause();
    start = Clock::now();
    auto told = writer.broadcast(id, version);
    pushes.push_back(microseconds(when_gone(hears, id) - start));
    (void)must(told.get());
    pause();
    start = Clock::now();
    auto written = write("bench-tracking");
    tracked.push_back(microseconds(when_gone(tracks, id) - start));
    (void)must(written.get());
  }
  PushVerdict verdict;
  verdict.ping = percentile(pings, 0.5);
  verdict.p50 = percentile(pushes, 0.5);
  verdict.p99 = percentile(pushes, 0.99);
  verdict.tracking_p50 = percentile(tracked, 0.5);
  return verdict;
}

}  // namespace echomq_bench
