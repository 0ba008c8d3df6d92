// `emq cache`: rows of a cache table in the server, and what is said about them. The caches of processes hear of what is
// changed here.
#include "echomq/cache.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "cache/frame.hpp"
#include "cache/report.hpp"
#include "client/nodes.hpp"
#include "commands.hpp"
#include "lines.hpp"
#include "text.hpp"
#include "time_argument.hpp"

namespace emq {
namespace {

namespace json = boost::json;
using echomq::BrandedId;
using echomq::CacheName;
using echomq::Client;
using echomq::NodeLease;

struct CacheArguments {
  std::string table;
  std::vector<std::string> ids;
  std::string id;
  std::string value;
  std::optional<std::string> version;
  std::string tag;
  std::uint64_t ttl_ms = 5000;
  std::uint64_t count = 0;
};

void add_bytes(json::object& to, const std::string& name, std::string_view bytes) {
  if (is_utf8(bytes)) {
    to[name] = bytes;
  } else {
    to[name + "_base64"] = base64(bytes);
  }
}

Exit get(Session& session, const CacheArguments& options) {
  ECHOMQ_OR_REPORT(const CacheName table, CacheName::parse(options.table));
  ECHOMQ_OR_REPORT(const BrandedId id, BrandedId::parse(options.id));
  ECHOMQ_OR_REPORT(const Client client, session.connect("cache", NodeLease::never));
  const auto key = echomq::cache::TableKeys(table).row(id);
  auto asked_ttl = client.command("PTTL", key.view());
  ECHOMQ_OR_REPORT(const echomq::Value bytes, client.command("GET", key.view()).get());
  ECHOMQ_OR_REPORT(const echomq::Value ttl, asked_ttl.get());
  if (bytes.is_null()) {
    return session.report(Exit::not_found, "no_row", "the server has no row of " + options.id);
  }
  const auto frame = echomq::cache::read_frame(bytes.as_text().value_or(""));
  if (!frame) {
    return session.report(Exit::failed, "corrupt", "what the server has of " + options.id + " is no row of a cache");
  }
  const std::int64_t left = ttl.as_integer().value_or(-1);
  if (session.json) {
    json::object out{{"id", id.text()}, {"version", frame->version.text()}, {"ttl_ms", left}};
    add_bytes(out, "value", frame->value);
    session.print_json(out);
  } else {
    session.print_line(printable(frame->value));
    session.note(fmt::format("version {}, {}", frame->version.text(),
                             left < 0 ? std::string("without expiry") : fmt::format("{} ms left", left)));
  }
  return Exit::ok;
}

Exit put(Session& session, const CacheArguments& options) {
  ECHOMQ_OR_REPORT(const CacheName table, CacheName::parse(options.table));
  ECHOMQ_OR_REPORT(const BrandedId id, BrandedId::parse(options.id));
  ECHOMQ_OR_REPORT(std::optional<BrandedId> version, parse_optional<BrandedId>(options.version));
  ECHOMQ_OR_REPORT(const Client client, session.connect("cache", version ? NodeLease::never : NodeLease::at_open));
  if (!version) {
    ECHOMQ_OR_REPORT(version, client.mint(id.brand()));
  }
  echomq::CacheOptions with{.table = table, .kind = std::string(id.brand())};
  with.ttl = std::chrono::milliseconds(options.ttl_ms);
  with.l1_bytes = 0;
  ECHOMQ_OR_REPORT(const echomq::ByteCache cache, echomq::ByteCache::open(client, std::move(with)));
  ECHOMQ_OR_REPORT(const echomq::CachePut outcome, cache.put(id, options.value, version).get());
  const bool stored = outcome == echomq::CachePut::stored;
  std::int64_t receivers = 0;
  if (stored) {
    ECHOMQ_OR_REPORT(receivers, echomq::CacheWriter(client, table).broadcast(id, *version).get());
  }
  if (session.json) {
    session.print_json(json::object{{"stored", stored}, {"version", version->text()}, {"told", receivers}});
  } else {
    session.print_line(stored ? fmt::format("stored as {}, {} told", version->text(), receivers)
                              : std::string("superseded: the server has a newer version"));
  }
  return stored ? Exit::ok : Exit::refused;
}

Exit drop(Session& session, const CacheArguments& options) {
  ECHOMQ_OR_REPORT(const CacheName table, CacheName::parse(options.table));
  ECHOMQ_OR_REPORT(const Client client, session.connect("cache", NodeLease::at_open));
  // Of no kind that has rows: only the version of the drop is minted in it.
  echomq::CacheOptions with{.table = table, .kind = "TAG", .l1_bytes = 0, .tags = true};
  with.ttl = std::chrono::milliseconds(options.ttl_ms);
  ECHOMQ_OR_REPORT(const echomq::ByteCache cache, echomq::ByteCache::open(client, std::move(with)));
  ECHOMQ_OR_REPORT(const std::uint64_t dropped, cache.invalidate_tag(options.tag).get());
  if (session.json) {
    session.print_json(json::object{{"tag", options.tag}, {"dropped", dropped}});
  } else {
    session.print_line(fmt::format("{} rows dropped", dropped));
  }
  return Exit::ok;
}

Exit invalidate(Session& session, const CacheArguments& options) {
  ECHOMQ_OR_REPORT(const CacheName table, CacheName::parse(options.table));
  std::vector<BrandedId> ids;
  for (const std::string& text : options.ids) {
    ECHOMQ_OR_REPORT(const BrandedId id, BrandedId::parse(text));
    ids.push_back(id);
  }
  ECHOMQ_OR_REPORT(const Client client, session.connect("cache", NodeLease::at_open));
  const echomq::CacheWriter writer(client, table);
  const echomq::cache::TableKeys keys(table);
  const auto loads = keys.loads();
  json::array all;
  for (const BrandedId& id : ids) {
    // Minted now: newer than every row that any table has from before.
    ECHOMQ_OR_REPORT(const BrandedId version, client.mint(id.brand()));
    // First who loads it now: what that brings was read before.
    ECHOMQ_OR_REPORT(const echomq::Value unleased, client.command("DEL", keys.lease(id).view()).get());
    ECHOMQ_OR_REPORT(const echomq::Value deleted, client.command("DEL", keys.row(id).view()).get());
    // Who waits for that load need not wait for the lease's time: of any holder, by a token of zeros.
    const std::string ended = fmt::format("{}:{:032}:x", id.text(), 0);
    ECHOMQ_OR_REPORT(const echomq::Value heard, client.command("PUBLISH", loads.view(), ended).get());
    ECHOMQ_OR_REPORT(const std::int64_t told, writer.broadcast(id, version).get());
    const bool had = deleted.as_integer().value_or(0) == 1;
    if (session.json) {
      all.push_back(json::object{{"id", id.text()}, {"deleted", had}, {"told", told}});
    } else {
      session.print_line(fmt::format("{} {}, {} told", id.text(), had ? "deleted" : "not there", told));
    }
  }
  if (session.json) {
    session.print_json(all);
  }
  return Exit::ok;
}

/// What one process has told of its table (`CacheOptions::report_every`), as a line. Throws std::exception when a
/// part is not there or not of its kind: whoever wrote it may be of another version.
[[nodiscard]] std::string line_of(const json::value& report) {
  const auto number = [&](const char* name) { return report.at(name).to_number<std::uint64_t>(); };
  const auto times = [&](const char* name) {
    const json::value& all = report.at(name);
    return fmt::format("{} (p50 {:.1f} ms, p99 {:.1f} ms)", all.at("count").to_number<std::uint64_t>(),
                       all.at("p50_ms").to_number<double>(), all.at("p99_ms").to_number<double>());
  };
  const json::value& gone = report.at("gone");
  std::string why;
  for (const auto& [cause, count] : gone.as_object())
    why += fmt::format("{}{} {}", why.empty() ? "" : ", ", printable(cause), count.to_number<std::uint64_t>());
  const std::uint64_t reads = number("hits") + number("misses");
  return fmt::format(
      "{} pid {}: {} reads, {:.1f} % hits, {} stale, {} rows, {} bytes; loads {}; coherence lag {}; rows gone: {}",
      printable(report.at("host").as_string()), report.at("pid").to_number<std::int64_t>(), reads,
      reads == 0 ? 0.0 : 100.0 * static_cast<double>(number("hits")) / static_cast<double>(reads),
      number("stale_served"), number("rows"), number("bytes"), times("load"), times("coherence_lag"), why);
}

/// Of the server's side, and what processes have told of theirs.
Exit stats(Session& session, const CacheArguments& options) {
  ECHOMQ_OR_REPORT(const CacheName table, CacheName::parse(options.table));
  ECHOMQ_OR_REPORT(const Client client, session.connect("cache", NodeLease::never));
  const echomq::cache::TableKeys names(table);
  // Rows, and what processes tell: `ecc:{T}:` and `eccx:{T}:stats:`.
  const std::string told = echomq::cache::Report::prefix(table);
  const std::string pattern = "ecc*:{" + std::string(table.text()) + "}:*";
  const echomq::client::Nodes nodes(client);
  std::set<std::string> keys;  // a scan may tell one twice
  std::set<std::string> reports;
  Progress progress;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    std::string cursor = "0";
    do {
      const std::string_view scan[] = {"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"};
      ECHOMQ_OR_REPORT(const echomq::Value step, nodes.command(node, scan).get());
      if (step.size() != 2) {
        return session.report(Exit::failed, "protocol_error", "SCAN answered " + step.to_string());
      }
      cursor = step[0].as_text().value_or("0");
      for (const echomq::Value& key : step[1].items()) {
        const std::string_view text = key.as_text().value_or("");
        if (text.starts_with(names.prefix) && BrandedId::parse(text.substr(names.prefix.size()))) {
          keys.emplace(text);
        } else if (text.starts_with(told)) {
          reports.emplace(text);
        }
      }
      if (progress.due()) {
        progress.show(fmt::format("{} rows", keys.size()));
      }
    } while (cursor != "0");
  }
  progress.clear();
  std::uint64_t rows = 0;
  std::uint64_t bytes = 0;
  std::vector<echomq::Reply<echomq::Value>> lengths;
  const auto sum_up = [&] {
    for (auto& one : lengths) {
      const auto length = one.get();
      // 0: it has expired meanwhile.
      const std::int64_t size = length && !length->is_error() ? length->as_integer().value_or(0) : 0;
      rows += size > 0 ? 1 : 0;
      bytes += static_cast<std::uint64_t>(size);
    }
    lengths.clear();
  };
  for (const std::string& key : keys) {
    lengths.push_back(client.command("STRLEN", key));
    if (lengths.size() == 1000) {
      sum_up();
    }
  }
  sum_up();
  ECHOMQ_OR_REPORT(const echomq::Value listeners, client.command("PUBSUB", "NUMSUB", names.channel).get());
  const std::int64_t hear = listeners.size() == 2 ? listeners[1].as_integer().value_or(0) : 0;
  json::array processes;
  for (const std::string& key : reports) {
    ECHOMQ_OR_REPORT(const echomq::Value text, client.command("GET", key).get());
    boost::system::error_code bad;
    json::value report = json::parse(text.as_text().value_or(""), bad);
    if (!bad && report.is_object()) {
      processes.push_back(std::move(report));
    }
  }
  if (session.json) {
    session.print_json(json::object{
        {"table", table.text()}, {"rows", rows}, {"bytes", bytes}, {"listeners", hear}, {"processes", processes}});
  } else {
    session.print_line(
        fmt::format("{}: {} rows, {} bytes, {} listening to its channel", table.text(), rows, bytes, hear));
    for (const json::value& report : processes) {
      try {
        session.print_line(line_of(report));
      } catch (const std::exception&) {
        session.print_line("a report that this version cannot read: " + printable(json::serialize(report)));
      }
    }
  }
  return Exit::ok;
}

Exit watch(Session& session, const CacheArguments& options) {
  ECHOMQ_OR_REPORT(const CacheName table, CacheName::parse(options.table));
  ECHOMQ_OR_REPORT(const Client client, session.connect("cache", NodeLease::never));
  Lines heard;
  const auto now = [] {
    return std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
  };
  echomq::SubscriptionHandlers handlers;
  handlers.on_message = [&](std::string_view, std::string_view payload) {
    const auto message = echomq::CoherenceMessage::parse(payload);
    if (session.json) {
      json::object out{{"at", to_rfc3339(now())}};
      if (message) {
        out["id"] = message->id.text();
        out["version"] = message->version.text();
      } else {
        add_bytes(out, "malformed", payload);
      }
      heard.put(json::serialize(out), true);
    } else {
      heard.put(message
                    ? fmt::format("{} {} version {}", to_rfc3339(now()), message->id.text(), message->version.text())
                    : fmt::format("{} malformed: {}", to_rfc3339(now()), printable(payload, 200)),
                true);
    }
  };
  handlers.on_gap = [&] {
    heard.put(session.json ? json::serialize(json::object{{"at", to_rfc3339(now())}, {"gap", true}})
                           : to_rfc3339(now()) + " (the connection was lost: messages may be missing)",
              false);
  };
  ECHOMQ_OR_REPORT(const echomq::Subscription subscription,
                   client.subscribe(echomq::cache::TableKeys(table).channel, std::move(handlers)).get());
  session.note("listening to what is broadcast of " + options.table);
  for (std::uint64_t left = options.count; options.count == 0 || left > 0;) {
    const auto [line, counts] = heard.take();
    session.print_line(line);
    if (!session.flush()) {
      break;  // nobody reads any more
    }
    left -= counts ? 1 : 0;
  }
  return Exit::ok;
}

}  // namespace

