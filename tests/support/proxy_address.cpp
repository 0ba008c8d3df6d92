// What `inet_pton` and a slice of the text give.
#include "proxy_address.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <charconv>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace echomq::test {

ProxyAddress unix_address(const std::string& path) {
  ProxyAddress out;
  auto* address = reinterpret_cast<sockaddr_un*>(&out.storage);
  if (path.size() >= sizeof address->sun_path) {
    throw std::invalid_argument("socket path too long: " + path);
  }
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path, path.c_str(), path.size() + 1);
  out.size = sizeof(sockaddr_un);
  return out;
}

ProxyAddress tcp_address(const std::string& host, std::uint16_t port) {
  ProxyAddress out;
  auto* address = reinterpret_cast<sockaddr_in*>(&out.storage);
  address->sin_family = AF_INET;
  address->sin_port = htons(port);
  if (::inet_pton(AF_INET, host == "localhost" ? "127.0.0.1" : host.c_str(), &address->sin_addr) != 1) {
    throw std::invalid_argument("not a numeric IPv4 host: " + host);
  }
  out.size = sizeof(sockaddr_in);
  return out;
}

ProxyAddress parse_upstream(std::string_view url) {
  if (url.starts_with("unix://")) {
    url.remove_prefix(7);
    return unix_address(std::string(url.substr(0, url.find('?'))));
  }
  if (const auto scheme = url.find("://"); scheme != std::string_view::npos) {
    url.remove_prefix(scheme + 3);
  }
  if (const auto at = url.rfind('@'); at != std::string_view::npos) {
    url.remove_prefix(at + 1);
  }
  url = url.substr(0, url.find('/'));
  const auto colon = url.rfind(':');
  std::uint16_t port = 6379;
  if (colon != std::string_view::npos) {
    const std::string_view digits = url.substr(colon + 1);
    if (std::from_chars(digits.data(), digits.data() + digits.size(), port).ec != std::errc()) {
      throw std::invalid_argument("not a port: " + std::string(digits));
    }
  }
  return tcp_address(std::string(url.substr(0, colon)), port);
}

}  // namespace echomq::test
