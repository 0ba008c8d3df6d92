// The servers that every history and scenario runs on: one of each kind a process, emptied between tests.
#pragma once

#include <memory>
#include <string>

#include "echomq/client.hpp"
#include "echomq/testing/private_server.hpp"

namespace echomq::conformance {

[[nodiscard]] inline std::string to_string(testing::Engine engine) {
  return engine == testing::Engine::valkey ? "valkey" : "redis";
}

/// The running server of that kind, started when first asked for. Null with `why` when it cannot be started.
[[nodiscard]] inline testing::PrivateServer* server_of(testing::Engine engine, std::string& why) {
  static std::unique_ptr<testing::PrivateServer> servers[2];
  auto& server = servers[engine == testing::Engine::valkey ? 0 : 1];
  if (server == nullptr) {
    auto started = testing::PrivateServer::start({.engine = engine, .listen = testing::Listen::unix_socket});
    if (!started) {
      why = started.error().message();
      return nullptr;
    }
    server = std::make_unique<testing::PrivateServer>(*std::move(started));
  }
  return server.get();
}

}  // namespace echomq::conformance
