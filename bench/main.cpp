// `emq_bench`: the library beside a raw socket that sends the same scripts, on one private server.
//
// Ratios are what counts; rates are of this machine at this moment. Server CPU a job is INFO's used_cpu over jobs.
#include <sys/utsname.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "bullmq.hpp"
#include "cache_case.hpp"
#include "cache_hit_case.hpp"
#include "cases.hpp"
#include "echomq/testing/private_server.hpp"
#include "pick_up.hpp"
#include "server_cpu.hpp"

namespace {

void print(const echomq_bench::Verdict& verdict) {
  std::printf(
      "%-34s %6.3f of the floor (must be %.2f)%s  floor %8.0f/s %6.2f + %5.2f µs  library %8.0f/s %6.2f + %5.2f µs%s\n",
      verdict.name.c_str(), verdict.ratio, verdict.must_be, verdict.holds() ? "  ok " : " MISS", verdict.floor.rate,
      verdict.floor.server_cpu, verdict.floor.own_cpu, verdict.contender.rate, verdict.contender.server_cpu,
      verdict.contender.own_cpu, verdict.saturated ? "" : "  (floor below 95 % of a core)");
  std::fflush(stdout);
}

constexpr std::string_view kPickUp = "worker, idle pick-up";
constexpr std::string_view kPaced = "worker, 1,000 jobs/s";
constexpr std::string_view kHit = "cache, hit";
constexpr std::string_view kPush = "cache, push to applied";
constexpr std::string_view kPeer = "worker, beside bullmq";
constexpr std::string_view kServerCpu = "worker, server_cpu";

const char* word(bool holds) { return holds ? "  ok " : " MISS"; }

void print(const echomq_bench::PickUpVerdict& verdict) {
  std::printf(
      "%-34s p50 %5.2f, p99 %5.2f of a PING (must be at most %.0f, %.0f)%s  p50 %.0f µs, p99 %.0f µs, PING %.0f µs"
      " (by a raw socket %.0f µs)\n"
      "%-34s p50 %5.2f of the same scripts over two raw sockets (%.0f µs: %.2f of a PING, %.2f of a raw one)\n",
      kPickUp.data(), verdict.median_ratio(), verdict.tail_ratio(), verdict.kMostMedian, verdict.kMostTail,
      word(verdict.holds()), verdict.p50, verdict.p99, verdict.ping, verdict.raw_ping, "", verdict.of_floor(),
      verdict.floor, verdict.floor_ratio(), verdict.floor_raw_ratio());
  std::fflush(stdout);
}

void print(const echomq_bench::PacedVerdict& verdict) {
  std::printf("%-34s p50 %.0f µs, p99 %.0f µs (must be at most %.0f µs)%s  most %.0f µs, %zu jobs\n", kPaced.data(),
              verdict.p50, verdict.p99, verdict.kMostTail, word(verdict.holds()), verdict.most, verdict.jobs);
  std::fflush(stdout);
}

void print(const echomq_bench::PushVerdict& verdict) {
  std::printf(
      "%-34s p50 %5.2f of a PING (must be at most %.0f)%s  p50 %.1f µs, p99 %.1f µs, PING %.1f µs; tracking p50 %.1f "
      "µs\n",
      kPush.data(), verdict.median_ratio(), verdict.kMostMedian, word(verdict.holds()), verdict.p50, verdict.p99,
      verdict.ping, verdict.tracking_p50);
  std::fflush(stdout);
}

void print(const echomq_bench::HitVerdict& verdict) {
  std::printf(
      "%-34s %5.2f of the map (must be at most %.1f)%s  %zu entries, %u threads: %.1f ns (10 %%: %.1f, 90 %%: %.1f%s), "
      "map %.1f ns; "
      "%.1f bytes a row (%.1f)\n",
      kHit.data(), verdict.ratio, verdict.kMostRatio, word(verdict.holds()), verdict.entries, verdict.threads,
      verdict.hit[1], verdict.hit[0], verdict.hit[2], verdict.bounded() ? "; must be at most 60" : "", verdict.map,
      verdict.bytes_a_row, verdict.kMostBytes);
  std::fflush(stdout);
}

void print(const echomq_bench::PeerVerdict& verdict) {
  std::printf("%-34s %6.2f of BullMQ's rate (must be %.0f)%s  ours %8.0f/s, BullMQ %8.0f/s\n", verdict.name.c_str(),
              verdict.ratio, verdict.kLeast, word(verdict.holds()), verdict.ours, verdict.theirs);
  std::fflush(stdout);
}

boost::json::object to_json(const echomq_bench::PickUpVerdict& verdict) {
  return {{"name", kPickUp},
          {"p50_of_ping", verdict.median_ratio()},
          {"p99_of_ping", verdict.tail_ratio()},
          {"holds", verdict.holds()},
          {"p50_us", verdict.p50},
          {"p99_us", verdict.p99},
          {"ping_us", verdict.ping},
          {"raw_ping_us", verdict.raw_ping},
          {"floor_us", verdict.floor},
          {"of_floor", verdict.of_floor()},
          {"floor_of_ping", verdict.floor_ratio()},
          {"floor_of_raw_ping", verdict.floor_raw_ratio()}};
}

boost::json::object to_json(const echomq_bench::PacedVerdict& verdict) {
  return {{"name", kPaced},        {"holds", verdict.holds()}, {"p50_us", verdict.p50},
          {"p99_us", verdict.p99}, {"most_us", verdict.most},  {"jobs", verdict.jobs}};
}

boost::json::object to_json(const echomq_bench::PushVerdict& verdict) {
  return {{"name", kPush},
          {"p50_of_ping", verdict.median_ratio()},
          {"holds", verdict.holds()},
          {"p50_us", verdict.p50},
          {"p99_us", verdict.p99},
          {"ping_us", verdict.ping},
          {"tracking_p50_us", verdict.tracking_p50}};
}

boost::json::object to_json(const echomq_bench::HitVerdict& verdict) {
  return {{"name", kHit},
          {"entries", verdict.entries},
          {"threads", verdict.threads},
          {"of_map", verdict.ratio},
          {"holds", verdict.holds()},
          {"hit_ns", boost::json::array{verdict.hit[0], verdict.hit[1], verdict.hit[2]}},
          {"map_ns", verdict.map},
          {"bytes_a_row", verdict.bytes_a_row}};
}

boost::json::object to_json(const echomq_bench::PeerVerdict& verdict, const std::string& peer) {
  return {{"name", "worker, " + verdict.name},
          {"peer", peer},
          {"ratio", verdict.ratio},
          {"must_be", verdict.kLeast},
          {"holds", verdict.holds()},
          {"jobs_per_second", verdict.ours},
          {"peer_jobs_per_second", verdict.theirs}};
}

boost::json::object to_json(const echomq_bench::Run& run) {
  return {{"jobs_per_second", run.rate},
          {"server_cpu_us_per_job", run.server_cpu},
          {"own_cpu_us_per_job", run.own_cpu},
          {"server_share", run.server_share}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Benches of EchoMQ: ratios to a raw socket that runs the same scripts");
  std::string json_path;
  std::vector<std::string> only;
  double scale = 1.0;
  int pairs = 5;
  app.add_option("--json", json_path, "write the table to this file");
  app.add_option("cases,--only", only, "run the cases whose name contains one of these");
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

  const auto wanted = [&only](std::string_view name) {
    return only.empty() ||
           std::any_of(only.begin(), only.end(), [&](const std::string& part) { return name.find(part) != name.npos; });
  };
  bool all_hold = true;
  boost::json::array rows;
  echomq_bench::Bed bed(*server);
  std::printf(
      "jobs/s and CPU a job, the server's + our own; the library over the floor, median of %d alternations, one Unix "
      "socket\n",
      pairs);
  for (const echomq_bench::Case& subject : echomq_bench::make_cases(bed, scale)) {
    if (!wanted(subject.name))
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
  if (wanted(kPickUp)) {
    const echomq_bench::PickUpVerdict pick_up = echomq_bench::measure_pick_up(bed, scale);
    print(pick_up);
    all_hold = all_hold && pick_up.holds();
    rows.push_back(to_json(pick_up));
  }
  if (wanted(kPaced)) {
    const echomq_bench::PacedVerdict paced = echomq_bench::measure_paced(bed, scale);
    print(paced);
    all_hold = all_hold && paced.holds();
    rows.push_back(to_json(paced));
  }
  if (wanted(kPush)) {
    const echomq_bench::PushVerdict push = echomq_bench::measure_push(bed, server->url(), scale);
    print(push);
    all_hold = all_hold && push.holds();
    rows.push_back(to_json(push));
  }
  if (wanted(kHit)) {
    for (const echomq_bench::HitVerdict& hits : echomq_bench::measure_hits(server->url(), scale)) {
      print(hits);
      all_hold = all_hold && hits.holds();
      rows.push_back(to_json(hits));
    }
  }
  if (wanted(kPeer)) {
    const auto peer = echomq_bench::measure_bullmq(bed, server->socket_path(), scale, pairs);
    if (peer.skipped.empty()) {
      std::printf("beside %s\n", peer.version.c_str());
      for (const echomq_bench::PeerVerdict* verdict : {&peer.process, &peer.end_to_end}) {
        print(*verdict);
        all_hold = all_hold && verdict->holds();
        rows.push_back(to_json(*verdict, peer.version));
      }
    } else {
      std::printf("%-34s SKIPPED: %s\n", std::string(kPeer).c_str(), peer.skipped.c_str());
      rows.push_back(boost::json::object{{"name", kPeer}, {"skipped", peer.skipped}});
    }
  }
  if (wanted(kServerCpu)) {
    const echomq_bench::CpuVerdict cpu = echomq_bench::measure_server_cpu(bed, scale, pairs);
    std::printf("%-34s %6.3f of one script a step (must be at most %.2f)%s  %6.2f µs, baseline %6.2f µs\n",
                kServerCpu.data(), cpu.ratio, cpu.kMost, cpu.holds() ? "  ok " : " MISS", cpu.ours, cpu.baseline);
    boost::json::array scripts;
    for (const std::string& script : cpu.scripts) {
      std::printf("  baseline %s\n", script.c_str());
      scripts.emplace_back(script);
    }
    all_hold = all_hold && cpu.holds();
    rows.push_back(boost::json::object{{"name", kServerCpu},
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
