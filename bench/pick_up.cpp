// How soon a worker begins a job.
#include "pick_up.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "measure.hpp"
#include "must.hpp"
#include "pick_up_floor.hpp"
#include "worker_case.hpp"

namespace echomq_bench {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kBlock = 50;

[[nodiscard]] double microseconds(Clock::duration span) {
  return std::chrono::duration<double, std::micro>(span).count();
}

}  // namespace

PickUpVerdict measure_pick_up(Bed& bed, double scale) {
  const auto count = std::max<std::size_t>(static_cast<std::size_t>(4000 * scale), 400);
  bed.flush();
  std::mutex mutex;
  std::condition_variable told;
  std::optional<Clock::time_point> begun;
  const auto handler = [&](echomq::Job&) {
    const Clock::time_point now = Clock::now();
    const std::lock_guard lock(mutex);
    begun = now;
    told.notify_one();
    return echomq::Done();
  };
  const echomq::Worker worker = must(echomq::Worker::start(bed.queue(), handler, {.beat = 30s}));
  const std::string_view parts[] = {"PING"};
  const std::string ping = encode(parts);
  std::minstd_rand random(1);
  std::vector<double> pings, raw_pings, pick_ups, floors;
  // What is compared follows the same: a job that was begun, a worker that has parked again, one pause. After a longer one a
  // server has gone colder, and a call that came before warms the next.
  const auto pause = [&] { std::this_thread::sleep_for(std::chrono::microseconds(500 + random() % 1000)); };
  const auto raw_ping = [&] {
    const Clock::time_point start = Clock::now();
    (void)bed.floor().round_trip(ping);
    return microseconds(Clock::now() - start);
  };
  const auto client_ping = [&] {
    const Clock::time_point start = Clock::now();
    (void)must(bed.client().command("PING").get());
    return microseconds(Clock::now() - start);
  };
  const auto pick_up = [&] {
    const Clock::time_point start = Clock::now();
    (void)must(bed.queue().enqueue("x").get());
    std::unique_lock lock(mutex);
    if (!told.wait_for(lock, 60s, [&] { return begun.has_value(); }))
      give_up("the worker has not begun its job in a minute");
    return microseconds(*std::exchange(begun, std::nullopt) - start);
  };
  PickUpFloor floor(bed);
  // By turns, so that whatever else the machine does meets both; in blocks, for each keeps scripts of its own warm.
  for (std::size_t i = 0; i < count; ++i) {
    if (i / kBlock % 2 != 0) {
      floors.push_back(microseconds(floor.sample(pause)));
      continue;
    }
    (void)pick_up();
    wait_parked(bed);
    pause();
    switch (i % 3) {
      case 0: raw_pings.push_back(raw_ping()); break;
      case 1: pings.push_back(client_ping()); break;
      default: pick_ups.push_back(pick_up()); break;
    }
  }
  PickUpVerdict verdict;
  verdict.ping = percentile(pings, 0.5);
  verdict.raw_ping = percentile(raw_pings, 0.5);
  verdict.floor = percentile(floors, 0.5);
  verdict.p50 = percentile(pick_ups, 0.5);
  verdict.p99 = percentile(pick_ups, 0.99);
  return verdict;
}

PacedVerdict measure_paced(Bed& bed, double scale) {
  constexpr auto kEvery = 1ms;
  const auto count = std::max<std::size_t>(static_cast<std::size_t>(5000 * scale), 1000);
  bed.flush();
  std::vector<Clock::time_point> called(count);
  std::vector<double> took(count);
  std::atomic<std::size_t> done{0};
  const echomq::Worker worker = must(echomq::Worker::start(
      bed.queue(),
      [&](echomq::Job& job) {
        const Clock::time_point now = Clock::now();
        std::size_t index = 0;
        (void)std::from_chars(job.payload().data(), job.payload().data() + job.payload().size(), index);
        took.at(index) = microseconds(now - called.at(index));
        ++done;
        return echomq::Done();
      },
      {.concurrency = 10}));
  wait_parked(bed);
  std::vector<echomq::Reply<echomq::Admission>> replies;
  replies.reserve(count);
  Clock::time_point next = Clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    std::this_thread::sleep_until(next += kEvery);
    called[i] = Clock::now();
    replies.push_back(bed.queue().enqueue(std::to_string(i)));
  }
  for (auto& reply : replies)
    (void)must(reply.get());
  const auto until = Clock::now() + 30s;
  while (done < count) {
    if (Clock::now() > until)
      give_up("the worker has not run its jobs in half a minute");
    std::this_thread::sleep_for(1ms);
  }
  PacedVerdict verdict;
  verdict.jobs = count;
  verdict.p50 = percentile(took, 0.5);
  verdict.p99 = percentile(took, 0.99);
  verdict.most = percentile(took, 1.0);
  return verdict;
}

}  // namespace echomq_bench
