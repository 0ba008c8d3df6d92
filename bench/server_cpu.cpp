// Server CPU a whole job.
#include "server_cpu.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "must.hpp"
#include "queue/exchange.hpp"

namespace echomq_bench {
namespace {

constexpr std::size_t kBatch = 100;
constexpr int kShort = 8;
const std::string kBase = "emq:{bench}:";
const std::string kPayload(100, 'x');

/// Loads a script of the baseline; gives its digest.
std::string load_baseline(Bed& bed, const std::string& name) {
  const std::string path = std::string(ECHOMQ_BASELINE_DIR) + "/" + name + ".lua";
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  const std::string source = text.str();
  const std::string_view parts[] = {"SCRIPT", "LOAD", source};
  const std::string reply = bed.control().command(parts);
  if (source.empty() || !reply.starts_with("$40\r\n"))
    give_up(path + " is not there, or no script");
  return reply.substr(5, 40);
}

struct Baseline {
  std::string enqueue, claim, complete;

  /// Everything that one batch of jobs sends, step by step.
  [[nodiscard]] std::vector<std::vector<std::string>> steps(Bed& bed, std::size_t jobs) const {
    const std::string pending = kBase + "pending";
    const std::string active = kBase + "active";
    const std::string prefix = kBase + "job:";
    std::vector<std::vector<std::string>> all;
    for (std::size_t at = 0; at < jobs; at += kBatch) {
      std::vector<std::string> admit, claims, completes;
      for (std::size_t i = 0; i < kBatch; ++i) {
        const echomq::BrandedId id = must(bed.minter().next("JOB"));
        const std::string row = prefix + std::string(id.text());
        const std::string_view in[] = {"EVALSHA", enqueue, "2", row, pending, id.text(), kPayload};
        const std::string_view out[] = {"EVALSHA", claim, "2", pending, active, prefix, "30000"};
        const std::string_view end[] = {"EVALSHA", complete, "2", active, row, id.text(), "1", kBase};
        admit.push_back(encode(in));
        claims.push_back(encode(out));
        completes.push_back(encode(end));
      }
      all.insert(all.end(), {std::move(admit), std::move(claims), std::move(completes)});
    }
    return all;
  }
};

void run_ours(const echomq::Queue& queue, std::size_t jobs) {
  using namespace echomq::queue;
  const std::vector<echomq::NewJob> fresh(kBatch, echomq::NewJob{kPayload, std::nullopt});
  std::vector<Settlement> done;
  std::size_t completed = 0;
  for (std::size_t at = 0; at <= jobs; at += kBatch) {
    if (at < jobs) {
      for (auto& verdict : must(queue.enqueue_many(fresh).get()))
        (void)must(std::move(verdict));
    }
    const auto request = at < jobs ? std::optional(TakeRequest{.most = kBatch}) : std::nullopt;
    const Exchanged answer = must(exchange(queue, done, request).get());
    completed += static_cast<std::size_t>(std::count(answer.settled.begin(), answer.settled.end(), Settled::completed));
    done.clear();
    for (const TakenJob& one : answer.jobs)
      done.push_back({.id = one.job.id, .token = one.job.token});
  }
  if (completed != jobs)
    give_up("of " + std::to_string(jobs) + " jobs only " + std::to_string(completed) + " were completed");
}

/// The jobs that `metrics:completed` has counted.
std::string completed(Bed& bed) {
  const std::string key = kBase + "metrics:completed";
  const std::string_view parts[] = {"HGET", key, "count"};
  return bed.control().command(parts);
}

}  // namespace

CpuVerdict measure_server_cpu(Bed& bed, double scale, int pairs) {
  const auto batches = std::max<std::size_t>(static_cast<std::size_t>(40 * scale), 10);
  const std::size_t jobs = batches * kBatch;
  CpuVerdict verdict;
  const Baseline baseline{load_baseline(bed, "enqueue"), load_baseline(bed, "claim"), load_baseline(bed, "complete")};
  verdict.scripts = {"enqueue " + baseline.enqueue, "claim " + baseline.claim, "complete " + baseline.complete};

  const auto cpu_of = [&](const auto& body) {
    bed.flush();
    const ServerUse before = server_use(bed.control());
    body();
    const ServerUse after = server_use(bed.control());
    const std::string count = std::to_string(jobs);
    if (completed(bed) != "$" + std::to_string(count.size()) + "\r\n" + count + "\r\n")
      give_up("not every job was completed");
    return (after.cpu_seconds - before.cpu_seconds) * 1e6 / static_cast<double>(jobs);
  };
  struct Pair {
    double baseline;
    double ours;
    [[nodiscard]] double ratio() const { return ours / baseline; }
  };
  std::vector<Pair> measured;
  // Many short pairs: a neighbour on the machine, or a clock that changes, meets both sides of most of them alike.
  for (int i = 0; i <= kShort * pairs; ++i) {
    const auto steps = baseline.steps(bed, jobs);
    Pair pair{};
    pair.baseline = cpu_of([&] {
      for (const auto& step : steps)
        bed.floor().run(step, kBatch);
    });
    pair.ours = cpu_of([&] { run_ours(bed.queue(), jobs); });
    if (i > 0)  // the first warms caches and allocator
      measured.push_back(pair);
  }
  std::sort(measured.begin(), measured.end(), [](const Pair& a, const Pair& b) { return a.ratio() < b.ratio(); });
  const Pair& median = measured[measured.size() / 2];
  verdict.baseline = median.baseline;
  verdict.ours = median.ours;
  verdict.ratio = median.ratio();
  return verdict;
}

}  // namespace echomq_bench
