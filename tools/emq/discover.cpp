// Which queues a server has.
#include "discover.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <string_view>
#include <utility>

#include "client/nodes.hpp"
#include "keyspace/keys.hpp"
#include "session.hpp"

namespace emq {

echomq::Result<std::set<std::string>> discover(const echomq::Client& client) {
  std::set<std::string> queues;
  std::string cursor = "0";
  std::uint64_t keys = 0;
  Progress progress;
  const echomq::client::Nodes nodes(client);
  for (std::size_t node = 0; node < nodes.size();) {
    const std::string_view scan[] = {"SCAN", cursor, "MATCH", "emq:{*}:*", "COUNT", "1000"};
    auto step = nodes.command(node, scan).get();
    if (!step) {
      return echomq::fail(std::move(step).error());
    }
    if (step->size() != 2) {
      return echomq::fail(echomq::Errc::protocol_error, "SCAN answered " + step->to_string());
    }
    cursor = (*step)[0].as_text().value_or("0");
    for (const echomq::Value& key : (*step)[1].items()) {
      const auto info = echomq::keyspace::classify(key.as_text().value_or(""));
      if (!info.queue.empty()) {
        queues.emplace(info.queue);
      }
    }
    keys += (*step)[1].size();
    if (progress.due()) {
      progress.show(fmt::format("{} keys, {} queues", keys, queues.size()));
    }
    if (cursor == "0") {
      ++node;
    }
  }
  return queues;
}

}  // namespace emq
