// `emq doctor`: whether a queue is as the protocol has it; with `--fix` it puts lanes right.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "commands.hpp"
#include "examine.hpp"
#include "keyspace/keys.hpp"
#include "script/registry.hpp"
#include "text.hpp"

namespace emq {
namespace {

namespace json = boost::json;

constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
/// Members of active that one repair may look at: some milliseconds of the server's time.
constexpr std::string_view kMostActive = "10000";

struct DoctorArguments {
  std::string queue;
  std::size_t most = 100;
  bool fix = false;
  bool dry_run = false;
};

/// Script `lane_mend` for one lane, and what came of it.
struct Repair {
  std::string lane;
  std::string error;  ///< empty: done
  std::optional<std::string> said;
  std::int64_t counted = 0;
  std::int64_t turns_before = 0;
  std::int64_t turns = 0;
};

/// What `lane_mend` puts right.
bool is_of_lanes(const Finding& finding) { return finding.what == "lane"; }

std::vector<Repair> planned(const Findings& found) {
  std::set<std::string> lanes;
  for (const Finding& one : found.kept) {
    if (is_of_lanes(one)) {
      lanes.insert(one.name);
    }
  }
  std::vector<Repair> out;
  for (const std::string& lane : lanes) {
    out.emplace_back().lane = lane;
  }
  return out;
}

void mend(const echomq::Client& client, const echomq::QueueName& queue, Repair& repair) {
  const echomq::keyspace::QueueKeys keys(queue);
  const echomq::script::ScriptSource* script = echomq::script::find_script("lane_mend");
  auto answer = client
                    .command("EVAL", script->source, "6", keys.active(), keys.gactive(), keys.ring(), keys.paused(),
                             keys.glimit(), keys.wake(), keys.base(), repair.lane, kMostActive)
                    .get();
  if (!answer) {
    repair.error = answer.error().message();
    return;
  }
  const echomq::Value& reply = *answer;
  if (reply.size() != 4) {
    repair.error = "the server answered " + reply.to_string();
    return;
  }
  if (const auto said = reply[0].as_text()) {
    repair.said = std::string(*said);
  }
  repair.counted = reply[1].as_integer().value_or(0);
  repair.turns_before = reply[2].as_integer().value_or(0);
  repair.turns = reply[3].as_integer().value_or(0);
}

void say(Session& session, const Findings& found, std::size_t most) {
  std::map<std::string, std::size_t> shown;
  for (const Finding& one : found.kept) {
    if (++shown[one.kind] <= most) {
      session.print_line(fmt::format("{:<24} {} {}: {}", one.kind, one.what, printable(one.name), printable(one.says)));
    }
  }
  for (const auto& [kind, count] : found.counts) {
    if (count > most) {
      session.print_line(fmt::format("{:<24} and {} more", kind, count - most));
    }
  }
  session.print_line(fmt::format("{} rows, {} members of sets, {} lanes: {}", found.rows, found.members, found.lanes,
                                 found.counts.empty() ? "sound" : "not sound"));
}

json::object described(const echomq::QueueName& name, const Findings& found, std::size_t most) {
  json::object counts;
  for (const auto& [kind, count] : found.counts) {
    counts[kind] = count;
  }
  std::map<std::string, std::size_t> shown;
  json::array findings;
  for (const Finding& one : found.kept) {
    if (++shown[one.kind] <= most) {
      findings.push_back(
          json::object{{"kind", one.kind}, {one.what, printable(one.name)}, {"says", printable(one.says)}});
    }
  }
  return {{"queue", name.text()}, {"rows", found.rows},          {"members", found.members},
          {"lanes", found.lanes}, {"counts", std::move(counts)}, {"findings", std::move(findings)}};
}

json::object described(const Repair& repair, bool done) {
  json::object out{{"lane", printable(repair.lane)}, {"done", done && repair.error.empty()}};
  if (!repair.error.empty()) {
    out["error"] = printable(repair.error);
  } else if (done) {
    out["count_before"] = repair.said ? json::value(printable(*repair.said)) : json::value();
    out["count"] = repair.counted;
    out["turns_before"] = repair.turns_before;
    out["turns"] = repair.turns;
  }
  return out;
}

std::string text_of(const Repair& repair) {
  if (!repair.error.empty()) {
    return fmt::format("lane {}: not mended: {}", printable(repair.lane), printable(repair.error));
  }
  return fmt::format("lane {}: count {} -> {}, turns {} -> {}", printable(repair.lane),
                     repair.said ? printable(*repair.said) : "none", repair.counted, repair.turns_before, repair.turns);
}

Exit run(Session& session, const DoctorArguments& options) {
  ECHOMQ_OR_REPORT(const echomq::QueueName name, echomq::QueueName::parse(options.queue));
  ECHOMQ_OR_REPORT(const echomq::Client client, session.connect("doctor", echomq::NodeLease::never));
  ECHOMQ_OR_REPORT(Findings found, examine(client, name, options.fix ? kAll : options.most));
  std::vector<Repair> repairs;
  if (options.fix) {
    repairs = planned(found);
  }
  const bool does = !options.dry_run && !repairs.empty();
  if (!session.json) {
    say(session, found, options.most);
    for (const Repair& repair : repairs) {
      session.print_line(fmt::format("{} lane {}: count its jobs in flight anew, and put its turn right (lane_mend)",
                                     does ? "will mend" : "would mend", printable(repair.lane)));
    }
    if (options.fix && !found.counts.empty() && repairs.empty()) {
      session.print_line("nothing of this is mended here");
    }
  }
  if (does) {
    for (Repair& repair : repairs) {
      mend(client, name, repair);
      if (!session.json) {
        session.print_line(text_of(repair));
      }
    }
    ECHOMQ_OR_REPORT(found, examine(client, name, options.most));
    if (!session.json) {
      say(session, found, options.most);
    }
  }
  if (session.json) {
    json::object out = described(name, found, options.most);
    if (options.fix) {
      json::array all;
      for (const Repair& repair : repairs) {
        all.push_back(described(repair, does));
      }
      out["repairs"] = std::move(all);
    }
    session.print_json(out);
  }
  return found.counts.empty() ? Exit::ok : Exit::failed;
}

}  // namespace

void add_doctor(CLI::App& app, Session& session, Action& chosen) {
  CLI::App* command =
      app.add_subcommand("doctor", "Look for what is not as the protocol has it; changes nothing without --fix");
  auto options = std::make_shared<DoctorArguments>();
  command->add_option("QUEUE", options->queue, "Queue name")->required();
  command->add_option("-n,--most", options->most, "Findings of each kind that are shown")->capture_default_str();
  CLI::Option* fix =
      command->add_flag("--fix", options->fix, "Mend lanes: their counts of jobs in flight, their turns");
  command->add_flag("--dry-run", options->dry_run, "With --fix: say what would be done, and do nothing")->needs(fix);
  command->final_callback(
      [&session, &chosen, options] { chosen = [&session, options] { return run(session, *options); }; });
}

}  // namespace emq
