// What the codec costs: commands written, frames found, replies read.
#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "resp/encode.hpp"
#include "resp/scanner.hpp"
#include "resp/view.hpp"

namespace {

using namespace echomq::resp;

constexpr std::array<std::string_view, 7> kEnqueue = {
    "EVALSHA",
    "e0e1f9fabfc9d4800c877a703b823ac0578ff8db",
    "2",
    "emq:{thumbnails}:job:JOB0NgWEfAEJfs",
    "emq:{thumbnails}:pending",
    "JOB0NgWEfAEJfs",
    "a payload of a hundred bytes, as the figures of this library are given for: it says what to do, no more",
};

void encode_command(benchmark::State& state) {
  std::array<char, 1024> out{};
  for (auto _ : state) {
    benchmark::DoNotOptimize(encoded_size(kEnqueue));
    benchmark::DoNotOptimize(encode_to(out.data(), kEnqueue));
    benchmark::ClobberMemory();
  }
}
BENCHMARK(encode_command)->Name("resp/encode_enqueue");

std::string repeated(std::string_view frame, int times) {
  std::string out;
  for (int i = 0; i < times; ++i)
    out += frame;
  return out;
}

/// Frames found in a buffer of many, as behind a pipeline.
void scan_many(benchmark::State& state, std::string_view frame) {
  const std::string buffer = repeated(frame, 256);
  Scanner scanner;
  for (auto _ : state) {
    std::size_t at = 0;
    while (scanner.scan(buffer.data() + at, buffer.size() - at) == Step::frame)
      at += scanner.frame_size();
    benchmark::DoNotOptimize(at);
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()) * 256);
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * buffer.size()));
}
BENCHMARK_CAPTURE(scan_many, integer, ":1\r\n")->Name("resp/scan_integer");
BENCHMARK_CAPTURE(scan_many, ok, "+OK\r\n")->Name("resp/scan_ok");
BENCHMARK_CAPTURE(scan_many, claim, "*3\r\n$14\r\nJOB0NgWEfAEJfs\r\n$12\r\nsome payload\r\n:1\r\n")
    ->Name("resp/scan_claim");

/// One reply with a hundred jobs: id, payload, token.
std::string batch() {
  return "*100\r\n" + repeated("*3\r\n$14\r\nJOB0NgWEfAEJfs\r\n$12\r\nsome payload\r\n:1\r\n", 100);
}

void scan_batch(benchmark::State& state) {
  const std::string buffer = batch();
  Scanner scanner;
  for (auto _ : state)
    benchmark::DoNotOptimize(scanner.scan(buffer));
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()) * 100);
}
BENCHMARK(scan_batch)->Name("resp/scan_batch_of_100");

void view_batch(benchmark::State& state) {
  const std::string buffer = batch();
  for (auto _ : state) {
    for (const View& job : View(buffer).elements()) {
      auto fields = job.elements();
      benchmark::DoNotOptimize(fields.next().as_text());
      benchmark::DoNotOptimize(fields.next().as_text());
      benchmark::DoNotOptimize(fields.next().as_integer());
    }
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()) * 100);
}
BENCHMARK(view_batch)->Name("resp/view_batch_of_100");

void value_batch(benchmark::State& state) {
  const std::string buffer = batch();
  for (auto _ : state)
    benchmark::DoNotOptimize(to_value(View(buffer)));
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()) * 100);
}
BENCHMARK(value_batch)->Name("resp/value_batch_of_100");

void view_integer(benchmark::State& state) {
  const std::string_view frame = ":1\r\n";
  for (auto _ : state) {
    benchmark::DoNotOptimize(frame);
    benchmark::DoNotOptimize(View(frame).as_integer());
  }
}
BENCHMARK(view_integer)->Name("resp/view_integer");

}  // namespace
