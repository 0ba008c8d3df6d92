// `emq stream archive`, `cat`, `grep` and `trim`: what becomes of old records, and the whole history of a stream.
#include <fmt/format.h>
#include <regex.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "archive/catalog.hpp"
#include "archive/line.hpp"
#include "archive/owner.hpp"
#include "arguments.hpp"
#include "commands.hpp"
#include "echomq/archive.hpp"
#include "echomq/archiver.hpp"
#include "echomq/retention.hpp"
#include "echomq/stream.hpp"
#include "stream.hpp"
#include "text.hpp"
#include "time_argument.hpp"

namespace emq {
namespace {

namespace json = boost::json;
using echomq::Errc;
using echomq::Milliseconds;

struct Limits {
  std::optional<std::uint64_t> count;
  std::optional<std::string> age;
  std::optional<std::uint64_t> bytes;
};

struct ArchiveArguments {
  std::string queue;
  std::string stream;
  std::string folder;
  // What is kept.
  Limits keep;
  Limits hard;
  std::vector<std::string> groups;
  bool exact = false;
  bool archived = false;
  bool store = false;
  bool show = false;
  bool clear = false;
  // Archiving.
  bool once = false;
  bool verify = false;
  bool go_on = false;
  std::string every = "1s";
  std::string settle = "0";
  std::string sync = "fold";
  std::uint64_t segment_bytes = std::uint64_t{64} << 20;
  // Reading.
  bool offline = false;
  std::optional<std::string> since;
  std::optional<std::string> until;
  std::optional<std::string> after;
  std::uint64_t count = 0;
  bool newest_first = false;
  // Searching.
  std::string pattern;
  std::optional<std::string> field;
  bool fixed = false;
  bool ignore_case = false;
  bool count_only = false;
};

echomq::Result<echomq::RetentionLimits> limits_of(const Limits& given) {
  echomq::RetentionLimits limits{.count = given.count, .age = std::nullopt, .bytes = given.bytes};
  if (given.age) {
    const auto age = parse_duration(*given.age);
    if (!age) {
      return echomq::fail(age.error());
    }
    limits.age = *age;
  }
  return limits;
}

echomq::Result<echomq::RetentionPolicy> policy_of(const ArchiveArguments& options) {
  echomq::RetentionPolicy policy;
  auto keep = limits_of(options.keep);
  auto hard = limits_of(options.hard);
  if (!keep || !hard) {
    return echomq::fail((keep ? hard : keep).error());
  }
  policy.keep = *keep;
  policy.hard = *hard;
  policy.how = options.exact ? echomq::Trim::exact : echomq::Trim::approximate;
  policy.archived_only = options.archived;
  if (options.groups == std::vector<std::string>{"all"}) {
    policy.guard = echomq::GroupGuard::all;
  } else if (!options.groups.empty()) {
    policy.guard = echomq::GroupGuard::named;
    policy.groups = options.groups;
  }
  return policy;
}

bool limits_given(const Limits& limits) { return limits.count || limits.age || limits.bytes; }

echomq::Result<echomq::Stream> stream_of(const echomq::Client& client, const ArchiveArguments& options) {
  return open_stream(client, options.queue, options.stream);
}

/// Whether the archive is the stream's, as far as it says whose it is. Needs no server.
echomq::Result<void> check_owner(echomq::SegmentStore& store, const ArchiveArguments& options) {
  const auto queue = echomq::QueueName::parse(options.queue);
  if (!queue) {
    return echomq::fail(queue.error());
  }
  const auto name = echomq::StreamName::parse(options.stream);
  if (!name) {
    return echomq::fail(name.error());
  }
  const auto objects = store.list();
  if (!objects) {
    return echomq::fail(objects.error());
  }
  const auto named =
      echomq::archive::check_owner(store, *objects, echomq::archive::owner_text(queue->text(), name->text()));
  return named ? echomq::Result<void>() : echomq::fail(named.error());
}

// trim

std::string_view held_text(echomq::HeldBy held) {
  switch (held) {
    case echomq::HeldBy::groups: return "groups";
    case echomq::HeldBy::archive: return "archive";
    case echomq::HeldBy::nothing: break;
  }
  return "nothing";
}

Exit show_policy(Session& session, const echomq::Stream& stream) {
  ECHOMQ_OR_REPORT(const std::optional<echomq::RetentionPolicy> policy, echomq::get_retention(stream).get());
  if (!policy) {
    return session.report(Exit::not_found, "no_policy", "no retention policy stands on the server for this stream");
  }
  session.print_line(policy->text());
  return Exit::ok;
}

Exit trim(Session& session, const ArchiveArguments& options) {
  ECHOMQ_OR_REPORT(const echomq::RetentionPolicy policy, policy_of(options));
  const bool trims = !options.show && !options.clear;
  if (trims && !limits_given(options.keep) && !limits_given(options.hard)) {
    return session.report(Exit::usage, "usage", "say what is kept: --keep-count, --keep-age or --keep-bytes");
  }
  ECHOMQ_OR_REPORT(const echomq::Client client, session.connect("stream", echomq::NodeLease::never));
  ECHOMQ_OR_REPORT(const echomq::Stream stream, stream_of(client, options));
  if (options.show) {
    return show_policy(session, stream);
  }
  if (options.clear) {
    ECHOMQ_OR_REPORT(const bool was, echomq::clear_retention(stream).get());
    if (session.json) {
      session.print_json(json::object{{"cleared", was}});
    } else {
      session.print_line(was ? "cleared: no sweeper trims it by a policy of the server" : "there was none");
    }
    return Exit::ok;
  }
  if (options.store) {
    if (const auto stored = echomq::put_retention(stream, policy).get(); !stored) {
      return session.report(stored.error());
    }
    session.print_line(policy.text());
    return Exit::ok;
  }
  ECHOMQ_OR_REPORT(const echomq::Retained done, echomq::retain(stream, policy).get());
  if (done.removed == 0) {
    if (const Exit found = find_stream(session, stream); found != Exit::ok) {
      return found;
    }
  }
  if (session.json) {
    session.print_json(
        json::object{{"removed", done.removed}, {"held_by", held_text(done.held_by)}, {"more", done.more}});
  } else {
    session.print_line(fmt::format(
        "{} removed{}{}", done.removed, done.more ? ", more to remove" : "",
        done.held_by == echomq::HeldBy::nothing ? "" : fmt::format(", more held by {}", held_text(done.held_by))));
  }
  return Exit::ok;
}

// archive

/// How far the server says that the stream is archived. A server that cannot be asked is remarked upon.
std::optional<echomq::EventId> watermark(const Session& session, const ArchiveArguments& options) {
  const auto asked = [&]() -> echomq::Result<std::optional<echomq::EventId>> {
    const auto client = session.connect("stream", echomq::NodeLease::never);
    if (!client) {
      return echomq::fail(client.error());
    }
    const auto stream = stream_of(*client, options);
    return stream ? stream->archived().get() : echomq::fail(stream.error());
  }();
  if (!asked) {
    session.warn("watermark_not_compared", asked.error().message());
    return std::nullopt;
  }
  return *asked;
}

Exit verify(Session& session, const ArchiveArguments& options) {
  ECHOMQ_OR_REPORT(const auto store, echomq::LocalSegments::open_existing(options.folder));
  if (const auto mine = check_owner(*store, options); !mine) {
    return session.report(mine.error());
  }
  // Asked before: an archiver may be at work, and files are never behind it.
  const std::optional<echomq::EventId> mark = options.offline ? std::nullopt : watermark(session, options);
  ECHOMQ_OR_REPORT(echomq::ArchiveReport report, echomq::verify_archive(*store));
  if (mark) {
    const auto end = echomq::bus::parse_entry(report.last);
    if (!end || *end < echomq::archive::number_of(*mark)) {
      report.faults.push_back(fmt::format("records up to {} count as archived, and the files end at {}",
                                          mark->entry_id().text(), report.last.empty() ? "none" : report.last));
    }
  }
  if (session.json) {
    session.print_json(json::object{{"segments", report.segments},
                                    {"watermark", mark ? json::value(mark->text()) : json::value()},
                                    {"frames", report.frames},
                                    {"records", report.records},
                                    {"bytes", report.bytes},
                                    {"raw_bytes", report.raw_bytes},
                                    {"first", report.first},
                                    {"last", report.last},
                                    {"faults", json::array(report.faults.begin(), report.faults.end())}});
  } else {
    session.print_line(fmt::format("{} records in {} files, {} bytes ({} of lines){}", report.records, report.segments,
                                   report.bytes, report.raw_bytes,
                                   report.records == 0 ? "" : fmt::format(", {} to {}", report.first, report.last)));
    for (const std::string& fault : report.faults) {
      session.print_line(fault);
    }
  }
  return report.faults.empty() ? Exit::ok : Exit::failed;
}

/// Until somebody asks for the end. The signals are blocked in every thread that was started since.
void wait_for_signal(const sigset_t& signals) {
  int number = 0;
  (void)sigwait(&signals, &number);
}

Exit archive(Session& session, const ArchiveArguments& options) {
  if (options.verify) {
    return verify(session, options);
  }
  echomq::ArchiverOptions how;
  ECHOMQ_OR_REPORT(how.period, parse_duration(options.every));
  ECHOMQ_OR_REPORT(how.settle, parse_duration(options.settle));
  how.segment_bytes = options.segment_bytes;
  how.continue_at_watermark = options.go_on;
  how.durability = options.sync == "never"      ? echomq::Durability::never
                   : options.sync == "interval" ? echomq::Durability::interval
                                                : echomq::Durability::each_fold;
  if (limits_given(options.keep) || limits_given(options.hard)) {
    ECHOMQ_OR_REPORT(how.retention, policy_of(options));
  } else if (!options.groups.empty() || options.exact) {
    return session.report(
        Exit::usage, "usage",
        "--groups and --exact are of a trim: say what is kept, with --keep-count, --keep-age or --keep-bytes");
  }
  how.log = [&session](echomq::LogLevel, std::string_view event, std::span<const echomq::LogField> fields) {
    std::string text;
    for (const echomq::LogField& field : fields) {
      text += fmt::format("{}{}={}", text.empty() ? "" : " ", field.name, field.value);
    }
    session.warn(event, text);
  };
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  if (!options.once) {
    (void)pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  }
  ECHOMQ_OR_REPORT(const auto store, echomq::LocalSegments::open(options.folder));
  ECHOMQ_OR_REPORT(const echomq::Client client, session.connect("stream", echomq::NodeLease::never));
  ECHOMQ_OR_REPORT(const echomq::Stream stream, stream_of(client, options));
  ECHOMQ_OR_REPORT(echomq::Archiver archiver, echomq::Archiver::make(stream, store, std::move(how)));
  // Once in any case: what cannot work is told at once.
  const auto first = archiver.fold();
  if (!first && (options.once || first.error().code != echomq::ArchiveErrc::held)) {
    return session.report(first.error());
  }
  if (!options.once) {
    session.note(first ? "archiving; interrupt to end" : "another archiver is at work: standing by");
    archiver.start();
    wait_for_signal(signals);
  }
  archiver.stop();
  const echomq::ArchiverStats stats = archiver.stats();
  const echomq::FoldReport& total = stats.total;
  if (session.json) {
    session.print_json(json::object{{"folded", total.folded},
                                    {"trimmed", total.trimmed},
                                    {"bytes", total.bytes},
                                    {"cut", total.cut},
                                    {"errors", stats.errors}});
  } else {
    session.print_line(fmt::format("{} folded into {} bytes, {} trimmed{}{}", total.folded, total.bytes, total.trimmed,
                                   total.cut > 0 ? fmt::format(", {} bytes of a torn tail cut", total.cut) : "",
                                   stats.errors > 0 ? fmt::format(", {} errors", stats.errors) : ""));
  }
  return stats.failure ? session.report(*stats.failure) : Exit::ok;
}

// cat, grep

echomq::Result<echomq::HistoryRange> range_of(const ArchiveArguments& options) {
  std::optional<echomq::Instant> since;
  std::optional<echomq::Instant> until;
  for (const auto& [text, instant] : {std::pair{&options.since, &since}, std::pair{&options.until, &until}}) {
    if (!*text) {
      continue;
    }
    const auto at = parse_when(**text);
    if (!at) {
      return echomq::fail(at.error());
    }
    *instant = *at;
  }
  auto range = echomq::HistoryRange::between(since, until);
  if (!range) {
    return range;
  }
  if (options.after) {
    const auto id = echomq::EventId::parse(*options.after);
    range->from = "(" + (id ? std::string(id->entry_id().text()) : *options.after);
  }
  range->direction = options.newest_first ? echomq::Direction::newest_first : echomq::Direction::oldest_first;
  return range;
}

/// Calls `each` with every record of the range until it answers false.
Exit read_history(Session& session, const ArchiveArguments& options,
                  const std::function<bool(const echomq::Record&)>& each) {
  if (options.since && options.after) {
    return session.report(Exit::usage, "usage", "--since and --after exclude each other");
  }
  if (options.offline && options.folder.empty()) {
    return session.report(Exit::usage, "usage", "--offline reads an archive: name its folder with --dir");
  }
  ECHOMQ_OR_REPORT(const echomq::HistoryRange range, range_of(options));
  std::shared_ptr<echomq::SegmentStore> store;
  if (!options.folder.empty()) {
    ECHOMQ_OR_REPORT(store, echomq::LocalSegments::open_existing(options.folder));
  }
  bool any = false;
  const auto all = [&](auto reader) {
    for (;;) {
      const auto record = reader.next();
      if (!record) {
        return session.report(record.error());
      }
      if (!*record) {
        return Exit::ok;
      }
      any = true;
      if (!each(**record)) {
        return Exit::ok;
      }
    }
  };
  if (store) {
    if (const auto mine = check_owner(*store, options); !mine) {
      return session.report(mine.error());
    }
  }
  if (options.offline) {
    ECHOMQ_OR_REPORT(echomq::ArchiveReader reader, echomq::ArchiveReader::open(store, range));
    return all(std::move(reader));
  }
  ECHOMQ_OR_REPORT(const echomq::Client client, session.connect("stream", echomq::NodeLease::never));
  ECHOMQ_OR_REPORT(const echomq::Stream stream, stream_of(client, options));
  ECHOMQ_OR_REPORT(echomq::HistoryReader reader, echomq::HistoryReader::open(stream, store, range));
  const Exit read = all(std::move(reader));
  if (read != Exit::ok || any) {
    return read;
  }
  if (store) {
    ECHOMQ_OR_REPORT(const auto segments, echomq::archive::list_segments(*store));
    if (!segments.empty()) {
      return Exit::ok;  // of a stream that is gone
    }
  }
  return find_stream(session, stream);
}

/// Milliseconds of an entry id.
std::uint64_t milliseconds_of(std::string_view entry) {
  std::uint64_t ms = 0;
  (void)std::from_chars(entry.data(), entry.data() + entry.size(), ms);
  return ms;
}

/// The same line as in an archive.
std::string json_line(const echomq::Record& record) {
  echomq::archive::Entry entry{
      .number = {milliseconds_of(record.entry), 0}, .id = record.entry, .fields = record.fields};
  if (record.id) {
    entry.fields.insert(entry.fields.begin(), {"id", std::string(record.id->text())});
  }
  std::string line;
  echomq::archive::append_line(line, entry);
  return line;
}

std::string text_line(const echomq::Record& record) {
  // What a calendar of four digits can hold.
  const std::uint64_t ms = milliseconds_of(record.entry);
  std::string line = ms <= 253'402'300'799'999
                         ? to_rfc3339(echomq::Instant(Milliseconds(static_cast<std::int64_t>(ms))))
                         : std::string("-");
  line += ' ';
  line += record.id ? record.id->text() : std::string_view(record.entry);
  for (const auto& [name, value] : record.fields) {
    line += fmt::format(" {}={}", printable(name), printable(value, 1000));
  }
  return line + "\n";
}

/// Prints one; false when nobody reads any more.
bool show(Session& session, const echomq::Record& record) {
  session.print(session.json ? json_line(record) : text_line(record));
  return session.flush();
}

Exit cat(Session& session, const ArchiveArguments& options) {
  std::uint64_t left = options.count == 0 ? UINT64_MAX : options.count;
  return read_history(session, options,
                      [&](const echomq::Record& record) { return show(session, record) && --left > 0; });
}

/// A regular expression as `grep -E` has them, or a text.
class Pattern {
 public:
  Pattern(const std::string& text, bool fixed, bool ignore_case) {
    std::string expression = text;
    if (fixed) {
      expression.clear();
      for (const char byte : text) {
        if (std::string_view("\\^$.[]|()*+?{}").find(byte) != std::string_view::npos) {
          expression += '\\';
        }
        expression += byte;
      }
    }
    const int flags = REG_EXTENDED | REG_NOSUB | (ignore_case ? REG_ICASE : 0);
    if (const int wrong = ::regcomp(&compiled_, expression.c_str(), flags); wrong != 0) {
      char reason[200];
      ::regerror(wrong, &compiled_, reason, sizeof(reason));
      error_ = reason;
    }
  }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  ~Pattern() {
    if (error_.empty()) {
      ::regfree(&compiled_);
    }
  }
  [[nodiscard]] const std::string& error() const { return error_; }
  [[nodiscard]] bool is_in(std::string_view text) const {
    regmatch_t part{.rm_so = 0, .rm_eo = static_cast<regoff_t>(text.size())};
    return ::regexec(&compiled_, text.data(), 1, &part, REG_STARTEND) == 0;
  }

