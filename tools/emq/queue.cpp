// `emq queue`: which queues there are, how deep they are, and the switch that stops claims.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "commands.hpp"
#include "discover.hpp"
#include "echomq/queue.hpp"
#include "keyspace/keys.hpp"
#include "text.hpp"

namespace emq {
namespace {

namespace json = boost::json;

struct QueueArguments {
  std::string queue;
};

struct Depths {
  std::string queue;
  echomq::QueueCounts counts;
  bool paused = false;
};

json::object described(const Depths& depths) {
  return {{"queue", depths.queue},          {"pending", depths.counts.pending},
          {"active", depths.counts.active}, {"scheduled", depths.counts.scheduled},
          {"dead", depths.counts.dead},     {"completed", depths.counts.completed},
          {"failed", depths.counts.failed}, {"paused", depths.paused}};
}

Exit list(Session& session, const QueueArguments&) {
  ECHOMQ_OR_REPORT(const echomq::Client client, session.connect("queue", echomq::NodeLease::never));
  ECHOMQ_OR_REPORT(const std::set<std::string> names, discover(client));
  std::vector<echomq::Reply<echomq::QueueCounts>> counts;
  std::vector<echomq::Reply<bool>> paused;
  for (const std::string& name : names) {
    const echomq::Queue queue = client.queue(*echomq::QueueName::parse(name));
    counts.push_back(queue.counts());
    paused.push_back(queue.paused());
  }
  std::vector<Depths> rows;
  for (const std::string& name : names) {
    Depths row{.queue = name, .counts = {}, .paused = false};
    ECHOMQ_OR_REPORT(row.counts, counts[rows.size()].get());
    ECHOMQ_OR_REPORT(row.paused, paused[rows.size()].get());
    rows.push_back(std::move(row));
  }
  if (session.json) {
    json::array array;
    for (const Depths& row : rows) {
      array.push_back(described(row));
    }
    session.print_json(array);
    return Exit::ok;
  }
  if (rows.empty()) {
    session.note("no queues: a queue without a job has no key");
    return Exit::ok;
  }
  session.print_line(fmt::format("{:<32} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9}", "QUEUE", "PENDING", "ACTIVE",
                                 "SCHEDULED", "DEAD", "COMPLETED", "FAILED"));
  for (const Depths& row : rows) {
    session.print_line(fmt::format("{:<32} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9}{}", row.queue, row.counts.pending,
                                   row.counts.active, row.counts.scheduled, row.counts.dead, row.counts.completed,
                                   row.counts.failed, row.paused ? "  paused" : ""));
  }
  return Exit::ok;
}

// What is in the lanes: ring and parked lanes by name, and how deep each is.
struct Lanes {
  std::vector<std::string> names;
  std::vector<std::int64_t> depths;
  std::set<std::string> parked;
};

echomq::Result<Lanes> read_lanes(const echomq::Client& client, const echomq::Queue& queue) {
  const echomq::keyspace::QueueKeys keys(queue.name());
  auto ring_reply = client.command("LRANGE", keys.ring(), "0", "999");
  auto active_reply = client.command("HKEYS", keys.gactive());
  auto parked_reply = client.command("SMEMBERS", keys.paused()).get();
  if (!parked_reply) {
    return echomq::fail(std::move(parked_reply).error());
  }
  Lanes out;
  std::set<std::string> names;
  for (const echomq::Value& name : parked_reply->items()) {
    names.emplace(name.as_text().value_or(""));
    out.parked.emplace(name.as_text().value_or(""));
  }
  for (auto* reply : {&ring_reply, &active_reply}) {
    auto found = reply->get();
    if (!found) {
      return echomq::fail(std::move(found).error());
    }
    for (const echomq::Value& name : found->items()) {
      names.emplace(name.as_text().value_or(""));
    }
  }
  std::vector<echomq::LaneId> lanes;
  for (const std::string& name : names) {
    if (const auto lane = echomq::LaneId::parse(name)) {
      lanes.push_back(*lane);
      out.names.push_back(name);
    }
  }
  if (lanes.empty()) {
    return out;
  }
  auto depths = queue.lane_depths(lanes).get();
  if (!depths) {
    return echomq::fail(std::move(depths).error());
  }
  out.depths = *std::move(depths);
  return out;
}

Exit stats(Session& session, const QueueArguments& options) {
  ECHOMQ_OR_REPORT(const echomq::QueueName name, echomq::QueueName::parse(options.queue));
  ECHOMQ_OR_REPORT(const echomq::Client client, session.connect("queue", echomq::NodeLease::never));
  const echomq::Queue queue = client.queue(name);
  auto paused = queue.paused();
  Depths depths{.queue = options.queue, .counts = {}, .paused = false};
  ECHOMQ_OR_REPORT(depths.counts, queue.counts().get());
  ECHOMQ_OR_REPORT(depths.paused, std::move(paused).get());
  ECHOMQ_OR_REPORT(const Lanes lanes, read_lanes(client, queue));

  if (session.json) {
    json::object object = described(depths);
    json::array array;
    for (std::size_t index = 0; index < lanes.names.size(); ++index) {
      array.push_back(json::object{{"lane", lanes.names[index]},
                                   {"pending", lanes.depths[index]},
                                   {"paused", lanes.parked.contains(lanes.names[index])}});
    }
    object["lanes"] = std::move(array);
    session.print_json(object);
    return Exit::ok;
  }
  const auto line = [&](std::string_view label, std::int64_t value) {
    session.print_line(fmt::format("{:<10} {:>10}", label, value));
  };
  line("pending", depths.counts.pending);
  line("active", depths.counts.active);
  line("scheduled", depths.counts.scheduled);
  line("dead", depths.counts.dead);
  line("completed", depths.counts.completed);
  line("failed", depths.counts.failed);
  session.print_line(fmt::format("{:<10} {:>10}", "paused", depths.paused ? "yes" : "no"));
  for (std::size_t index = 0; index < lanes.names.size(); ++index) {
    session.print_line(fmt::format("lane {} {:>6}{}", lanes.names[index], lanes.depths[index],
                                   lanes.parked.contains(lanes.names[index]) ? "  paused" : ""));
  }
  return Exit::ok;
}

Exit set_paused(Session& session, const QueueArguments& options, bool paused) {
  ECHOMQ_OR_REPORT(const echomq::QueueName name, echomq::QueueName::parse(options.queue));
  ECHOMQ_OR_REPORT(const echomq::Client client, session.connect("queue", echomq::NodeLease::never));
  const echomq::Queue queue = client.queue(name);
  const auto done = paused ? queue.pause().get() : queue.resume().get();
  if (!done) {
    return session.report(done.error());
  }
  if (session.json) {
    session.print_json(json::object{{"queue", name.text()}, {"paused", paused}});
  } else {
    session.print_line(fmt::format("{} {}", name.text(), paused ? "paused: nothing is claimed" : "resumed"));
  }
  return Exit::ok;
}

Exit pause(Session& session, const QueueArguments& options) { return set_paused(session, options, true); }
Exit resume(Session& session, const QueueArguments& options) { return set_paused(session, options, false); }

}  // namespace

void add_queue(CLI::App& app, Session& session, Action& chosen) {
  CLI::App* group = app.add_subcommand("queue", "Look at queues, pause and resume them");
  group->require_subcommand(1);
  auto options = std::make_shared<QueueArguments>();
  const auto add = [&](std::string name, std::string help, Exit (*run)(Session&, const QueueArguments&), bool named) {
    CLI::App* command = group->add_subcommand(std::move(name), std::move(help));
    if (named) {
      command->add_option("QUEUE", options->queue, "Queue name")->required();
    }
    command->final_callback(
        [&session, &chosen, options, run] { chosen = [&session, options, run] { return run(session, *options); }; });
  };
  add("ls", "All queues that have a key", &list, false);
  add("stats", "Depths and counters of one queue, and of its lanes", &stats, true);
  add("pause", "Stop claims; what runs goes on", &pause, true);
  add("resume", "Claim again", &resume, true);
}

}  // namespace emq
