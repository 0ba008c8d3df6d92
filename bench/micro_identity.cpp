// What an id costs: parsed, encoded, minted, put into a key.
#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "echomq/id.hpp"
#include "identity/minter.hpp"
#include "keyspace/keys.hpp"

namespace {

using namespace echomq;

/// Values as they come: close together in time.
std::array<std::uint64_t, 1024> values() {
  std::array<std::uint64_t, 1024> all{};
  std::uint64_t value = 320636799581945856;
  for (std::uint64_t& each : all)
    each = value += 4194304 + (value >> 7) % 4096;
  return all;
}

void encode(benchmark::State& state) {
  const auto all = values();
  std::size_t i = 0;
  for (auto _ : state)
    benchmark::DoNotOptimize(BrandedId::encode("JOB", all[i++ % all.size()]));
}
BENCHMARK(encode)->Name("id/encode");

void base62(benchmark::State& state) {
  const auto all = values();
  std::size_t i = 0;
  for (auto _ : state)
    benchmark::DoNotOptimize(base62_encode(all[i++ % all.size()]));
}
BENCHMARK(base62)->Name("id/base62_encode");

std::array<BrandedId, 1024> ids() {
  std::array<BrandedId, 1024> all;
  const auto numbers = values();
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = BrandedId::encode("JOB", numbers[i]).value();
  return all;
}

void parse(benchmark::State& state) {
  const auto all = ids();
  std::size_t i = 0;
  for (auto _ : state)
    benchmark::DoNotOptimize(JobId::parse(all[i++ % all.size()].text()));
}
BENCHMARK(parse)->Name("id/parse");

void value_of(benchmark::State& state) {
  const auto all = ids();
  std::size_t i = 0;
  for (auto _ : state)
    benchmark::DoNotOptimize(all[i++ % all.size()].value());
}
BENCHMARK(value_of)->Name("id/value");

void hash(benchmark::State& state) {
  const auto all = ids();
  std::size_t i = 0;
  for (auto _ : state)
    benchmark::DoNotOptimize(std::hash<BrandedId>{}(all[i++ % all.size()]));
}
BENCHMARK(hash)->Name("id/hash");

void mint_value(benchmark::State& state) {
  static identity::Minter minter(1);
  for (auto _ : state)
    benchmark::DoNotOptimize(minter.next());
}
BENCHMARK(mint_value)->Name("mint/value")->Threads(1)->Threads(2);

void mint_leased(benchmark::State& state) {
  static identity::Minter minter(1);
  minter.set_valid_until(std::chrono::steady_clock::now() + std::chrono::hours(1));
  for (auto _ : state)
    benchmark::DoNotOptimize(minter.next());
}
BENCHMARK(mint_leased)->Name("mint/value_leased");

void mint_without_clock(benchmark::State& state) {
  std::int64_t now = 1780512970163;
  identity::Minter minter(1, [&now] { return now += 1; });
  for (auto _ : state)
    benchmark::DoNotOptimize(minter.next());
}
BENCHMARK(mint_without_clock)->Name("mint/value_own_clock");

void read_clock(benchmark::State& state) {
  for (auto _ : state)
    benchmark::DoNotOptimize(std::chrono::system_clock::now());
}
BENCHMARK(read_clock)->Name("mint/one_clock_read");

void job_key(benchmark::State& state) {
  const keyspace::QueueKeys keys(QueueName("thumbnails"));
  const auto all = ids();
  std::size_t i = 0;
  for (auto _ : state)
    benchmark::DoNotOptimize(keys.job(all[i++ % all.size()]).view().data());
}
BENCHMARK(job_key)->Name("key/job");

void key_slot(benchmark::State& state) {
  const std::string_view key = "emq:{thumbnails}:job:JOB0NgWEfAEJfs";
  for (auto _ : state) {
    benchmark::DoNotOptimize(key);
    benchmark::DoNotOptimize(keyspace::slot(key));
  }
}
BENCHMARK(key_slot)->Name("key/slot");

}  // namespace
