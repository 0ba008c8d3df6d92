// The minter: order over threads, a clock that misbehaves, a lease that lapses.
#include "identity/minter.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

using echomq::BrandedId;
using echomq::Errc;
using echomq::UnixMillis;
using echomq::identity::Minter;
using SteadyClock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr std::int64_t kEpoch = 1704067200000;
constexpr std::int64_t kNow = 1780512970163;

/// A clock that stands still until told otherwise.
struct Clock {
  std::atomic<std::int64_t> now{kNow};
  Minter::ClockFn read() {
    return [this] { return now.load(); };
  }
};

BrandedId id_of(std::uint64_t value) { return BrandedId::encode("JOB", value).value(); }
std::int64_t time_of(std::uint64_t value) { return id_of(value).minted_at().time_since_epoch().count(); }

TEST(Minter, AnIdHoldsTheInstantTheNodeAndASequence) {
  Clock clock;
  Minter minter(777, clock.read());
  clock.now = kNow + 5;
  const BrandedId id = id_of(minter.next().value());
  EXPECT_EQ(time_of(id.value()), kNow + 5);
  EXPECT_EQ(id.node(), 777);
  EXPECT_EQ(id.sequence(), 0);
  EXPECT_EQ(id_of(minter.next().value()).sequence(), 1);
  EXPECT_EQ(minter.node(), 777);
}

TEST(Minter, AClockThatAdvancesRestartsTheSequence) {
  Clock clock;
  Minter minter(1, clock.read());
  for (int i = 0; i < 10; ++i)
    (void)minter.next();
  ++clock.now;
  EXPECT_EQ(id_of(minter.next().value()).sequence(), 0);
}

TEST(Minter, ARunIsOfOneMillisecondAndFollowsWhatWasMinted) {
  Clock clock;
  Minter minter(5, clock.read());
  ++clock.now;
  const std::uint64_t one = minter.next().value();
  const Minter::Run run = minter.next_run(1000).value();
  EXPECT_EQ(run.first, one + 1);
  EXPECT_EQ(run.count, 1000U);
  // What the millisecond has left, then the next one, though the clock stands still.
  const Minter::Run rest = minter.next_run(4096).value();
  EXPECT_EQ(rest.first, run.first + 1000);
  EXPECT_EQ(rest.count, 4096U - 1001U);
  const Minter::Run next = minter.next_run(4096).value();
  EXPECT_EQ(time_of(next.first), clock.now + 1);
  EXPECT_EQ(id_of(next.first).sequence(), 0);
  EXPECT_EQ(id_of(next.first).node(), 5);
  EXPECT_EQ(next.count, 4096U);
  EXPECT_EQ(time_of(minter.next().value()), clock.now + 2);
  minter.stop();
  EXPECT_TRUE(minter.next_run(10).error().is(Errc::node_lease_lost));
}

