// `emq job`: what one job is, what is in a set, and the two things done to jobs by hand.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "commands.hpp"
#include "echomq/queue.hpp"
#include "keyspace/keys.hpp"
#include "text.hpp"
#include "time_argument.hpp"

namespace emq {
namespace {

namespace json = boost::json;

struct JobArguments {
  std::string queue;
  std::vector<std::string> ids;
  bool payload_only = false;
  std::string state = "pending";
  std::optional<std::string> lane;
  std::uint32_t limit = 50;
  bool all_dead = false;
};

// A value as JSON: text when it is UTF-8, else under a name that says what it is.
void put_bytes(json::object& object, std::string_view name, std::string_view bytes) {
  if (is_utf8(bytes)) {
    object[name] = bytes;
  } else {
    object[std::string(name) + "_base64"] = base64(bytes);
  }
}

Exit show(Session& session, const JobArguments& options) {
  ECHOMQ_OR_REPORT(const echomq::QueueName queue_name, echomq::QueueName::parse(options.queue));
  ECHOMQ_OR_REPORT(const echomq::JobId id, echomq::JobId::parse(options.ids.at(0)));
  ECHOMQ_OR_REPORT(const echomq::Client client, session.connect("job", echomq::NodeLease::never));
  const echomq::Queue queue = client.queue(queue_name);
  auto state_reply = queue.state(id);
  auto logs_reply = queue.logs(id);
  ECHOMQ_OR_REPORT(const std::optional<echomq::JobRow> row, queue.job(id).get());
  ECHOMQ_OR_REPORT(const echomq::JobState state, std::move(state_reply).get());
  if (!row) {
    return session.report(
        Exit::not_found, "job_gone",
        fmt::format("no job {} in queue {}: completed, removed, or never there", id.text(), queue_name.text()));
  }
  const auto logs = std::move(logs_reply).get().value_or(std::vector<std::string>());
  const std::string* payload = row->find("payload");
  if (options.payload_only) {
    if (payload == nullptr) {
      return session.report(Exit::not_found, "no_payload", "the job has no payload field");
    }
    if (session.json) {
      json::object object;
      put_bytes(object, "payload", *payload);
      session.print_json(object);
    } else if (session.stdout_is_terminal()) {
      session.print_line(printable(*payload));
    } else {
      session.print(*payload);  // exact bytes: a file or a pipe takes them all
    }
    return Exit::ok;
  }
  if (session.json) {
    json::object fields;
    for (const auto& [name, value] : row->fields) {
      put_bytes(fields, printable(name), value);
    }
    json::object object{{"id", id.text()},
                        {"queue", queue_name.text()},
                        {"state", echomq::to_string(state)},
                        {"minted_at", to_rfc3339(id.minted_at())},
                        {"fields", std::move(fields)}};
    json::array lines;
    for (const std::string& line : logs) {
      lines.push_back(json::string(printable(line)));
    }
    object["logs"] = std::move(lines);
    session.print_json(object);
    return Exit::ok;
  }
  session.print_line(fmt::format("id          {}", id.text()));
  session.print_line(fmt::format("state       {}", echomq::to_string(state)));
  session.print_line(fmt::format("minted      {}", to_rfc3339(id.minted_at())));
  for (const auto& [name, value] : row->fields) {
    if (name == "state" || name == "payload") {
      continue;
    }
    session.print_line(fmt::format("{:<11} {}", printable(name), printable(value)));
  }
  if (payload != nullptr) {
    session.print_line(fmt::format("payload     {} ({} bytes)", printable(*payload, 2000), payload->size()));
  }
  for (const std::string& line : logs) {
    session.print_line(fmt::format("log         {}", printable(line)));
  }
  return Exit::ok;
}

// The set that a state's jobs are in, and what its scores are.
struct Set {
  std::string_view state;
  echomq::keyspace::KeyType key;
  std::string_view score;  // the name of the instant in it, empty for none
};
using echomq::keyspace::KeyType;
constexpr Set kStateSets[] = {{"pending", KeyType::pending, ""},
                              {"active", KeyType::active, "lease_until"},
                              {"scheduled", KeyType::schedule, "due"},
                              {"dead", KeyType::dead, ""}};

// [(member, score)]: RESP3 nests the pairs, RESP2 has them flat.
std::vector<std::pair<std::string, double>> pairs(const echomq::Value& value) {
  std::vector<std::pair<std::string, double>> out;
  const auto items = value.items();
  const bool nested = !items.empty() && items[0].is_aggregate();
  for (std::size_t at = 0; at < items.size(); at += nested ? 1 : 2) {
    const echomq::Value* member = nested ? &items[at][0] : &items[at];
    const echomq::Value* score = nested ? &items[at][1] : (at + 1 < items.size() ? &items[at + 1] : nullptr);
    if (score == nullptr) {
      break;
    }
    out.emplace_back(member->as_text().value_or(""), score->as_double().value_or(0));
  }
  return out;
}

Exit list(Session& session, const JobArguments& options) {
  ECHOMQ_OR_REPORT(const echomq::QueueName queue_name, echomq::QueueName::parse(options.queue));
  ECHOMQ_OR_REPORT(const std::optional<echomq::LaneId> lane, parse_optional<echomq::LaneId>(options.lane));
  const Set& set = *std::ranges::find(kStateSets, options.state, &Set::state);
  const echomq::keyspace::QueueKeys keys(queue_name);
  const std::string key = lane ? keys.lane(*lane).str() : keys.fixed(set.key);
  const std::string last = std::to_string(std::int64_t{options.limit} - 1);

  ECHOMQ_OR_REPORT(const echomq::Client client, session.connect("job", echomq::NodeLease::never));
  auto total_reply = client.command("ZCARD", key);
  ECHOMQ_OR_REPORT(const echomq::Value found, client.command("ZRANGE", key, "0", last, "WITHSCORES").get());
  ECHOMQ_OR_REPORT(const echomq::Value total, std::move(total_reply).get());

  const auto jobs = pairs(found);
  json::array array;
  for (const auto& [member, score] : jobs) {
    const echomq::Instant instant{echomq::Milliseconds{static_cast<std::int64_t>(score)}};
    const bool timed = !lane && !set.score.empty();
    if (session.json) {
      json::object object{{"id", printable(member)}, {"state", lane ? "waiting_in_lane" : set.state}};
      if (timed) {
        object[set.score] = to_rfc3339(instant);
      }
      array.push_back(std::move(object));
    } else {
      const std::string when = timed ? fmt::format("  {} {}", set.score, to_rfc3339(instant)) : std::string();
      session.print_line(printable(member) + when);
    }
  }
  if (session.json) {
    session.print_json(array);
  }
  const auto left = total.as_integer().value_or(0) - static_cast<std::int64_t>(jobs.size());
  if (left > 0) {
    session.note(fmt::format("{} more; --limit shows them", left));
  }
  return Exit::ok;
}

// Does one thing to several jobs; the first failure decides the exit code, the others are done all the same.
class Each {
 public:
  Each(Session& session, std::string_view done) : session_(session), done_(done) {}

