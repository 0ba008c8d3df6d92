// `emq stream group`: consumer groups of a stream made, moved, looked at and removed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "stream.hpp"
#include "text.hpp"
#include "time_argument.hpp"

namespace emq {
namespace {

namespace json = boost::json;
using echomq::Client;
using echomq::NodeLease;

struct GroupArguments {
  std::string queue;
  std::string stream;
  std::string group;
  std::string position = "latest";
  std::optional<std::string> consumer;
  std::optional<std::string> idle;
  std::uint32_t count = 100;
  bool force = false;
};

Exit list(Session& session, const GroupArguments& options) {
  ECHOMQ_OR_REPORT(const Client client, session.connect("stream", NodeLease::never));
  ECHOMQ_OR_REPORT(const echomq::Stream stream, open_stream(client, options.queue, options.stream));
  ECHOMQ_OR_REPORT(const std::vector<echomq::GroupInfo> groups, stream.groups().get());
  if (groups.empty()) {
    if (const Exit found = find_stream(session, stream); found != Exit::ok) {
      return found;
    }
  }
  json::array rows;
  for (const echomq::GroupInfo& group : groups) {
    if (session.json) {
      rows.push_back(json::object{{"group", printable(group.name)},
                                  {"consumers", group.consumers},
                                  {"pending", group.pending},
                                  {"lag", group.lag ? json::value(*group.lag) : json::value()},
                                  {"last_delivered", group.last_delivered}});
    } else {
      session.print_line(fmt::format(
          "{}: {} consumers, {} pending, lag {}, at {}", printable(group.name), group.consumers, group.pending,
          group.lag ? std::to_string(*group.lag) : std::string("unknown"), group.last_delivered));
    }
  }
  if (session.json) {
    session.print_json(rows);
  }
  return Exit::ok;
}

Exit create(Session& session, const GroupArguments& options) {
  ECHOMQ_OR_REPORT(const Position position, parse_position(options.position));
  ECHOMQ_OR_REPORT(const Client client, session.connect("stream", NodeLease::never));
  ECHOMQ_OR_REPORT(const echomq::Stream stream, open_stream(client, options.queue, options.stream));
  ECHOMQ_OR_REPORT(const echomq::StreamGroup group, stream.group(options.group));
  ECHOMQ_OR_REPORT(const bool made,
                   (position.start ? group.create(*position.start) : group.create_behind(position.behind)).get());
  if (session.json) {
    session.print_json(json::object{{"group", options.group}, {"created", made}});
  } else {
    session.print_line(made ? "created" : "there already; its position stays");
  }
  return Exit::ok;
}

Exit reset(Session& session, const GroupArguments& options) {
  ECHOMQ_OR_REPORT(const Position position, parse_position(options.position));
  ECHOMQ_OR_REPORT(const Client client, session.connect("stream", NodeLease::never));
  ECHOMQ_OR_REPORT(const echomq::Stream stream, open_stream(client, options.queue, options.stream));
  ECHOMQ_OR_REPORT(const echomq::StreamGroup group, stream.group(options.group));
  const auto moved = (position.start ? group.reset(*position.start) : group.reset_behind(position.behind)).get();
  if (!moved) {
    return session.report(moved.error());
  }
  if (session.json) {
    session.print_json(json::object{{"group", options.group}, {"reset", true}});
  } else {
    session.print_line("reset; what is pending stays pending");
  }
  return Exit::ok;
}

/// An empty name is a variable of a script that was not set. All of the group is not what was meant.
bool names_nobody(const GroupArguments& options) { return options.consumer && options.consumer->empty(); }

Exit refuse_nobody(Session& session) {
  return session.report(Exit::usage, "invalid_argument", "--consumer is empty: name one, or leave it out for all");
}

Exit remove(Session& session, const GroupArguments& options) {
  if (names_nobody(options)) {
    return refuse_nobody(session);
  }
  ECHOMQ_OR_REPORT(const Client client, session.connect("stream", NodeLease::never));
  ECHOMQ_OR_REPORT(const echomq::Stream stream, open_stream(client, options.queue, options.stream));
  ECHOMQ_OR_REPORT(const echomq::StreamGroup group, stream.group(options.group));
  const echomq::Removal how = options.force ? echomq::Removal::forced : echomq::Removal::when_idle;
  ECHOMQ_OR_REPORT(const echomq::GroupRemoval gone,
                   (options.consumer ? group.remove_consumer(*options.consumer, how) : group.remove(how)).get());
  if (!gone.removed && gone.pending > 0) {
    return session.report(Exit::refused, "entries_pending",
                          fmt::format("{} entries are pending: --force gives them up", gone.pending));
  }
  if (!gone.removed) {
    return session.report(Exit::not_found, "no_group", "there is no such group or consumer");
  }
  if (session.json) {
    session.print_json(json::object{{"removed", true}, {"pending", gone.pending}});
  } else {
    session.print_line(gone.pending == 0 ? std::string("removed")
                                         : fmt::format("removed, with {} entries pending", gone.pending));
  }
  return Exit::ok;
}

Exit pending(Session& session, const GroupArguments& options) {
  if (names_nobody(options)) {
    return refuse_nobody(session);
  }
  echomq::Milliseconds idle{0};
  if (options.idle) {
    ECHOMQ_OR_REPORT(idle, parse_duration(*options.idle));
  }
  ECHOMQ_OR_REPORT(const Client client, session.connect("stream", NodeLease::never));
  ECHOMQ_OR_REPORT(const echomq::Stream stream, open_stream(client, options.queue, options.stream));
  ECHOMQ_OR_REPORT(const echomq::StreamGroup group, stream.group(options.group));
  ECHOMQ_OR_REPORT(
      const std::vector<echomq::PendingEntry> rows,
      group.pending({.count = options.count, .min_idle = idle, .consumer = options.consumer.value_or("")}).get());
  json::array array;
  for (const echomq::PendingEntry& row : rows) {
    if (session.json) {
      array.push_back(json::object{{"entry", row.entry},
                                   {"consumer", printable(row.consumer)},
                                   {"idle_ms", row.idle.count()},
                                   {"deliveries", row.deliveries}});
    } else {
      session.print_line(fmt::format("{} {} idle {} deliveries {}", row.entry, printable(row.consumer),
                                     to_text(row.idle), row.deliveries));
    }
  }
  if (session.json) {
    session.print_json(array);
  }
  return Exit::ok;
}

Exit consumers(Session& session, const GroupArguments& options) {
  ECHOMQ_OR_REPORT(const Client client, session.connect("stream", NodeLease::never));
  ECHOMQ_OR_REPORT(const echomq::Stream stream, open_stream(client, options.queue, options.stream));
  ECHOMQ_OR_REPORT(const echomq::StreamGroup group, stream.group(options.group));
  ECHOMQ_OR_REPORT(const std::vector<echomq::ConsumerInfo> rows, group.consumers().get());
  json::array array;
  for (const echomq::ConsumerInfo& row : rows) {
    if (session.json) {
      array.push_back(json::object{{"consumer", printable(row.name)},
                                   {"pending", row.pending},
                                   {"idle_ms", row.idle.count()},
                                   {"inactive_ms", row.inactive ? json::value(row.inactive->count()) : json::value()}});
    } else {
      session.print_line(fmt::format("{} pending {} idle {}", printable(row.name), row.pending, to_text(row.idle)));
    }
  }
  if (session.json) {
    session.print_json(array);
  }
  return Exit::ok;
}

}  // namespace

void add_stream_groups(CLI::App& group, Session& session, Action& chosen) {
  CLI::App* groups = group.add_subcommand("group", "Consumer groups of a stream");
  groups->require_subcommand(1);
  auto options = std::make_shared<GroupArguments>();
  const auto add = [&](const char* name, const char* help, Exit (*run)(Session&, const GroupArguments&),
                       bool names_group = true) {
    CLI::App* command = groups->add_subcommand(name, help);
    command->add_option("queue", options->queue, "The queue that the stream is beside")->required();
    command->add_option("stream", options->stream, "Name of the stream")->required();
    if (names_group) {
      command->add_option("group", options->group, "Name of the group")->required();
    }
    command->final_callback(
        [&session, &chosen, options, run] { chosen = [&session, options, run] { return run(session, *options); }; });
    return command;
  };
  constexpr const char* kPositions =
      "head, latest, behind a receipt or an entry id, or from a time on (10m ago, 2026-07-02T09:30:00Z)";
  add("list", "The groups: consumers, pending, lag, position", list, false);
  CLI::App* command = add("create", "Make a group, and the stream when it is missing", create);
  command->add_option("--from", options->position, kPositions)->capture_default_str();
  command = add("reset", "Set what is handed out as new from now on; what is pending stays", reset);
  command->add_option("--to", options->position, kPositions)->required();
  command = add("remove", "Remove a group, or one consumer; 5 while entries are pending", remove);
  command->add_option("--consumer", options->consumer, "Only this consumer");
  command->add_flag("--force", options->force, "Though entries are pending: they are handed out no more");
  command = add("pending", "Entries that were handed out and not acknowledged", pending);
  command->add_option("--consumer", options->consumer, "Of this consumer");
  command->add_option("--idle", options->idle, "Untouched for so long: 30s, 5m");
  command->add_option("-n,--count", options->count, "At most so many")->capture_default_str();
  add("consumers", "Its consumers: pending, idle", consumers);
}

}  // namespace emq
