// `emq stream tail`: records as they come.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "echomq/subjects.hpp"
#include "echomq/tail.hpp"
#include "lines.hpp"
#include "stream.hpp"
#include "text.hpp"

namespace emq {
namespace {

namespace json = boost::json;
using echomq::Client;
using echomq::NodeLease;

struct TailArguments {
  std::string queue;
  std::vector<std::string> streams;
  std::string match;
  std::string from = "latest";
  std::uint64_t count = 0;
};

Exit tail(Session& session, const TailArguments& options) {
  ECHOMQ_OR_REPORT(const Position position, parse_position(options.from));
  ECHOMQ_OR_REPORT(const Client client, session.connect("stream", NodeLease::never));
  Lines lines(Lines::kMost);
  const bool several = options.streams.size() > 1 || !options.match.empty();
  if (options.streams.empty() == options.match.empty()) {
    return session.report(Exit::usage, "invalid_argument", "name streams, or a pattern with --match");
  }
  const auto heard = [&lines, several, as_json = session.json](const echomq::TailMessage& message) {
    if (as_json) {
      json::object out = to_json(message.record);
      out["stream"] = printable(message.stream.name());
      lines.put(json::serialize(out), true);
    } else {
      lines.put(several ? printable(message.stream.name()) + " " + to_line(message.record) : to_line(message.record),
                true);
    }
  };
  echomq::TailOptions following;
  following.on_error = [&lines, as_json = session.json](const echomq::Stream& stream, const echomq::Error& why) {
    lines.put(as_json ? json::serialize(json::object{{"stream", printable(stream.name())}, {"error", why.message()}})
                      : fmt::format("({} cannot be read: {})", printable(stream.name()), why.message()),
              false);
  };
  following.on_gap = [&lines, as_json = session.json](const echomq::Stream& stream, const echomq::TailGap& gap) {
    if (as_json) {
      json::object missing{{"missed", nullptr}, {"from", gap.from}, {"until", gap.until}};
      if (gap.missed)
        missing["missed"] = *gap.missed;
      lines.put(json::serialize(json::object{{"stream", printable(stream.name())}, {"gap", std::move(missing)}}),
                false);
    } else {
      lines.put(gap.missed ? fmt::format("({} records of {} were removed before they were read)", *gap.missed,
                                         printable(stream.name()))
                           : fmt::format("(records of {} may have been removed before they were read, from {} to {})",
                                         printable(stream.name()), gap.from, gap.until),
                false);
    }
  };
  std::vector<echomq::TailSource> sources;
  for (const std::string& name : options.streams) {
    ECHOMQ_OR_REPORT(echomq::Stream stream, open_stream(client, options.queue, name));
    const bool head = position.start == echomq::GroupStart::head;
    sources.push_back({std::move(stream), head ? std::string("0") : position.behind});
  }
  std::optional<echomq::Tail> by_name;
  std::optional<echomq::SubjectTail> by_pattern;
  if (options.match.empty()) {
    ECHOMQ_OR_REPORT(echomq::Tail started, echomq::Tail::start(sources, heard, std::move(following)));
    by_name.emplace(std::move(started));
    session.note(fmt::format("following {} stream{}", sources.size(), several ? "s" : ""));
  } else {
    ECHOMQ_OR_REPORT(const echomq::QueueName queue, echomq::QueueName::parse(options.queue));
    ECHOMQ_OR_REPORT(const echomq::SubjectPattern pattern, echomq::SubjectPattern::parse(options.match));
    echomq::SubjectTailOptions how;
    how.behind = position.start == echomq::GroupStart::head ? std::string("0") : position.behind;
    how.on_error = following.on_error;
    how.on_gap = following.on_gap;
    ECHOMQ_OR_REPORT(echomq::SubjectTail started, echomq::Subjects(client, queue).tail(pattern, heard, std::move(how)));
    by_pattern.emplace(std::move(started));
    session.note(fmt::format("following what matches {}", options.match));
  }
  for (std::uint64_t left = options.count; options.count == 0 || left > 0;) {
    const auto [line, is_record] = lines.take();
    session.print_line(line);
    if (!session.flush()) {
      break;  // nobody reads any more
    }
    left -= is_record ? 1 : 0;
  }
  lines.close();
  return Exit::ok;
}

}  // namespace

void add_stream_tail(CLI::App& group, Session& session, Action& chosen) {
  auto options = std::make_shared<TailArguments>();
  CLI::App* command = group.add_subcommand("tail", "One line a record, as it comes; --json: one JSON object a line");
  command->add_option("queue", options->queue, "The queue that the streams are beside")->required();
  command->add_option("streams", options->streams, "Names of the streams; they need not exist yet")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--match", options->match,
                      "All streams of these dotted names: orders.*.placed, orders.>; new ones too");
  command
      ->add_option("--since,--from", options->from,
                   "head, latest, behind a receipt or an entry id, or from a time on (10m ago, 2026-07-02T09:30:00Z)")
      ->capture_default_str();
  command->add_option("-n,--count", options->count, "End after so many records; 0: never")->capture_default_str();
  command->final_callback(
      [&session, &chosen, options] { chosen = [&session, options] { return tail(session, *options); }; });
}

}  // namespace emq