 private:
  regex_t compiled_{};
  std::string error_;
};

Exit grep(Session& session, const ArchiveArguments& options) {
  const Pattern pattern(options.pattern, options.fixed, options.ignore_case);
  if (!pattern.error().empty()) {
    return session.report(Exit::usage, "usage", fmt::format("not a pattern: {}", pattern.error()));
  }
  const auto matches = [&](const echomq::Record& record) {
    if (!options.field && record.id && pattern.is_in(record.id->text())) {
      return true;
    }
    for (const auto& [name, value] : record.fields) {
      if (options.field ? name == *options.field && pattern.is_in(value) : pattern.is_in(name + "=" + value)) {
        return true;
      }
    }
    return false;
  };
  std::uint64_t found = 0;
  const Exit exit = read_history(session, options, [&](const echomq::Record& record) {
    if (!matches(record)) {
      return true;
    }
    ++found;
    const bool read = options.count_only || show(session, record);
    return read && (options.count == 0 || found < options.count);
  });
  if (exit != Exit::ok) {
    return exit;
  }
  if (options.count_only) {
    session.print_line(session.json ? fmt::format("{{\"count\":{}}}", found) : std::to_string(found));
  }
  return found > 0 ? Exit::ok : Exit::not_found;
}

}  // namespace

void add_stream_archive(CLI::App& group, Session& session, Action& chosen) {
  auto options = std::make_shared<ArchiveArguments>();
  const auto add = [&](const char* name, const char* help, Exit (*run)(Session&, const ArchiveArguments&),
                       bool has_pattern) {
    CLI::App* command = group.add_subcommand(name, help);
    if (has_pattern) {
      command->add_option("PATTERN", options->pattern, "Extended regular expression")->required();
    }
    command->add_option("QUEUE", options->queue, "Queue name")->required();
    command->add_option("STREAM", options->stream, "Name of the stream")->required();
    command->final_callback(
        [&session, &chosen, options, run] { chosen = [&session, options, run] { return run(session, *options); }; });
    return command;
  };
  using Given = std::vector<CLI::Option*>;
  const auto add_keep = [&](CLI::App* command) {
    return Given{
        command->add_option("--keep-count", options->keep.count, "Keep the newest N records")->type_name("N"),
        command->add_option("--keep-age", options->keep.age, "Keep records so young: 12h, 30d")->type_name("DURATION"),
        command->add_option("--keep-bytes", options->keep.bytes, "Keep about so many bytes of names and values: 500mb")
            ->transform(CLI::AsSizeValue(false)),
        command
            ->add_option("--groups", options->groups,
                         "Keep what these groups have not acknowledged; 'all': what any has not")
            ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
            ->allow_extra_args(false)
            ->delimiter(','),
        command->add_option("--hard-count", options->hard.count, "Beyond the newest N groups hold nothing")
            ->type_name("N"),
        command->add_option("--hard-age", options->hard.age, "Beyond this age groups hold nothing")
            ->type_name("DURATION"),
        command->add_option("--hard-bytes", options->hard.bytes, "Beyond so many bytes groups hold nothing")
            ->transform(CLI::AsSizeValue(false)),
        command->add_flag("--exact", options->exact, "To the record; otherwise up to a hundred may be left too many")};
  };
  // What would be passed over in silence is refused.
  const auto exclude = [](CLI::Option* option, const Given& others) {
    for (CLI::Option* other : others) {
      option->excludes(other);
    }
  };
  const auto add_range = [&](CLI::App* command) {
    command->add_option("--dir", options->folder, "Folder of the archive; without it the live stream alone");
    command->add_flag("--offline", options->offline, "The archive alone, without a server");
    command->add_option("--since", options->since, "Minted then or later: 10m, 2d (ago), 2026-07-02T09:30:00Z");
    command->add_option("--until", options->until, "Minted then or before");
    command->add_option("--after", options->after, "Behind this receipt or entry id");
    command->add_option("-n,--count", options->count, "At most so many; 0: all")->capture_default_str();
    command->add_flag("-r,--reverse", options->newest_first, "Newest first");
  };

  CLI::App* command = add("archive", "Fold records into files, and trim what is in them", &archive, false);
  command->add_option("--dir", options->folder, "Folder of the archive, for this stream alone")->required();
  Given folding = add_keep(command);
  CLI::Option* verifying = command->add_flag("--verify", options->verify,
                                             "Only check the files, and that they reach the server's watermark");
  command->add_flag("--offline", options->offline, "With --verify: without a server")->needs(verifying);
  folding.push_back(command->add_flag("--once", options->once, "Fold what is there and end"));
  folding.push_back(command->add_option("--every", options->every, "How often it folds")->capture_default_str());
  folding.push_back(
      command->add_option("--settle", options->settle, "Fold only records so old")->capture_default_str());
  folding.push_back(command->add_option("--fsync", options->sync, "When files are made durable: fold, interval, never")
                        ->check(CLI::IsMember({"fold", "interval", "never"}))
                        ->capture_default_str());
  folding.push_back(
      command->add_option("--segment-bytes", options->segment_bytes, "Begin a new file after so many bytes")
          ->transform(CLI::AsSizeValue(false)));
  folding.push_back(
      command->add_flag("--continue", options->go_on, "Begin an empty archive behind a watermark that stands already"));
  exclude(verifying, folding);

  add_range(add("cat", "The history of a stream, archive and live; --json: lines as in the archive", &cat, false));

  command =
      add("grep", "Records of the history that have a match in `name=value` or id; 3 when there is none", &grep, true);
  add_range(command);
  command->add_option("--field", options->field, "Look at the values of this field only");
  command->add_flag("-F,--fixed", options->fixed, "PATTERN is a text");
  command->add_flag("-i,--ignore-case", options->ignore_case, "Without regard to case");
  command->add_flag("-c,--only-count", options->count_only, "Only how many there are");

  command = add("trim", "Remove old records once, or say what sweepers shall keep", &trim, false);
  Given policy = add_keep(command);
  policy.push_back(command->add_flag("--archived", options->archived, "Nothing that is not in the archive"));
  policy.push_back(
      command->add_flag("--store", options->store, "Put it on the server for all sweepers, and remove nothing now"));
  CLI::Option* showing = command->add_flag("--show", options->show, "Print what stands on the server");
  CLI::Option* clearing = command->add_flag("--clear", options->clear, "Take it off the server");
  exclude(showing, policy);
  exclude(clearing, policy);
  showing->excludes(clearing);
}

}  // namespace emq
