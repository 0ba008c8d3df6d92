// Streams and groups as Prometheus' text.
#include "echomq/stream_metrics.hpp"

#include <fmt/format.h>

#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace {

/// As a label's value.
[[nodiscard]] std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\')
      out += '\\';
    out += c;
  }
  return out;
}

struct Rows {
  std::string_view name;
  std::string_view type;
  std::string_view help;
  std::string lines = {};

  void add(std::string_view labels, std::uint64_t value) {
    fmt::format_to(std::back_inserter(lines), "{}{{{}}} {}\n", name, labels, value);
  }
  void to(std::string& out) const {
    if (!lines.empty())
      fmt::format_to(std::back_inserter(out), "# HELP {} {}\n# TYPE {} {}\n{}", name, help, name, type, lines);
  }
};

}  // namespace

Result<std::string> stream_prometheus(std::span<const Stream> streams) {
  std::vector<std::pair<Reply<StreamInfo>, Reply<std::vector<GroupInfo>>>> asked;
  asked.reserve(streams.size());
  for (const Stream& stream : streams)
    asked.emplace_back(stream.info(), stream.groups());
  Rows records{"echomq_stream_records", "gauge", "Records on the stream."};
  Rows appended{"echomq_stream_appended_total", "counter", "Records that were ever appended."};
  Rows lag{"echomq_group_lag", "gauge", "Records that the group was not given yet."};
  Rows pending{"echomq_group_pending", "gauge", "Entries that were handed out and not acknowledged."};
  Rows consumers{"echomq_group_consumers", "gauge", "Consumers that the group knows."};
  for (std::size_t i = 0; i < streams.size(); ++i) {
    ECHOMQ_TRY(const StreamInfo info, asked[i].first.get());
    ECHOMQ_TRY(const std::vector<GroupInfo> groups, asked[i].second.get());
    if (!info.exists)
      continue;
    const std::string labels =
        fmt::format("queue=\"{}\",stream=\"{}\"", escaped(streams[i].queue().text()), escaped(streams[i].name()));
    records.add(labels, info.length);
    appended.add(labels, info.appended);
    for (const GroupInfo& group : groups) {
      const std::string of_group = fmt::format("{},group=\"{}\"", labels, escaped(group.name));
      if (group.lag)
        lag.add(of_group, *group.lag);
      pending.add(of_group, group.pending);
      consumers.add(of_group, group.consumers);
    }
  }
  std::string out;
  for (const Rows* rows : {&records, &appended, &lag, &pending, &consumers})
    rows->to(out);
  return out;
}

}  // namespace v1
}  // namespace echomq
