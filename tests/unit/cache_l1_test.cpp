// One shard of L1: what it serves, its bound, its policy, and readers beside a writer.
#include "cache/l1.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace echomq::cache {
namespace {

BrandedId version(std::uint64_t value) { return BrandedId::encode("EVT", value).value(); }

BrandedId row_id(std::uint64_t value) { return BrandedId::encode("USR", value).value(); }

NewRow row(std::uint64_t id, std::string_view value, std::uint64_t of = 1) {
  return {.id = row_id(id), .version = version(of), .value = value, .now = 0, .expires = 100'000, .generation = 1};
}
std::string read(const L1& l1, std::uint64_t id, Ticks now = 0, std::uint32_t generation = 1) {
  CachedBytes into;
  if (!l1.read(row_id(id), now, generation, into))
    return "(none)";
  return into.value.value_or("(absent)");
}

TEST(CacheL1, ServesWhatWasPutUntilItExpires) {
  L1 l1(100'000);
  EXPECT_EQ(read(l1, 7), "(none)");
  EXPECT_TRUE(l1.put(row(7, "seven", 5)));
  CachedBytes into;
  ASSERT_TRUE(l1.read(row_id(7), 40, 1, into));
  EXPECT_EQ(into.value, "seven");
  EXPECT_EQ(into.version, version(5));
  EXPECT_EQ(into.from, CacheFrom::hit);
  EXPECT_EQ(into.age.count(), 40);
  EXPECT_EQ(l1.version_of(row_id(7), 0, 1), 5U);
  EXPECT_EQ(read(l1, 7, 100'000), "(none)") << "never late";
  EXPECT_EQ(read(l1, 7, 99'900), "seven");
  EXPECT_FALSE(l1.version_of(row_id(7), 100'000, 1));
  EXPECT_TRUE(l1.put(row(7, "", 6)));
  EXPECT_EQ(read(l1, 7), "");
  EXPECT_EQ(l1.rows(), 1U);
  EXPECT_TRUE(l1.erase(row_id(7)));
  EXPECT_FALSE(l1.erase(row_id(7)));
  EXPECT_EQ(read(l1, 7), "(none)");
  EXPECT_EQ(l1.bytes(), 0U);
}

TEST(CacheL1, RowsOfAnotherGenerationAreNotServed) {
  L1 l1(100'000);
  EXPECT_TRUE(l1.put(row(1, "old")));
  EXPECT_EQ(read(l1, 1, 0, 2), "(none)");
  EXPECT_FALSE(l1.version_of(row_id(1), 0, 2));
}

TEST(CacheL1, AnAbsenceIsAHitWithoutAValue) {
  L1 l1(100'000);
  NewRow absent = row(1, "", 9);
  absent.absent = true;
  EXPECT_TRUE(l1.put(absent));
  EXPECT_EQ(read(l1, 1), "(absent)");
  EXPECT_EQ(l1.version_of(row_id(1), 0, 1), 9U);
}

TEST(CacheL1, EveryLetterOfAVersionComesBack) {
  L1 l1(100'000);
  for (const BrandedId& id : {BrandedId("AAA00000000000"), BrandedId("ZZZAzL8n0Y58m7"), BrandedId("USR0NgWEfAEJf1")}) {
    NewRow one = row(1, "x");
    one.version = id;
    l1.put(one);
    CachedBytes into;
    ASSERT_TRUE(l1.read(row_id(1), 0, 1, into));
    EXPECT_EQ(into.version, id);
    EXPECT_EQ(into.value, "x");
    EXPECT_EQ(l1.version_of(row_id(1), 0, 1), id.value());
  }
}

TEST(CacheL1, AValueStandsBehindTheNamespaceOfAForeignVersion) {
  L1 l1(1'000'000);
  for (std::size_t size = 0; size < 300; ++size) {
    const std::string value = std::string(size, 'v') + "end";
    for (const BrandedId& id : {BrandedId("USR0NgWEfAEJf1"), BrandedId("EVT0NgWEfAEJf1")}) {
      NewRow one = row(size, value);
      one.version = id;
      ASSERT_TRUE(l1.put(one));
      CachedBytes into;
      ASSERT_TRUE(l1.read(row_id(size), 0, 1, into));
      ASSERT_EQ(into.value, value);
      ASSERT_EQ(into.version, id);
    }
    NewRow absent = row(size, "");
    absent.absent = true;
    ASSERT_TRUE(l1.put(absent));
    ASSERT_EQ(read(l1, size), "(absent)");
  }
}

TEST(CacheL1, TheBoundHoldsAndWhatExceedsItAloneIsRefused) {
  constexpr std::size_t kBound = 64 * 1024;
  L1 l1(kBound);
  std::minstd_rand random(1);
  for (std::uint64_t id = 1; id <= 20'000; ++id) {
    const std::string value(random() % 500, 'v');
    EXPECT_TRUE(l1.put(row(id, value)));
    ASSERT_LE(l1.bytes(), kBound);
  }
  EXPECT_GT(l1.bytes(), kBound * 9 / 10);
  EXPECT_GT(l1.evicted(), 19'000U);
  EXPECT_LT(l1.retired(), 200U) << "what nobody reads is freed";
  EXPECT_TRUE(l1.put(row(1, "small")));
  EXPECT_FALSE(l1.put(row(1, std::string(kBound, 'x'))));
  EXPECT_EQ(read(l1, 1), "(none)") << "the row that it was to replace is gone";
}

TEST(CacheL1, AScanDoesNotDriveOutWhatIsRead) {
  L1 l1(100 * (L1::kRowCost + 10));
  const std::string value(10, 'v');
  for (std::uint64_t id = 1; id <= 50; ++id)
    l1.put(row(id, value));
  for (int round = 0; round < 3; ++round) {
    for (std::uint64_t id = 1; id <= 50; ++id)
      (void)read(l1, id);
  }
  for (std::uint64_t id = 1000; id < 6000; ++id)
    l1.put(row(id, value));
  int kept = 0;
  for (std::uint64_t id = 1; id <= 50; ++id)
    kept += read(l1, id) == value;
  EXPECT_GE(kept, 45);
}

TEST(CacheL1, ExpiredRowsMakeRoomFirstAndPutAndEraseForEverKeepsItSmall) {
  L1 l1(100'000);
  for (std::uint64_t round = 0; round < 200'000; ++round) {
    l1.put(row(round % 3, "value"));
    l1.erase(row_id(round % 3));
  }
  EXPECT_EQ(l1.rows(), 0U);
  EXPECT_EQ(l1.bytes(), 0U);
  EXPECT_LT(l1.retired(), 200U);
}

TEST(CacheL1, ARowThatIsLongOverIsGoneBeforeItsTimeWraps) {
  constexpr Ticks kDay = 24 * 3600 * Ticks{1000};
  L1 l1(100'000);
  l1.put(row(7, "seven"));
  NewRow later = row(8, "eight");
  const auto put_at = [&](Ticks now) {
    later.now = now;
    later.expires = now + 100'000;
    for (std::uint64_t i = 0; i < 100; ++i) {
      later.id = row_id(8 + i % 3);
      l1.put(later);
    }
  };
  put_at(30 * kDay);
  EXPECT_EQ(l1.rows(), 4U) << "may be served as stale still, as far as a shard knows";
  put_at(250 * kDay);
  EXPECT_EQ(l1.rows(), 3U);
  EXPECT_EQ(read(l1, 8, 250 * kDay), "eight");
  EXPECT_EQ(read(l1, 7, 400 * kDay), "(none)");
}

/// Against a map, under any mixture of calls; nothing is evicted.
TEST(CacheL1, IsAMapWhileThereIsRoom) {
  std::mt19937 random(7);
  for (int run = 0; run < 20; ++run) {
    L1 l1(std::size_t{64} << 20);
    std::map<std::uint64_t, std::string> model;
    for (int step = 0; step < 3000; ++step) {
      const std::uint64_t id = random() % 200 * (run % 2 == 0 ? 1 : (std::uint64_t{1} << 40));
      if (random() % 3 == 0) {
        EXPECT_EQ(l1.erase(row_id(id)), model.erase(id) == 1);
      } else {
        model[id] = std::to_string(random());
        EXPECT_TRUE(l1.put(row(id, model[id])));
      }
      const std::uint64_t asked = random() % 200;
      const auto found = model.find(asked);
      ASSERT_EQ(read(l1, asked), found == model.end() ? "(none)" : found->second);
      ASSERT_EQ(l1.rows(), model.size());
    }
  }
}

/// Values are made of their id and version: a torn, freed or foreign row would show.
TEST(CacheL1, ReadersSeeWholeRowsBesideAWriter) {
  constexpr std::uint64_t kIds = 500;
  const auto value_of = [](std::uint64_t id, std::uint64_t of) {
    std::string value;
    while (value.size() < 20 + of % 200)
      value += std::to_string(id) + "/" + std::to_string(of) + ";";
    return value;
  };
  L1 l1(kIds / 2 * (L1::kRowCost + 120));
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> hits{0};
  std::vector<std::thread> readers;
  for (unsigned seed = 1; seed <= 3; ++seed) {
    readers.emplace_back([&, seed] {
      std::minstd_rand random(seed);
      CachedBytes into;
      while (!stop) {
        const std::uint64_t id = random() % kIds;
        if (!l1.read(row_id(id), 0, 1, into))
          continue;
        ASSERT_EQ(into.value, value_of(id, into.version.value()));
        hits.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  std::minstd_rand random(99);
  std::uint64_t writes = 0;
  while (writes < 100'000 || hits < 10'000) {
    const std::uint64_t id = random() % kIds;
    if (random() % 5 == 0) {
      l1.erase(row_id(id));
    } else {
      l1.put(row(id, value_of(id, writes), writes));
    }
    ++writes;
  }
  stop = true;
  for (std::thread& reader : readers)
    reader.join();
}

/// Reads in the destructor of a thread_local object that is older than what its thread reads by, while another thread reads.
struct ReadsAtTheEnd {
  struct Numbers {
    std::uint32_t own = 0;
    std::uint32_t beside = 0;
  };
  std::optional<Numbers>* into = nullptr;

  ReadsAtTheEnd() = default;
  ReadsAtTheEnd(const ReadsAtTheEnd&) = delete;
  ReadsAtTheEnd& operator=(const ReadsAtTheEnd&) = delete;
  ~ReadsAtTheEnd() {
    if (into == nullptr)
      return;
    const epoch::Reading reading;
    std::uint32_t other = 0;
    std::thread([&] {
      const epoch::Reading beside;
      other = beside.number();
    }).join();
    into->emplace(Numbers{reading.number(), other});
  }
};
thread_local ReadsAtTheEnd reads_at_the_end;

// The record had been given back by then, and the next thread took it: when either had read, what the other one still read could be
// freed.
TEST(CacheEpoch, AThreadThatReadsWhileItEndsSharesItsRecordWithNobody) {
  std::optional<ReadsAtTheEnd::Numbers> numbers;
  std::thread([&] {
    reads_at_the_end.into = &numbers;
    const epoch::Reading first;
  }).join();
  ASSERT_TRUE(numbers);
  EXPECT_NE(numbers->own, numbers->beside);
  // And it is given back all the same.
  std::uint32_t later = 0;
  std::thread([&] {
    const epoch::Reading reading;
    later = reading.number();
  }).join();
  EXPECT_LE(later, std::max(numbers->own, numbers->beside));
}

}  // namespace
}  // namespace echomq::cache