TEST(Minter, RunsOfManyThreadsDoNotOverlap) {
  Minter minter(1);
  std::vector<std::vector<Minter::Run>> runs(4);
  std::vector<std::thread> threads;
  for (auto& mine : runs) {
    threads.emplace_back([&] {
      for (std::uint32_t i = 0; i < 2000; ++i)
        mine.push_back(minter.next_run(1 + i % 700).value());
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  std::vector<Minter::Run> all;
  for (const auto& mine : runs)
    all.insert(all.end(), mine.begin(), mine.end());
  std::sort(all.begin(), all.end(), [](const Minter::Run& a, const Minter::Run& b) { return a.first < b.first; });
  for (std::size_t i = 1; i < all.size(); ++i)
    ASSERT_GE(all[i].first, all[i - 1].first + all[i - 1].count);
}

TEST(Minter, AFullMillisecondCarriesIntoTheNext) {
  Clock clock;
  Minter minter(1023, clock.read());
  ++clock.now;
  std::uint64_t last = 0;
  for (int i = 0; i < 10'000; ++i) {
    const std::uint64_t value = minter.next().value();
    ASSERT_GT(value, last);
    ASSERT_EQ(id_of(value).node(), 1023);
    ASSERT_EQ(id_of(value).sequence(), i % 4096);
    ASSERT_EQ(time_of(value), kNow + 1 + i / 4096);
    last = value;
  }
  EXPECT_EQ(minter.logical_time(), UnixMillis{std::chrono::milliseconds{kNow + 1 + 2}});
}

TEST(Minter, AClockSetBackGoesOnFromTheLogicalClock) {
  Clock clock;
  Minter minter(5, clock.read());
  std::uint64_t last = minter.next().value();
  for (const std::int64_t back : {kNow - 1, kNow - 3'600'000, kEpoch, kEpoch - 1, std::int64_t{0}, std::int64_t{-7}}) {
    clock.now = back;
    const std::uint64_t value = minter.next().value();
    EXPECT_GT(value, last);
    EXPECT_EQ(time_of(value), kNow);
    last = value;
  }
  clock.now = kNow + 1;
  EXPECT_EQ(time_of(minter.next().value()), kNow + 1);
}

TEST(Minter, AClockOutsideTheRepresentableRangeIsRefused) {
  Clock clock;
  clock.now = kEpoch - 1;
  Minter minter(5, clock.read());
  EXPECT_TRUE(minter.next().error().is(Errc::minter_exhausted));
  clock.now = kEpoch;
  EXPECT_EQ(time_of(minter.next().value()), kEpoch);
  clock.now = kEpoch + (std::int64_t{1} << 41);
  EXPECT_TRUE(minter.next().error().is(Errc::minter_exhausted));
  // A refusal leaves the minter as it was.
  clock.now = kNow;
  EXPECT_EQ(time_of(minter.next().value()), kNow);
}

TEST(Minter, TheLastMillisecondEndsAtItsLastSequence) {
  Clock clock;
  Minter minter(1023, clock.read());
  clock.now = kEpoch + (std::int64_t{1} << 41) - 1;
  std::uint64_t last = 0;
  for (int i = 0; i < 4096; ++i)
    last = minter.next().value();
  EXPECT_EQ(last, echomq::kMaxIdValue);
  EXPECT_TRUE(minter.next().error().is(Errc::minter_exhausted));
  EXPECT_TRUE(minter.next("JOB").error().is(Errc::minter_exhausted));
}

TEST(Minter, ThreadsNeverShareAnIdAndEachSeesThemRise) {
  Minter minter(42);
  constexpr int kThreads = 4;
  constexpr int kEach = 50'000;
  std::vector<std::vector<std::uint64_t>> minted(kThreads);
  {
    std::vector<std::jthread> threads;
    for (auto& mine : minted) {
      threads.emplace_back([&minter, &mine] {
        mine.reserve(kEach);
        for (int i = 0; i < kEach; ++i)
          mine.push_back(minter.next().value());
      });
    }
  }
  std::vector<std::uint64_t> all;
  for (const auto& mine : minted) {
    EXPECT_TRUE(std::ranges::is_sorted(mine));
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::ranges::sort(all);
  EXPECT_EQ(std::ranges::adjacent_find(all), all.end());
  EXPECT_EQ(all.size(), static_cast<std::size_t>(kThreads * kEach));
}

TEST(Minter, NamespacedIdsCheckTheNamespaceFirst) {
  Minter minter(1);
  EXPECT_EQ(minter.next("EVT").value().brand(), "EVT");
  minter.stop();
  EXPECT_TRUE(minter.next("evt").error().is(Errc::id_namespace));
  EXPECT_TRUE(minter.next("EVT").error().is(Errc::node_lease_lost));
}

TEST(Minter, StopsBeforeTheLeaseCanLapseAndGoesOnWhenItIsRenewed) {
  Minter minter(1);
  const auto until = SteadyClock::now() + 500ms;
  minter.set_valid_until(until);
  EXPECT_TRUE(minter.next().has_value());
  for (;;) {
    const auto asked_at = SteadyClock::now();
    if (!minter.next().has_value())
      break;
    ASSERT_LT(asked_at, until) << "asked for after the end of the lease, and given";
    std::this_thread::sleep_for(100us);
  }
  EXPECT_TRUE(minter.lapsed());
  EXPECT_TRUE(minter.next().error().is(Errc::node_lease_lost));
  minter.set_valid_until(SteadyClock::now() + 10s);
  EXPECT_TRUE(minter.next().has_value());
  minter.set_valid_until(SteadyClock::now());
  EXPECT_FALSE(minter.next().has_value());
  minter.set_valid_until(SteadyClock::time_point::max());
  EXPECT_TRUE(minter.next().has_value());
  minter.stop();
  EXPECT_FALSE(minter.next().has_value());
}

TEST(Minter, ANewNodeIdKeepsTheOrderEvenWhenItIsSmaller) {
  Clock clock;
  Minter minter(900, clock.read());
  const std::uint64_t before = minter.next().value();
  minter.stop();
  minter.resume(3, SteadyClock::time_point::max());
  const std::uint64_t after = minter.next().value();
  EXPECT_GT(after, before);
  EXPECT_EQ(id_of(after).node(), 3);
  EXPECT_EQ(time_of(after), kNow + 1);
  // The same node goes on in the same millisecond.
  minter.resume(3, SteadyClock::time_point::max());
  EXPECT_EQ(minter.next().value(), after + 1);
}

TEST(Minter, CanBeMovedPastWhatAFormerHolderMinted) {
  Clock clock;
  Minter minter(9, clock.read());
  const UnixMillis former{std::chrono::milliseconds{kNow + 250}};
  minter.advance_past(former);
  EXPECT_GT(id_of(minter.next().value()).minted_at(), former);
  EXPECT_EQ(minter.node(), 9);
  minter.advance_past(UnixMillis{std::chrono::milliseconds{kNow}});
  minter.advance_past(UnixMillis{});
  EXPECT_EQ(time_of(minter.next().value()), kNow + 251);
}

TEST(Minter, ResumingUnderThreadsNeverMixesANodeWithAnOldInstant) {
  Minter minter(0);
  std::atomic<int> running{2};
  std::vector<std::vector<std::uint64_t>> minted(2);
  {
    std::vector<std::jthread> threads;
    for (auto& mine : minted) {
      threads.emplace_back([&] {
        for (int i = 0; i < 100'000; ++i)
          mine.push_back(minter.next().value());
        --running;
      });
    }
    for (std::uint16_t node = 1; node <= Minter::kMaxNode && running > 0; ++node) {
      minter.resume(node, SteadyClock::time_point::max());
      std::this_thread::yield();
    }
  }
  std::vector<std::uint64_t> all;
  for (const auto& mine : minted) {
    EXPECT_TRUE(std::ranges::is_sorted(mine));
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::ranges::sort(all);
  EXPECT_EQ(std::ranges::adjacent_find(all), all.end());
  // In the order of values the node ids only rise, as they were given.
  EXPECT_TRUE(std::ranges::is_sorted(all, {}, [](std::uint64_t value) { return (value >> 12) & 0x3FF; }));
}

}  // namespace
