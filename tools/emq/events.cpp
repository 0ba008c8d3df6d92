// `emq events`: what becomes of jobs, as it happens.
#include "echomq/events.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "commands.hpp"
#include "discover.hpp"
#include "lines.hpp"
#include "text.hpp"
#include "time_argument.hpp"

namespace emq {
namespace {

namespace json = boost::json;

struct EventsArguments {
  std::vector<std::string> queues;
  std::uint64_t count = 0;
};

echomq::UnixMillis now() {
  return std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
}

std::string text_of(const echomq::JobEvent& event, bool as_json) {
  if (!as_json) {
    std::string line =
        fmt::format("{} {} {} {}", to_rfc3339(now()), event.queue.text(), printable(event.name), event.job.text());
    for (const auto& [name, value] : event.extra) {
      line += fmt::format(" {}={}", printable(name), printable(value, 500));
    }
    return line;
  }
  json::object extra;
  for (const auto& [name, value] : event.extra) {
    extra[printable(name)] = is_utf8(value) ? std::string(value) : printable(value);
  }
  return json::serialize(json::object{{"heard_at", to_rfc3339(now())},
                                      {"queue", event.queue.text()},
                                      {"event", printable(event.name)},
                                      {"job", event.job.text()},
                                      {"extra", std::move(extra)}});
}

std::string text_of(const echomq::EventGap& gap, bool as_json) {
  const std::string_view cause = gap.cause == echomq::EventGap::Cause::overflow ? "overflow" : "connection";
  if (!as_json) {
    return fmt::format("{} {} (events may be missing since {}: {})", to_rfc3339(gap.until), gap.queue.text(),
                       to_rfc3339(gap.from), cause);
  }
  return json::serialize(json::object{{"gap", json::object{{"queue", gap.queue.text()},
                                                           {"cause", cause},
                                                           {"from", to_rfc3339(gap.from)},
                                                           {"until", to_rfc3339(gap.until)},
                                                           {"dropped", gap.dropped}}}});
}

Exit tail(Session& session, const EventsArguments& options) {
  std::vector<echomq::QueueName> names;
  for (const std::string& text : options.queues) {
    ECHOMQ_OR_REPORT(const echomq::QueueName name, echomq::QueueName::parse(text));
    names.push_back(name);
  }
  Lines lines(Lines::kMost);
  ECHOMQ_OR_REPORT(const echomq::Client client, session.connect("events", echomq::NodeLease::never));
  if (names.empty()) {
    ECHOMQ_OR_REPORT(const std::set<std::string> found, discover(client));
    for (const std::string& text : found) {
      names.push_back(*echomq::QueueName::parse(text));
    }
  }
  if (names.empty()) {
    return session.report(Exit::not_found, "no_queues", "no queues: name one with --queue, and it need not exist yet");
  }
  echomq::EventListenerOptions listening;
  listening.on_event = [&](const echomq::JobEvent& event) { lines.put(text_of(event, session.json), true); };
  listening.on_gap = [&](const echomq::EventGap& gap) { lines.put(text_of(gap, session.json), false); };
  ECHOMQ_OR_REPORT(const echomq::EventListener listener,
                   echomq::EventListener::open(client, names, std::move(listening)));
  session.note(fmt::format("listening to {} queue{}", names.size(), names.size() == 1 ? "" : "s"));
  for (std::uint64_t left = options.count; options.count == 0 || left > 0;) {
    const auto [line, is_event] = lines.take();
    session.print_line(line);
    if (!session.flush()) {
      break;  // nobody reads any more
    }
    left -= is_event ? 1 : 0;
  }
  lines.close();
  return Exit::ok;
}

}  // namespace

void add_events(CLI::App& app, Session& session, Action& chosen) {
  CLI::App* group = app.add_subcommand("events", "Hear and read what becomes of jobs");
  group->require_subcommand(1);
  auto options = std::make_shared<EventsArguments>();
  CLI::App* command = group->add_subcommand("tail", "One line an event, as it happens; --json: one JSON object a line");
  command->add_option("-q,--queue", options->queues, "Queues to listen to; without it, all that have a key now")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("-n,--count", options->count, "End after so many events; 0: never")->capture_default_str();
  command->final_callback(
      [&session, &chosen, options] { chosen = [&session, options] { return tail(session, *options); }; });
  add_event_log(*group, session, chosen);
}

}  // namespace emq
