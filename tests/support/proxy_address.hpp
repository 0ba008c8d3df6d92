// Addresses as people write them, for the proxy's listener and its server.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace echomq::test {

struct ProxyAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] int family() const noexcept { return storage.ss_family; }
};

/// These throw `std::invalid_argument`.
[[nodiscard]] ProxyAddress unix_address(const std::string& path);
[[nodiscard]] ProxyAddress tcp_address(const std::string& host, std::uint16_t port);
/// `valkey://host:port`, `host:port` or `unix:///path`.
[[nodiscard]] ProxyAddress parse_upstream(std::string_view url);

}  // namespace echomq::test
