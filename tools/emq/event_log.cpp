// `emq events log` and `emq events keep`: what became of a queue's jobs, from the log that the server keeps when it is told to.
#include "echomq/event_log.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "arguments.hpp"
#include "commands.hpp"
#include "lines.hpp"
#include "stream.hpp"
#include "text.hpp"
#include "time_argument.hpp"

namespace emq {
namespace {

namespace json = boost::json;

struct ReadOptions {
  std::string queue;
  std::optional<std::string> since;
  std::optional<std::string> until;
  std::optional<std::string> cursor;
  std::uint64_t count = 0;
  bool follow = false;
};

struct KeepOptions {
  std::string queue;
  std::optional<std::uint64_t> most;
  std::optional<std::string> age;
  bool claims = false;
  bool no_claims = false;
  bool off = false;
  bool forget = false;
};

std::string text_of(const echomq::LogEntry& entry, const echomq::LogCursor& behind, bool as_json) {
  if (!as_json) {
    std::string line = fmt::format("{} {}", to_rfc3339(entry.time), printable(entry.event));
    if (entry.job) {
      line += fmt::format(" {} attempts={}", entry.job->text(), entry.attempts);
    }
    if (entry.lane) {
      line += fmt::format(" lane={}", printable(*entry.lane));
    }
    for (const auto& [name, value] : entry.extra) {
      line += fmt::format(" {}={}", printable(name), printable(value, 500));
    }
    return line;
  }
  json::object out{{"at", to_rfc3339(entry.time)}, {"entry", entry.id}, {"event", printable(entry.event)}};
  if (entry.job) {
    out["job"] = entry.job->text();
    out["attempts"] = entry.attempts;
  }
  if (entry.lane) {
    out["lane"] = printable(*entry.lane);
  }
  json::object extra;
  for (const auto& [name, value] : entry.extra) {
    extra[printable(name)] = is_utf8(value) ? value : printable(value);
  }
  out["extra"] = std::move(extra);
  out["cursor"] = behind.text();
  return json::serialize(out);
}

std::string text_of(const echomq::LogGap& gap, bool as_json) {
  if (as_json) {
    json::object out{{"from", to_rfc3339(gap.from)}, {"until", to_rfc3339(gap.until)}, {"begun_anew", gap.begun_anew}};
    if (gap.missed) {
      out["missed"] = *gap.missed;
    }
    return json::serialize(json::object{{"gap", std::move(out)}});
  }
  if (gap.begun_anew) {
    return fmt::format("{} (the log was deleted and begun anew)", to_rfc3339(gap.until));
  }
  return fmt::format("{} ({} entries have gone since {})", to_rfc3339(gap.until),
                     gap.missed ? std::to_string(*gap.missed) : "some", to_rfc3339(gap.from));
}

Exit follow(Session& session, const echomq::EventLog& log, std::optional<echomq::LogCursor> from, std::uint64_t count) {
  Lines lines(Lines::kMost);
  echomq::LogTailOptions options;
  options.from = from;
  options.on_entry = [&](const echomq::LogEntry& entry, const echomq::LogCursor& behind) {
    lines.put(text_of(entry, behind, session.json), true);
  };
  options.on_gap = [&](const echomq::LogGap& gap) { lines.put(text_of(gap, session.json), false); };
  ECHOMQ_OR_REPORT(const echomq::LogTail tail, echomq::LogTail::start(log, std::move(options)));
  for (std::uint64_t left = count; count == 0 || left > 0;) {
    const auto [line, is_entry] = lines.take();
    session.print_line(line);
    if (!session.flush()) {
      break;  // nobody reads any more
    }
    left -= is_entry ? 1 : 0;
  }
  lines.close();
  return Exit::ok;
}

/// Behind each entry of a page; by their order the numbers of those that have been passed.
echomq::LogCursor behind(const echomq::LogPage& page, std::size_t index) {
  auto cursor = echomq::LogCursor::parse(page.entries[index].id).value_or(page.next);
  if (page.next.passed) {
    cursor.passed = *page.next.passed - (page.entries.size() - 1 - index);
  }
  return cursor;
}

Exit read(Session& session, const ReadOptions& options) {
  ECHOMQ_OR_REPORT(const echomq::QueueName name, echomq::QueueName::parse(options.queue));
  std::optional<echomq::LogCursor> from;
  echomq::LogReadOptions reading;
  if (options.cursor) {
    ECHOMQ_OR_REPORT(from, echomq::LogCursor::parse(*options.cursor));
  } else if (options.since) {
    ECHOMQ_OR_REPORT(const echomq::UnixMillis since, parse_when(*options.since));
    from = echomq::LogCursor::since(since);
  }
  if (options.until) {
    ECHOMQ_OR_REPORT(reading.until, parse_when(*options.until));
  }
  ECHOMQ_OR_REPORT(const echomq::Client client, session.connect("events", echomq::NodeLease::never));
  const echomq::EventLog log(client, name);
  ECHOMQ_OR_REPORT(const echomq::LogInfo info, log.info().get());
  if (!info.on) {
    session.note(fmt::format("the log of {} is off{}", name.text(), info.length > 0 ? "" : ", and there is none"));
  }
  if (options.follow) {
    return follow(session, log, from, options.count);
  }
  std::uint64_t left = options.count;
  echomq::LogCursor cursor = from.value_or(echomq::LogCursor::beginning());
  for (bool more = true; more;) {
    reading.count = options.count == 0 || left > 1000 ? 1000 : static_cast<std::uint32_t>(left);
    ECHOMQ_OR_REPORT(const echomq::LogPage page, log.read(cursor, reading).get());
    if (page.gap) {
      session.print_line(text_of(*page.gap, session.json));
    }
    for (std::size_t i = 0; i < page.entries.size(); ++i) {
      session.print_line(text_of(page.entries[i], behind(page, i), session.json));
    }
    if (!session.flush()) {
      break;
    }
    left -= page.entries.size();
    cursor = page.next;
    more = page.more && (options.count == 0 || left > 0);
  }
  return Exit::ok;
}

Exit keep(Session& session, const KeepOptions& options) {
  ECHOMQ_OR_REPORT(const echomq::QueueName name, echomq::QueueName::parse(options.queue));
  std::optional<std::chrono::milliseconds> age;
  if (options.age && *options.age != "any") {
    ECHOMQ_OR_REPORT(age, parse_duration(*options.age));
  }
  ECHOMQ_OR_REPORT(const echomq::Client client, session.connect("events", echomq::NodeLease::never));
  const echomq::EventLog log(client, name);
  bool was_on = false;
  if (options.forget) {
    ECHOMQ_OR_REPORT(was_on, log.forget().get());
  } else if (options.off) {
    ECHOMQ_OR_REPORT(was_on, log.turn_off().get());
  } else {
    echomq::LogOptions how;
    ECHOMQ_OR_REPORT(const echomq::LogInfo info, log.info().get());
    if (info.on) {
      how = {.most = info.most, .age = info.age, .claims = info.claims, .deadline = {}};  // what is not named stays
    }
    how.most = options.most.value_or(how.most);
    how.age = options.age ? age : how.age;
    how.claims = (how.claims || options.claims) && !options.no_claims;
    ECHOMQ_OR_REPORT(was_on, log.turn_on(how).get());
  }
  const bool on = !options.off && !options.forget;
  if (session.json) {
    session.print_json(json::object{{"queue", name.text()}, {"on", on}, {"was_on", was_on}});
  } else {
    session.print_line(fmt::format("{}: {}{}", name.text(), on ? "on" : "off", on == was_on ? ", as before" : ""));
  }
  return Exit::ok;
}

}  // namespace

void add_event_log(CLI::App& group, Session& session, Action& chosen) {
  auto reading = std::make_shared<ReadOptions>();
  CLI::App* log = group.add_subcommand("log", "What the log of a queue holds; --json: one JSON object a line");
  log->add_option("queue", reading->queue, "Queue")->required();
  log->add_option("--since", reading->since, "From then on: an instant, or how long ago (10m)");
  log->add_option("--until", reading->until, "Up to then");
  log->add_option("--cursor", reading->cursor, "Behind the entry that was printed with it")->excludes("--since");
  log->add_option("-n,--count", reading->count, "End after so many entries; 0: all")->capture_default_str();
  log->add_flag("-f,--follow", reading->follow, "Go on with what comes; without --since and --cursor only that")
      ->excludes("--until");
  log->final_callback(
      [&session, &chosen, reading] { chosen = [&session, reading] { return read(session, *reading); }; });

  auto keeping = std::make_shared<KeepOptions>();
  CLI::App* keeper = group.add_subcommand("keep", "Turn the log of a queue on or off, for the whole fleet");
  keeper->add_option("queue", keeping->queue, "Queue")->required();
  auto* most = keeper->add_option("--most", keeping->most, "Entries that are kept, about; 100000 when it was off");
  auto* age = keeper->add_option("--age", keeping->age, "How old entries may get (7d); any: without a bound");
  auto* claims = keeper->add_flag("--claims", keeping->claims, "Log claims too");
  auto* no_claims = keeper->add_flag("--no-claims", keeping->no_claims, "Log no claims any more")->excludes(claims);
  auto* off = keeper->add_flag("--off", keeping->off, "Turn it off; what is there stays for a week");
  auto* forget = keeper->add_flag("--forget", keeping->forget, "Turn it off and delete it")->excludes(off);
  for (CLI::Option* end : {off, forget}) {
    end->excludes(most)->excludes(age)->excludes(claims)->excludes(no_claims);
  }
  keeper->final_callback(
      [&session, &chosen, keeping] { chosen = [&session, keeping] { return keep(session, *keeping); }; });
}

}  // namespace emq
