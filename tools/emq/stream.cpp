// `emq stream`: append to event streams, read them, and what the server says about them.
#include "stream.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "client/nodes.hpp"
#include "echomq/subjects.hpp"
#include "keyspace/keys.hpp"
#include "line_ranges.hpp"
#include "payload_reader.hpp"
#include "text.hpp"
#include "time_argument.hpp"

namespace emq {
namespace {

namespace json = boost::json;
using echomq::Client;
using echomq::Errc;
using echomq::NodeLease;

/// Appends on their way while more lines are read.
constexpr std::size_t kInFlight = 4096;
constexpr std::uint32_t kPage = 1000;

struct StreamArguments {
  std::string queue;
  std::string stream;
  std::vector<std::string> fields;
  std::optional<std::string> id;
  std::optional<std::string> lines;
  std::optional<std::string> once;
  bool listed = false;
  std::optional<std::string> since;
  std::optional<std::string> until;
  std::optional<std::string> after;
  bool newest_first = false;
  std::uint64_t count = 100;
};

Exit append_one(Session& session, const Client& client, const echomq::Stream& stream, const StreamArguments& options) {
  ECHOMQ_OR_REPORT(const std::optional<echomq::EventId> id, parse_optional<echomq::EventId>(options.id));
  if (options.once && options.once->empty()) {
    return session.report(Exit::usage, "invalid_argument", "--once is empty: the record would be appended each time");
  }
  std::vector<echomq::Field> fields;
  for (const std::string& text : options.fields) {
    const auto equals = text.find('=');
    if (equals == std::string::npos) {
      return session.report(Exit::usage, "invalid_argument", "not FIELD=VALUE: " + text);
    }
    fields.emplace_back(std::string_view(text).substr(0, equals), std::string_view(text).substr(equals + 1));
  }
  const echomq::AppendOptions how{.id = id,
                                  .once = options.once ? std::string_view(*options.once) : std::string_view()};
  ECHOMQ_OR_REPORT(const echomq::EventId receipt,
                   (options.listed ? echomq::Subjects(client, stream.queue()).append(stream.name(), fields, how)
                                   : stream.append(fields, how))
                       .get());
  if (session.json) {
    session.print_json(json::object{{"queue", stream.queue().text()},
                                    {"stream", stream.name()},
                                    {"id", receipt.text()},
                                    {"entry", receipt.entry_id().text()}});
  } else {
    session.print_line(receipt.text());
  }
  return Exit::ok;
}

/// What has become of the lines, whose receipts come in their order. They are numbered from 1.
class Receipts {
 public:
  void take(const echomq::Result<echomq::EventId>& receipt) {
    const std::uint64_t line = ++lines_;
    if (receipt) {
      ++appended_;
      behind_ += failure_ ? 1 : 0;
      return;
    }
    (receipt.error().is(Errc::outcome_unknown) ? unknown_ : failed_).add(line);
    if (!failure_) {
      first_failed_ = line;
      failure_ = receipt.error();
    }
  }
  [[nodiscard]] bool failed() const noexcept { return failure_.has_value(); }
  [[nodiscard]] json::object json(const echomq::Stream& stream) const {
    json::object out{{"queue", stream.queue().text()}, {"stream", stream.name()},   {"lines", lines_},
                     {"appended", appended_},          {"failed", failed_.count()}, {"unknown", unknown_.count()}};
    if (failure_) {
      out["failed_lines"] = failed_.json();
      out["unknown_lines"] = unknown_.json();
    }
    return out;
  }
  [[nodiscard]] std::string text() const { return fmt::format("{} appended", appended_); }
  /// The first failure, with all that is needed to go on behind it.
  [[nodiscard]] echomq::Error failure() const {
    echomq::Error error = *failure_;
    error.text += fmt::format(" (line {}", first_failed_);
    if (failed_.count() > 0) {
      error.text += "; not appended: " + failed_.text();
    }
    if (unknown_.count() > 0) {
      error.text += "; not known: " + unknown_.text();
    }
    error.text += fmt::format("; {} behind line {} were appended, nothing behind line {} was sent)", behind_,
                              first_failed_, lines_);
    return error;
  }

