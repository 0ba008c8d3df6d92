// Runs a case.
#include "measure.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>

namespace echomq_bench {
namespace {

double own_cpu_seconds() {
  rusage use{};
  (void)getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& of) {
    return static_cast<double>(of.tv_sec) + static_cast<double>(of.tv_usec) / 1e6;
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

template <typename Body>
Run timed(RawSocket& control, std::size_t jobs, const Body& body) {
  const ServerUse before = server_use(control);
  const double own_before = own_cpu_seconds();
  const auto begin = std::chrono::steady_clock::now();
  body();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double own = own_cpu_seconds() - own_before;
  const ServerUse after = server_use(control);
  Run run;
  run.own_cpu = own * 1e6 / static_cast<double>(jobs);
  run.rate = static_cast<double>(jobs) / seconds;
  run.server_cpu = (after.cpu_seconds - before.cpu_seconds) * 1e6 / static_cast<double>(jobs);
  run.server_share = (after.cpu_seconds - before.cpu_seconds) / seconds;
  return run;
}

}  // namespace

double percentile(std::vector<double>& of, double share) {
  const auto at = of.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(of.size() - 1));
  std::nth_element(of.begin(), at, of.end());
  return *at;
}

Verdict measure(const Case& subject, RawSocket& control, int pairs) {
  Verdict verdict;
  verdict.name = subject.name;
  verdict.must_be = subject.must_be;

  // The floor's best window, found before the pairs; also warms the script cache and the allocator.
  double best = 0;
  for (const std::size_t window : subject.windows) {
    subject.prepare(window);
    const Run run = timed(control, subject.jobs, [&] { subject.floor(window); });
    if (run.rate > best) {
      best = run.rate;
      verdict.window = window;
    }
  }
  subject.prepare_contender();
  (void)timed(control, subject.jobs, subject.contender);

  struct Pair {
    double ratio;
    Run floor;
    Run contender;
  };
  std::vector<Pair> measured;
  for (int i = 0; i < pairs * subject.more_pairs; ++i) {
    // A floor that does not saturate the server measures its own client, or a neighbour on the machine: once more.
    Run floor;
    for (int attempt = 0; attempt < 5; ++attempt) {
      subject.prepare(verdict.window);
      floor = timed(control, subject.jobs, [&] { subject.floor(verdict.window); });
      if (!subject.floor_must_saturate || floor.server_share >= 0.95)
        break;
    }
    if (subject.floor_must_saturate && floor.server_share < 0.95)
      verdict.saturated = false;
    subject.prepare_contender();
    const Run contender = timed(control, subject.jobs, subject.contender);
    measured.push_back({contender.rate / floor.rate, floor, contender});
  }
  if (subject.clean)
    subject.clean();
  std::sort(measured.begin(), measured.end(), [](const Pair& a, const Pair& b) { return a.ratio < b.ratio; });
  const Pair& median = measured[measured.size() / 2];
  verdict.ratio = median.ratio;
  verdict.floor = median.floor;
  verdict.contender = median.contender;
  return verdict;
}

}  // namespace echomq_bench
