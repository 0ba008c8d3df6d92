// Server URLs: where to connect, and as whom.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "echomq/error.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {

/// One server address. Either `socket_path`, or `host` and `port`.
struct Endpoint {
  std::string host;
  std::uint16_t port = 6379;
  std::string socket_path;

  /// As a URL without credentials.
  [[nodiscard]] std::string to_string() const;
  [[nodiscard]] bool operator==(const Endpoint&) const = default;
};

struct Url {
  Endpoint endpoint;
  /// Nodes of a cluster to ask first, `endpoint` among them; empty for a single server.
  std::vector<Endpoint> seeds;
  std::string user;
  std::string password;
  std::optional<std::uint32_t> database;

  /// Without credentials.
  [[nodiscard]] std::string to_string() const;
};

/// `valkey://` and `redis://` [user[:password]@]host[:port][/database], `unix://[user[:password]@]/path[?db=n]`,
/// `valkey+cluster://[user[:password]@]host[:port],host[:port]...`, whose only database is 0.
/// User and password are percent-decoded. Errors: invalid_url, the password never shown.
[[nodiscard]] Result<Url> parse_url(std::string_view text);

}  // namespace wire
}  // namespace v1
}  // namespace echomq