 private:
  std::uint64_t lines_ = 0;
  std::uint64_t appended_ = 0;
  std::uint64_t behind_ = 0;  ///< appended behind the first that failed
  std::uint64_t first_failed_ = 0;
  LineRanges failed_;
  LineRanges unknown_;
  std::optional<echomq::Error> failure_;
};

/// One record a line of standard input, in their order.
Exit append_lines(Session& session, const echomq::Stream& stream, const StreamArguments& options) {
  if (!options.fields.empty() || options.id || options.once || options.listed) {
    return session.report(Exit::usage, "invalid_argument", "--lines takes no FIELD=VALUE, --id, --once or --listed");
  }
  stop_reading_on_signal();
  LineReader reader(STDIN_FILENO, "standard input", '\n');
  std::deque<echomq::Reply<echomq::EventId>> on_the_way;
  Receipts receipts;
  std::optional<echomq::Error> unread;
  std::uint64_t sent = 0;
  const auto take = [&] {
    receipts.take(on_the_way.front().get());
    on_the_way.pop_front();
  };
  LineBatch batch;
  while (!receipts.failed()) {
    auto more = reader.next(batch, 1000, std::size_t{4} << 20);
    if (!more) {
      unread = std::move(more).error();
      unread->text += fmt::format(" (nothing behind line {} was sent)", sent);
      break;
    }
    if (!*more) {
      break;
    }
    for (std::size_t i = 0; i < batch.size() && !receipts.failed(); ++i) {
      const echomq::Field field{*options.lines, batch[i]};
      on_the_way.push_back(stream.append({&field, 1}));
      ++sent;
      if (on_the_way.size() > kInFlight) {
        take();
      }
    }
    batch.clear();
    if (interrupted() && !receipts.failed()) {
      unread = echomq::Error(Errc::cancelled, fmt::format("interrupted (nothing behind line {} was sent)", sent));
      break;
    }
  }
  while (!on_the_way.empty()) {
    take();
  }
  if (session.json) {
    session.print_json(receipts.json(stream));
  } else {
    session.print_line(receipts.text());
  }
  if (receipts.failed()) {
    return session.report(receipts.failure());
  }
  return unread ? session.report(*unread) : Exit::ok;
}

Exit append(Session& session, const StreamArguments& options) {
  ECHOMQ_OR_REPORT(const Client client, session.connect("stream", NodeLease::at_open));
  ECHOMQ_OR_REPORT(const echomq::Stream stream, open_stream(client, options.queue, options.stream));
  return options.lines ? append_lines(session, stream, options) : append_one(session, client, stream, options);
}

Exit read(Session& session, const StreamArguments& options) {
  std::string from = "-";
  std::string to = "+";
  if (options.since && options.after) {
    return session.report(Exit::usage, "invalid_argument", "--since and --after exclude each other");
  }
  if (options.since) {
    ECHOMQ_OR_REPORT(const echomq::Instant since, parse_when(*options.since));
    ECHOMQ_OR_REPORT(from, echomq::minid_floor(since));
  }
  if (options.after) {
    ECHOMQ_OR_REPORT(const Position after, parse_position(*options.after));
    from = after.start ? (*after.start == echomq::GroupStart::head ? "-" : "+") : "(" + after.behind;
  }
  if (options.until) {
    ECHOMQ_OR_REPORT(const echomq::Instant until, parse_when(*options.until));
    ECHOMQ_OR_REPORT(to, echomq::maxid_ceil(until));
  }
  ECHOMQ_OR_REPORT(const Client client, session.connect("stream", NodeLease::never));
  ECHOMQ_OR_REPORT(const echomq::Stream stream, open_stream(client, options.queue, options.stream));
  std::uint64_t left = options.count == 0 ? UINT64_MAX : options.count;
  bool first = true;
  echomq::ReadOptions how;
  how.direction = options.newest_first ? echomq::Direction::newest_first : echomq::Direction::oldest_first;
  while (left > 0) {
    how.count = static_cast<std::uint32_t>(std::min<std::uint64_t>(left, kPage));
    const auto answered = stream.read(from, to, how).get();
    if (!answered) {
      if (session.json && !first) {
        session.print("]\n");  // what was printed is one value all the same
      }
      return session.report(answered.error());
    }
    const echomq::Page& page = *answered;
    for (const echomq::Record& record : page.records) {
      if (session.json) {
        session.print(first ? "[" : ",\n");
        session.print(json::serialize(to_json(record)));
      } else {
        session.print_line(to_line(record));
      }
      first = false;
    }
    left -= page.records.size();
    if (!page.rest || !session.flush()) {
      break;
    }
    from = page.rest->first;
    to = page.rest->second;
  }
  if (session.json) {
    session.print(first ? "[]\n" : "]\n");
  }
  return first ? find_stream(session, stream) : Exit::ok;
}

Exit info(Session& session, const StreamArguments& options) {
  ECHOMQ_OR_REPORT(const Client client, session.connect("stream", NodeLease::never));
  ECHOMQ_OR_REPORT(const echomq::Stream stream, open_stream(client, options.queue, options.stream));
  auto asked_groups = stream.groups();
  auto asked_oldest = stream.read("-", "+", {.count = 1});
  auto asked_archived = stream.archived();
  ECHOMQ_OR_REPORT(const echomq::StreamInfo info, stream.info().get());
  if (!info.exists) {
    return no_stream(session, stream);
  }
  ECHOMQ_OR_REPORT(const std::vector<echomq::GroupInfo> groups, asked_groups.get());
  ECHOMQ_OR_REPORT(const echomq::Page oldest, asked_oldest.get());
  ECHOMQ_OR_REPORT(const std::optional<echomq::EventId> archived, asked_archived.get());
  const std::string first = oldest.records.empty() ? std::string() : oldest.records.front().entry;
  const auto when = [](std::string_view entry) -> std::string {
    const auto at = instant_of(entry);
    return at ? to_rfc3339(*at) : std::string("-");
  };
  if (session.json) {
    json::object out{{"queue", stream.queue().text()},
                     {"stream", stream.name()},
                     {"length", info.length},
                     {"appended", info.appended},
                     {"oldest", first.empty() ? json::value() : json::value(first)},
                     {"top", info.top},
                     {"max_deleted", info.max_deleted},
                     {"archived", archived ? json::value(archived->text()) : json::value()}};
    json::array rows;
    for (const echomq::GroupInfo& group : groups) {
      rows.push_back(json::object{{"group", group.name},
                                  {"consumers", group.consumers},
                                  {"pending", group.pending},
                                  {"lag", group.lag ? json::value(*group.lag) : json::value()},
                                  {"last_delivered", group.last_delivered}});
    }
    out["groups"] = std::move(rows);
    session.print_json(out);
    return Exit::ok;
  }
  session.print_line(fmt::format("records   {}", info.length));
  session.print_line(fmt::format("appended  {}", info.appended));
  session.print_line(fmt::format("oldest    {}", first.empty() ? "-" : first + "  " + when(first)));
  session.print_line(fmt::format("top       {}  {}", info.top, when(info.top)));
  if (archived) {
    session.print_line(fmt::format("archived  {}", archived->text()));
  }
  for (const echomq::GroupInfo& group : groups) {
    session.print_line(fmt::format(
        "group     {}: {} consumers, {} pending, lag {}, at {}", printable(group.name), group.consumers, group.pending,
        group.lag ? std::to_string(*group.lag) : std::string("unknown"), group.last_delivered));
  }
  return Exit::ok;
}

/// Streams that have a key, whoever wrote them: found by SCAN.
Exit list(Session& session, const StreamArguments& options) {
  ECHOMQ_OR_REPORT(const echomq::QueueName queue, echomq::QueueName::parse(options.queue));
  ECHOMQ_OR_REPORT(const Client client, session.connect("stream", NodeLease::never));
  const std::string prefix = echomq::keyspace::QueueKeys(queue).base() + "stream:";
  // The bytes of the name are no pattern.
  std::string pattern;
  for (const char c : prefix) {
    if (c == '*' || c == '?' || c == '[' || c == ']' || c == '\\') {
      pattern += '\\';
    }
    pattern += c;
  }
  pattern += '*';
  std::set<std::string> names;
  const echomq::client::Nodes nodes(client);
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    std::string cursor = "0";
    do {
      const std::string_view scan[] = {"SCAN", cursor, "MATCH", pattern, "COUNT", "1000", "TYPE", "stream"};
      ECHOMQ_OR_REPORT(const echomq::Value step, nodes.command(node, scan).get());
      if (step.size() != 2) {
        return session.report(Exit::failed, "protocol_error", "SCAN answered " + step.to_string());
      }
      cursor = step[0].as_text().value_or("0");
      for (const echomq::Value& key : step[1].items()) {
        const std::string_view text = key.as_text().value_or("");
        if (text.size() > prefix.size() && echomq::StreamName::is_valid(text.substr(prefix.size()))) {
          names.emplace(text.substr(prefix.size()));
        }
      }
    } while (cursor != "0");
  }
  json::array rows;
  std::vector<std::pair<std::string, echomq::Reply<echomq::StreamInfo>>> asked;
  for (const std::string& name : names) {
    asked.emplace_back(name, client.stream(queue, *echomq::StreamName::parse(name)).info());
  }
  for (auto& [name, reply] : asked) {
    ECHOMQ_OR_REPORT(const echomq::StreamInfo about, reply.get());
    if (session.json) {
      rows.push_back(json::object{
          {"stream", printable(name)}, {"length", about.length}, {"top", about.top}, {"groups", about.groups}});
    } else {
      session.print_line(fmt::format("{:<32} {:>9} records {:>3} groups  top {}", printable(name), about.length,
                                     about.groups, about.top));
    }
  }
  if (session.json) {
    session.print_json(rows);
  }
  return Exit::ok;
}

}  // namespace