  /// Gives how many it could not do.
  template <typename Act>
  std::size_t run(const std::vector<echomq::JobId>& ids, Act act) {
    std::vector<echomq::Reply<void>> replies;
    for (const echomq::JobId& id : ids) {
      replies.push_back(act(id));
    }
    std::size_t failed = 0;
    for (std::size_t index = 0; index < ids.size(); ++index) {
      const echomq::Result<void> result = replies[index].get();
      if (!result) {
        ++failed;
      }
      if (!result && exit_ == Exit::ok) {
        exit_ = exit_for(result.error());
      }
      tell(ids[index].text(), result);
    }
    return failed;
  }
  [[nodiscard]] Exit finish() {
    if (session_.json) {
      session_.print_json(array_);
    }
    return exit_;
  }

 private:
  void tell(std::string_view id, const echomq::Result<void>& result) {
    if (session_.json) {
      array_.push_back(json::object{{"id", id}, {"result", result ? done_ : name_of(result.error())}});
    } else if (result) {
      session_.print_line(fmt::format("{} {}", id, done_));
    } else {
      echomq::Error error = result.error();
      error.text = fmt::format("{}{}{}", id, error.text.empty() ? "" : ": ", error.text);
      (void)session_.report(error);
    }
  }

  Session& session_;
  std::string_view done_;
  json::array array_;
  Exit exit_ = Exit::ok;
};

echomq::Result<std::vector<echomq::JobId>> parse_ids(const std::vector<std::string>& texts) {
  std::vector<echomq::JobId> out;
  for (const std::string& text : texts) {
    auto id = echomq::JobId::parse(text);
    if (!id) {
      return echomq::fail(std::move(id).error());
    }
    out.push_back(*id);
  }
  return out;
}

Exit retry(Session& session, const JobArguments& options) {
  if (options.ids.empty() && !options.all_dead) {
    return session.report(Exit::usage, "usage", "name jobs by their ids, or --all-dead");
  }
  ECHOMQ_OR_REPORT(const echomq::QueueName queue_name, echomq::QueueName::parse(options.queue));
  ECHOMQ_OR_REPORT(std::vector<echomq::JobId> ids, parse_ids(options.ids));
  ECHOMQ_OR_REPORT(const echomq::Client client, session.connect("job", echomq::NodeLease::never));
  const echomq::Queue queue = client.queue(queue_name);
  const auto reprocess = [&](const echomq::JobId& id) { return queue.reprocess(id); };
  Each each(session, "pending");
  if (!options.all_dead) {
    each.run(ids, reprocess);
    return each.finish();
  }
  // In bites, each one from where the last one has left something behind.
  constexpr std::size_t kPage = 1000;
  const echomq::keyspace::QueueKeys keys(queue_name);
  for (std::size_t first = 0;;) {
    ECHOMQ_OR_REPORT(
        const echomq::Value members,
        client.command("ZRANGE", keys.dead(), std::to_string(first), std::to_string(first + kPage - 1)).get());
    if (members.size() == 0) {
      return each.finish();
    }
    ids.clear();
    for (const echomq::Value& member : members.items()) {
      if (const auto id = echomq::JobId::parse(member.as_text().value_or(""))) {
        ids.push_back(*id);
      }
    }
    first += members.size() - ids.size() + each.run(ids, reprocess);
  }
}

Exit remove(Session& session, const JobArguments& options) {
  ECHOMQ_OR_REPORT(const echomq::QueueName queue_name, echomq::QueueName::parse(options.queue));
  ECHOMQ_OR_REPORT(const std::vector<echomq::JobId> ids, parse_ids(options.ids));
  ECHOMQ_OR_REPORT(const echomq::Client client, session.connect("job", echomq::NodeLease::never));
  const echomq::Queue queue = client.queue(queue_name);
  Each each(session, "removed");
  each.run(ids, [&](const echomq::JobId& id) { return queue.remove(id); });
  return each.finish();
}

// What a request came to, in the words of the command line.
std::string_view told(echomq::CancelVerdict verdict) {
  switch (verdict) {
    case echomq::CancelVerdict::cancelled: return "cancelled";
    case echomq::CancelVerdict::requested: return "requested: its worker is told";
    case echomq::CancelVerdict::awaiting_children: return "awaits its children: cancel those";
    case echomq::CancelVerdict::dead: return "dead already";
    case echomq::CancelVerdict::unknown: break;
  }
  return "in no set: nothing to cancel";
}

Exit cancel(Session& session, const JobArguments& options) {
  ECHOMQ_OR_REPORT(const echomq::QueueName queue_name, echomq::QueueName::parse(options.queue));
  ECHOMQ_OR_REPORT(const std::vector<echomq::JobId> ids, parse_ids(options.ids));
  ECHOMQ_OR_REPORT(const echomq::Client client, session.connect("job", echomq::NodeLease::never));
  const echomq::Queue queue = client.queue(queue_name);
  std::vector<echomq::Reply<echomq::CancelVerdict>> replies;
  for (const echomq::JobId& id : ids) {
    replies.push_back(queue.cancel(id));
  }
  json::array array;
  Exit exit = Exit::ok;
  for (std::size_t index = 0; index < ids.size(); ++index) {
    const std::string_view id = ids[index].text();
    const echomq::Result<echomq::CancelVerdict> verdict = replies[index].get();
    const bool done =
        verdict && (*verdict == echomq::CancelVerdict::cancelled || *verdict == echomq::CancelVerdict::requested);
    if (!done && exit == Exit::ok) {
      exit = verdict ? Exit::refused : exit_for(verdict.error());
    }
    if (session.json) {
      array.push_back(
          json::object{{"id", id}, {"result", verdict ? echomq::to_string(*verdict) : name_of(verdict.error())}});
    } else if (verdict) {
      session.print_line(fmt::format("{} {}", id, told(*verdict)));
    } else {
      echomq::Error error = verdict.error();
      error.text = fmt::format("{}{}{}", id, error.text.empty() ? "" : ": ", error.text);
      (void)session.report(error);
    }
  }
  if (session.json) {
    session.print_json(array);
  }
  return exit;
}

using Run = Exit (*)(Session&, const JobArguments&);

CLI::App* add(CLI::App& group, Session& session, Action& chosen, std::string name, std::string help, Run run,
              const std::shared_ptr<JobArguments>& options) {
  CLI::App* command = group.add_subcommand(std::move(name), std::move(help));
  command->add_option("QUEUE", options->queue, "Queue name")->required();
  command->final_callback(
      [&session, &chosen, options, run] { chosen = [&session, options, run] { return run(session, *options); }; });
  return command;
}

}  // namespace

void add_job(CLI::App& app, Session& session, Action& chosen) {
  CLI::App* group = app.add_subcommand("job", "Look at jobs, and put them right");
  group->require_subcommand(1);
  auto options = std::make_shared<JobArguments>();

  CLI::App* command = add(*group, session, chosen, "show", "A job's state, fields, payload and log", &show, options);
  command->add_option("ID", options->ids, "Job id")->required()->expected(1);
  command->add_flag("--payload", options->payload_only, "Only the payload, byte by byte when piped");

  command = add(*group, session, chosen, "ls", "The jobs in one state, the next one first", &list, options);
  auto* state = command->add_option("-s,--state", options->state, "pending, active, scheduled or dead")
                    ->check(CLI::IsMember({"pending", "active", "scheduled", "dead"}))
                    ->capture_default_str();
  command->add_option("--lane", options->lane, "Those that wait in this lane")->excludes(state);
  command->add_option("-n,--limit", options->limit, "At most so many")
      ->check(CLI::Range(1U, 1'000'000U))
      ->capture_default_str();

  command = add(*group, session, chosen, "retry", "Make dead jobs pending again", &retry, options);
  auto* ids = command->add_option("ID", options->ids, "Job ids");
  command->add_flag("--all-dead", options->all_dead, "All dead jobs of the queue")->excludes(ids);

  command = add(*group, session, chosen, "cancel", "End jobs: those that wait at once, running ones by their worker",
                &cancel, options);
  command->add_option("ID", options->ids, "Job ids")->required();

  command = add(*group, session, chosen, "rm", "Remove jobs, whatever their state", &remove, options);
  command->add_option("ID", options->ids, "Job ids")->required();
}

}  // namespace emq
