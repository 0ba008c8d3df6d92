// Server URLs: where to connect, and as whom.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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
};

struct Url {
  Endpoint endpoint;
  std::string user;
  std::string password;
  std::optional<std::uint32_t> database;
};

/// `valkey://` and `redis://` [user[:password]@]host[:port][/database], `unix://[user[:password]@]/path[?db=n]`.
/// User and password are percent-decoded. Errors: invalid_url, the password never shown.
[[nodiscard]] Result<Url> parse_url(std::string_view text);

}  // namespace wire
}  // namespace v1
}  // namespace echomq