void add_cache(CLI::App& app, Session& session, Action& chosen) {
  CLI::App* group =
      app.add_subcommand("cache", "Look at rows of a cache table, change them, hear what is said of them");
  group->require_subcommand(1);
  auto options = std::make_shared<CacheArguments>();
  const auto add = [&](const char* name, const char* help, Exit (*run)(Session&, const CacheArguments&)) {
    CLI::App* command = group->add_subcommand(name, help);
    command->add_option("table", options->table, "Name of the table")->required();
    command->final_callback(
        [&session, &chosen, options, run] { chosen = [&session, options, run] { return run(session, *options); }; });
    return command;
  };
  CLI::App* command = add("get", "The value that the server has; 3 when it has none", get);
  command->add_option("id", options->id, "Id of the row")->required();
  command = add("put", "Store a value, unless the server has a newer version, and tell the tables", put);
  command->add_option("id", options->id, "Id of the row")->required();
  command->add_option("value", options->value, "The bytes")->required();
  command->add_option("--version", options->version, "A branded id; without it, one of now");
  command->add_option("--ttl", options->ttl_ms, "Milliseconds that the row lives")->capture_default_str();
  command = add("invalidate", "Delete rows, and tell the tables", invalidate);
  command->add_option("ids", options->ids, "Ids of the rows")
      ->required()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command = add("drop", "Delete the rows that were put with a tag, and tell the tables", drop);
  command->add_option("tag", options->tag, "The tag")->required();
  command
      ->add_option("--ttl", options->ttl_ms,
                   "The table's ttl in milliseconds: so long the drop is remembered, at least an hour")
      ->capture_default_str();
  add("stats", "Rows and bytes of the server, listeners, what processes report; looks at every key", stats);
  command = add("watch", "One line a broadcast message, as it comes; --json: one JSON object a line", watch);
  command->add_option("-n,--count", options->count, "End after so many; 0: never")->capture_default_str();
}

}  // namespace emq
