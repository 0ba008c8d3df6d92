// What a table has counted, as JSON in the server.
#include "cache/report.hpp"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <boost/json.hpp>
#include <utility>

#include "client/core.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {
namespace {

/// A report that could not be sent is of no use later.
constexpr std::chrono::milliseconds kLongestSend{2000};

namespace json = boost::json;

[[nodiscard]] double milliseconds_of(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}
[[nodiscard]] json::object object_of(const Latencies& all) {
  return {{"count", all.count},
          {"p50_ms", milliseconds_of(all.percentile(0.5))},
          {"p99_ms", milliseconds_of(all.percentile(0.99))},
          {"max_ms", milliseconds_of(all.max)}};
}

}  // namespace

Report::Report(std::shared_ptr<client::Core> core, const CacheName& table, const BrandedId& process,
               std::chrono::milliseconds every, std::function<CacheStats()> stats)
    : core_(std::move(core)),
      key_(prefix(table) + std::string(process.text())),
      every_(every),
      stats_(std::move(stats)),
      thread_([this] { run(); }) {}

Report::~Report() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::string Report::prefix(const CacheName& table) { return "eccx:{" + std::string(table.text()) + "}:stats:"; }

void Report::run() {
  (void)pthread_setname_np(pthread_self(), "echomq-report");
  for (;;) {
    send();
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, every_, [&] { return stopping_; }))
      return;
  }
}

void Report::send() {
  const CacheStats stats = stats_();
  std::array<char, 256> host{};
  (void)::gethostname(host.data(), host.size() - 1);
  const json::object report{
      {"host", std::string_view(host.data())},
      {"pid", ::getpid()},
      {"hits", stats.hits},
      {"misses", stats.misses},
      {"l2_hits", stats.l2_hits},
      {"fills", stats.fills},
      {"absent", stats.absent},
      {"stale_served", stats.stale_served},
      {"load_errors", stats.load_errors},
      {"superseded", stats.superseded},
      {"outages", stats.outages},
      {"flushes", stats.flushes},
      {"rows", stats.rows},
      {"bytes", stats.bytes},
      {"gone", json::object{{"room", stats.evicted},
                            {"expired", stats.expired},
                            {"replaced", stats.replaced},
                            {"invalidated", stats.invalidated},
                            {"flushed", stats.flushed}}},
      {"load", object_of(stats.load_time)},
      {"coherence_lag", object_of(stats.coherence_lag)},
  };
  const std::string text = json::serialize(report);
  const std::string life = std::to_string(3 * every_.count());
  const std::array<std::string_view, 5> parts = {"SET", key_, text, "PX", life};
  // Whether it got there shows in the next one.
  core_
      ->command<void>(parts, {.repeat = Repeat::safe, .deadline = std::min(every_, kLongestSend), .past_bound = true},
                      [](const wire::Answer&) -> Result<void> { return {}; })
      .detach();
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