void add_stream(CLI::App& app, Session& session, Action& chosen) {
  CLI::App* group = app.add_subcommand(
      "stream", "Append to event streams, read and follow them, look after their groups, archive and length");
  group->require_subcommand(1);
  auto options = std::make_shared<StreamArguments>();
  const auto add = [&](const char* name, const char* help, Exit (*run)(Session&, const StreamArguments&),
                       bool names_stream = true) {
    CLI::App* command = group->add_subcommand(name, help);
    command->add_option("queue", options->queue, "The queue that the stream is beside")->required();
    if (names_stream) {
      command->add_option("stream", options->stream, "Name of the stream")->required();
    }
    command->final_callback(
        [&session, &chosen, options, run] { chosen = [&session, options, run] { return run(session, *options); }; });
    return command;
  };
  CLI::App* command = add("append", "Append a record and print its receipt", append);
  command->add_option("fields", options->fields, "FIELD=VALUE, in this order")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--id", options->id, "A receipt of another system (EVT id); refused when the top is not older");
  command->add_option("--once", options->once,
                      "A key: when a record was appended under it of late, its receipt is printed");
  command->add_flag("--listed", options->listed,
                    "List the stream, so that whoever follows a pattern learns of it at once");
  command
      ->add_option("-l,--lines", options->lines, "One record a line of standard input, the line under this field name")
      ->expected(0, 1)
      ->default_str("data")
      ->type_name("FIELD");
  command = add("read", "Records, oldest first", read);
  command->add_option("--since", options->since, "Minted then or later: 10m, 2d (ago), 2026-07-02T09:30:00Z");
  command->add_option("--until", options->until, "Minted then or before");
  command->add_option("--after", options->after, "Behind this receipt or entry id");
  command->add_option("-n,--count", options->count, "At most so many; 0: all")->capture_default_str();
  command->add_flag("-r,--reverse", options->newest_first, "Newest first");
  add("info", "Length, oldest and newest entry, groups with pending and lag; 3 when there is no such stream", info);
  add("ls", "Streams of the queue that have a key; looks at every key of the server", list, false);
  add_stream_tail(*group, session, chosen);
  add_stream_groups(*group, session, chosen);
  add_stream_archive(*group, session, chosen);
}

}  // namespace emq
