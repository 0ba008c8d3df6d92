// `emq doctor`: whether a queue is as the protocol has it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <memory>
#include <string>
#include <utility>

#include "arguments.hpp"
#include "commands.hpp"
#include "examine.hpp"
#include "text.hpp"

namespace emq {
namespace {

namespace json = boost::json;

struct Options {
  std::string queue;
  std::size_t most = 100;
};

Exit run(Session& session, const Options& options) {
  ECHOMQ_OR_REPORT(const echomq::QueueName name, echomq::QueueName::parse(options.queue));
  ECHOMQ_OR_REPORT(const echomq::Client client, session.connect("doctor", echomq::NodeLease::never));
  ECHOMQ_OR_REPORT(const Findings found, examine(client, name, options.most));
  const Exit exit = found.counts.empty() ? Exit::ok : Exit::failed;
  if (session.json) {
    json::object counts;
    for (const auto& [kind, count] : found.counts) {
      counts[kind] = count;
    }
    json::array findings;
    for (const Finding& one : found.kept) {
      findings.push_back(
          json::object{{"kind", one.kind}, {one.what, printable(one.name)}, {"says", printable(one.says)}});
    }
    session.print_json(json::object{{"queue", name.text()},
                                    {"rows", found.rows},
                                    {"members", found.members},
                                    {"lanes", found.lanes},
                                    {"counts", std::move(counts)},
                                    {"findings", std::move(findings)}});
    return exit;
  }
  for (const Finding& one : found.kept) {
    session.print_line(fmt::format("{:<24} {} {}: {}", one.kind, one.what, printable(one.name), printable(one.says)));
  }
  for (const auto& [kind, count] : found.counts) {
    if (count > options.most) {
      session.print_line(fmt::format("{:<24} and {} more", kind, count - options.most));
    }
  }
  session.print_line(fmt::format("{} rows, {} members of sets, {} lanes: {}", found.rows, found.members, found.lanes,
                                 found.counts.empty() ? "sound" : "not sound"));
  return exit;
}

}  // namespace

void add_doctor(CLI::App& app, Session& session, Action& chosen) {
  CLI::App* command = app.add_subcommand("doctor", "Look for what is not as the protocol has it; changes nothing");
  auto options = std::make_shared<Options>();
  command->add_option("QUEUE", options->queue, "Queue name")->required();
  command->add_option("-n,--most", options->most, "Findings of each kind that are shown")->capture_default_str();
  command->final_callback(
      [&session, &chosen, options] { chosen = [&session, options] { return run(session, *options); }; });
}

}  // namespace emq
