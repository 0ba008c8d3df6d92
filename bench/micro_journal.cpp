// The journal: what an intent costs, a replay, a compaction, and looking through the file when it is opened. The files are in
// $TMPDIR, or /tmp.
#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "echomq/journal.hpp"
#include "echomq/testing/private_server.hpp"

namespace {

using namespace echomq;
namespace fs = std::filesystem;

constexpr LaneId kGroup{"PRT0NgWEfAE00X"};

[[nodiscard]] const Client& client() {
  static const auto server = echomq::testing::PrivateServer::start({.listen = echomq::testing::Listen::unix_socket});
  static const auto opened = Client::open(server.value().url());
  return opened.value();
}

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "echomq-journal-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
      throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path_); }
  [[nodiscard]] CacheJournal journal(JournalKeeps keeps = JournalKeeps::all) const {
    return CacheJournal::open(client(),
                              {.folder = path_, .group = kGroup, .table = "bench", .keeps = keeps, .compact_every = 0})
        .value();
  }

 private:
  std::string path_;
};

/// `count` intents, of `ids` ids in turn.
[[nodiscard]] std::vector<JournalIntent> intents(std::size_t count, std::size_t ids) {
  static const std::uint64_t first = client().mint("USR").value().value();
  std::vector<JournalIntent> out;
  out.reserve(count);
  for (std::size_t i = 0; i < count; ++i)
    out.push_back({client().mint_job().value(),
                   {BrandedId::encode("USR", first + i % ids).value(), client().mint("USR").value()}});
  return out;
}

void tell(benchmark::State& state) {
  const Folder folder;
  CacheJournal journal = folder.journal(state.range(0) == 0 ? JournalKeeps::all : JournalKeeps::unless_power_fails);
  const BrandedId id = client().mint("USR").value();
  for (auto _ : state)
    benchmark::DoNotOptimize(journal.tell(id, client().mint("USR").value()).value());
}

void record(benchmark::State& state) {
  const Folder folder;
  CacheJournal journal = folder.journal(state.range(0) == 0 ? JournalKeeps::all : JournalKeeps::unless_power_fails);
  const auto size = static_cast<std::size_t>(state.range(1));
  for (auto _ : state) {
    state.PauseTiming();
    const std::vector<JournalIntent> some = intents(size, 1000);
    state.ResumeTiming();
    benchmark::DoNotOptimize(journal.record_many(some).value());
  }
  state.SetItemsProcessed(state.iterations() * state.range(1));
}

void replay(benchmark::State& state) {
  const Folder folder;
  CacheJournal journal = folder.journal();
  const auto count = static_cast<std::size_t>(state.range(0));
  (void)journal.record_many(intents(count, count)).value();
  for (auto _ : state)  // after the first one all are still there
    benchmark::DoNotOptimize(journal.replay().value());
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void compact(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    state.PauseTiming();
    std::optional<Folder> folder(std::in_place);
    std::optional<CacheJournal> journal(folder->journal());
    (void)journal->record_many(intents(count, count / 10)).value();
    state.counters["bytes_before"] = static_cast<double>(journal->stats().value().bytes);
    state.ResumeTiming();
    benchmark::DoNotOptimize(journal->compact().value());
    state.PauseTiming();
    state.counters["bytes_after"] = static_cast<double>(journal->stats().value().bytes);
    journal.reset();
    folder.reset();
    state.ResumeTiming();
  }
}

void open(benchmark::State& state) {
  const Folder folder;
  const auto count = static_cast<std::size_t>(state.range(0));
  (void)folder.journal().record_many(intents(count, count)).value();
  for (auto _ : state)
    benchmark::DoNotOptimize(folder.journal());
  state.counters["bytes_an_intent"] =
      static_cast<double>(folder.journal().stats().value().bytes) / static_cast<double>(count);
}

BENCHMARK(tell)->Name("journal/tell")->ArgName("unless_power_fails")->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(record)
    ->Name("journal/record")
    ->ArgNames({"unless_power_fails", "at_once"})
    ->ArgsProduct({{0, 1}, {1, 1000}})
    ->UseRealTime();
BENCHMARK(replay)->Name("journal/replay")->Arg(10'000)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(compact)->Name("journal/compact")->Arg(100'000)->UseRealTime()->Unit(benchmark::kMillisecond)->Iterations(3);
BENCHMARK(open)->Name("journal/open")->Arg(10'000)->Arg(100'000)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
