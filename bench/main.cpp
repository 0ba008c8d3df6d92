// `emq_bench`: the library beside a raw socket that sends the same scripts, on one private server.
//
// Ratios are what counts; rates are of this machine at this moment. Server CPU a job is INFO's used_cpu over jobs.
#include <sys/utsname.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "cases.hpp"
#include "echomq/testing/private_server.hpp"
#include "server_cpu.hpp"

namespace {

void print(const echomq_bench::Verdict& verdict) {
  std::printf("%-34s %6.3f of the floor (must be %.2f)%s  floor %8.0f/s %6.2f µs  library %8.0f/s %6.2f µs%s\n",
              verdict.name.c_str(), verdict.ratio, verdict.must_be, verdict.holds() ? "  ok " : " MISS",
              verdict.floor.rate, verdict.floor.server_cpu, verdict.contender.rate, verdict.contender.server_cpu,
              verdict.saturated ? "" : "  (floor below 95 % of a core)");
  std::fflush(stdout);
}

boost::json::object to_json(const echomq_bench::Run& run) {
  return {{"jobs_per_second", run.rate}, {"server_cpu_us_per_job", run.server_cpu}, {"server_share", run.server_share}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Benches of EchoMQ: ratios to a raw socket that runs the same scripts");
  std::string json_path;
  std::string only;
  double scale = 1.0;
  int pairs = 5;
  app.add_option("--json", json_path, "write the table to this file");
  app.add_option("--only", only, "run the cases whose name contains this");
  app.add_option("--scale", scale, "multiply the number of jobs")->check(CLI::PositiveNumber);
  app.add_option("--pairs", pairs, "alternations of floor and library")->check(CLI::Range(1, 99));
  CLI11_PARSE(app, argc, argv);

  echomq::testing::PrivateServerOptions options;
  options.listen = echomq::testing::Listen::unix_socket;
  auto server = echomq::testing::PrivateServer::start(options);
  if (!server) {
    std::fprintf(stderr, "%s\n", server.error().message().c_str());
    return 4;
  }

  bool all_hold = true;
  boost::json::array rows;
  echomq_bench::Bed bed(*server);
  std::printf("jobs/s and server CPU a job; the library over the floor, median of %d alternations, one Unix socket\n",
              pairs);
  for (const echomq_bench::Case& subject : echomq_bench::make_cases(bed, scale)) {
    if (!only.empty() && subject.name.find(only) == std::string::npos)
      continue;
    const echomq_bench::Verdict verdict = echomq_bench::measure(subject, bed.control(), pairs);
    print(verdict);
    all_hold = all_hold && verdict.holds();
    rows.push_back(boost::json::object{{"name", verdict.name},
                                       {"ratio", verdict.ratio},
                                       {"must_be", verdict.must_be},
                                       {"holds", verdict.holds()},
                                       {"floor_window", verdict.window},
                                       {"floor_saturated", verdict.saturated},
                                       {"floor", to_json(verdict.floor)},
                                       {"library", to_json(verdict.contender)}});
  }
  if (only.empty() || std::string("server_cpu").find(only) != std::string::npos) {
    const echomq_bench::CpuVerdict cpu = echomq_bench::measure_server_cpu(bed, scale, pairs);
    std::printf("%-34s %6.3f of one script a step (must be at most %.2f)%s  %6.2f µs, baseline %6.2f µs\n",
                "server_cpu, whole job, by 100", cpu.ratio, cpu.kMost, cpu.holds() ? "  ok " : " MISS", cpu.ours,
                cpu.baseline);
    boost::json::array scripts;
    for (const std::string& script : cpu.scripts) {
      std::printf("  baseline %s\n", script.c_str());
      scripts.emplace_back(script);
    }
    all_hold = all_hold && cpu.holds();
    rows.push_back(boost::json::object{{"name", "server_cpu"},
                                       {"ratio", cpu.ratio},
                                       {"must_be_at_most", cpu.kMost},
                                       {"holds", cpu.holds()},
                                       {"server_cpu_us_per_job", cpu.ours},
                                       {"baseline_us_per_job", cpu.baseline},
                                       {"baseline_scripts", scripts}});
  }
  if (!json_path.empty()) {
    utsname machine{};
    (void)uname(&machine);
    const boost::json::object table{{"kernel", machine.release}, {"pairs", pairs}, {"scale", scale}, {"cases", rows}};
    std::ofstream out(json_path);
    out << boost::json::serialize(table) << "\n";
    if (!out) {
      std::fprintf(stderr, "cannot write %s\n", json_path.c_str());
      return 1;
    }
  }
  return all_hold ? 0 : 1;
}
