// The servers that every history and scenario runs on: one of each kind a process, emptied between tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/testing/private_cluster.hpp"
#include "echomq/testing/private_server.hpp"

namespace echomq::conformance {

enum class Kind : std::uint8_t { valkey, redis, cluster };
inline const std::vector<Kind> kKinds = {Kind::valkey, Kind::redis, Kind::cluster};

[[nodiscard]] inline std::string to_string(Kind kind) {
  switch (kind) {
    case Kind::valkey: return "valkey";
    case Kind::redis: return "redis";
    case Kind::cluster: break;
  }
  return "cluster";
}

/// The URL of the running server of that kind, or of the running cluster of three, started when first asked for. Empty
/// with `why` when it cannot be started.
[[nodiscard]] inline std::string url_of(Kind kind, std::string& why) {
  if (kind == Kind::cluster) {
    static std::unique_ptr<testing::PrivateCluster> cluster;
    if (cluster == nullptr) {
      auto started = testing::PrivateCluster::start();
      if (!started) {
        why = started.error().message();
        return {};
      }
      cluster = std::make_unique<testing::PrivateCluster>(*std::move(started));
    }
    return cluster->url();
  }
  static std::unique_ptr<testing::PrivateServer> servers[2];
  auto& server = servers[kind == Kind::valkey ? 0 : 1];
  if (server == nullptr) {
    const auto engine = kind == Kind::valkey ? testing::Engine::valkey : testing::Engine::redis;
    auto started = testing::PrivateServer::start({.engine = engine, .listen = testing::Listen::unix_socket});
    if (!started) {
      why = started.error().message();
      return {};
    }
    server = std::make_unique<testing::PrivateServer>(*std::move(started));
  }
  return server->url();
}

}  // namespace echomq::conformance
