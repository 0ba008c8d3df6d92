// Parser of server URLs.
#include "wire/url.hpp"

#include <charconv>

#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {
namespace {

[[nodiscard]] int hex_digit(char c) noexcept {
  if (c >= '0' && c <= '9')
    return c - '0';
  if (c >= 'a' && c <= 'f')
    return c - 'a' + 10;
  if (c >= 'A' && c <= 'F')
    return c - 'A' + 10;
  return -1;
}

[[nodiscard]] Result<std::string> percent_decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
    if (high < 0 || low < 0)
      return fail(Errc::invalid_url, "a broken % escape in the credentials or the path");
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

template <typename Number>
[[nodiscard]] bool parse_number(std::string_view text, Number& out) noexcept {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

[[nodiscard]] Result<void> parse_database(std::string_view text, Url& url) {
  std::uint32_t database = 0;
  if (!parse_number(text, database)) {
    return fail(Errc::invalid_url, "the database must be a number, got '" + std::string(text.substr(0, 32)) + "'");
  }
  url.database = database;
  return {};
}

[[nodiscard]] Result<void> take_credentials(std::string_view& rest, Url& url) {
  const std::size_t at = rest.rfind('@');
  if (at == std::string_view::npos)
    return {};
  const std::string_view credentials = rest.substr(0, at);
  rest.remove_prefix(at + 1);
  const std::size_t colon = credentials.find(':');
  ECHOMQ_TRY(url.user, percent_decode(credentials.substr(0, colon)));
  if (colon != std::string_view::npos) {
    ECHOMQ_TRY(url.password, percent_decode(credentials.substr(colon + 1)));
  }
  return {};
}

[[nodiscard]] Result<Endpoint> parse_host(std::string_view rest) {
  Endpoint endpoint;
  std::string_view port;
  if (rest.starts_with('[')) {  // an IPv6 address
    const std::size_t close = rest.find(']');
    if (close == std::string_view::npos)
      return fail(Errc::invalid_url, "'[' without ']' in the host");
    endpoint.host = rest.substr(1, close - 1);
    rest.remove_prefix(close + 1);
    if (rest.starts_with(':')) {
      port = rest.substr(1);
    } else if (!rest.empty()) {
      return fail(Errc::invalid_url, "unexpected text after ']'");
    }
  } else {
    const std::size_t colon = rest.find(':');
    endpoint.host = rest.substr(0, colon);
    if (colon != std::string_view::npos)
      port = rest.substr(colon + 1);
    if (colon != std::string_view::npos && port.empty())
      return fail(Errc::invalid_url, "an empty port");
  }
  if (endpoint.host.empty())
    endpoint.host = "127.0.0.1";
  if (!port.empty() && (!parse_number(port, endpoint.port) || endpoint.port == 0)) {
    return fail(Errc::invalid_url, "the port must be 1 to 65535, got '" + std::string(port.substr(0, 32)) + "'");
  }
  return endpoint;
}

/// The nodes of a cluster, separated by commas.
[[nodiscard]] Result<void> parse_seeds(std::string_view rest, Url& url) {
  for (;;) {
    const std::size_t comma = rest.find(',');
    if (rest.substr(0, comma).empty())
      return fail(Errc::invalid_url, "an empty place in the list of cluster nodes");
    ECHOMQ_TRY(Endpoint seed, parse_host(rest.substr(0, comma)));
    url.seeds.push_back(std::move(seed));
    if (comma == std::string_view::npos)
      break;
    rest.remove_prefix(comma + 1);
  }
  url.endpoint = url.seeds.front();
  return {};
}

}  // namespace

std::string Endpoint::to_string() const {
  if (!socket_path.empty())
    return "unix://" + socket_path;
  const bool is_v6 = host.find(':') != std::string::npos;
  return "valkey://" + (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<Url> parse_url(std::string_view text) {
  const std::size_t colon = text.find("://");
  if (colon == std::string_view::npos) {
    return fail(Errc::invalid_url, "no scheme: expected valkey://, redis://, unix:// or valkey+cluster://");
  }
  const std::string_view scheme = text.substr(0, colon);
  std::string_view rest = text.substr(colon + 3);
  Url url;
  std::string_view query;
  if (const std::size_t mark = rest.find('?'); mark != std::string_view::npos) {
    query = rest.substr(mark + 1);
    rest = rest.substr(0, mark);
  }
  if (scheme == "unix") {
    ECHOMQ_CHECK(take_credentials(rest, url));
    ECHOMQ_TRY(url.endpoint.socket_path, percent_decode(rest));
    if (!url.endpoint.socket_path.starts_with('/')) {
      return fail(Errc::invalid_url, "unix:// needs an absolute path, got '" + url.endpoint.socket_path + "'");
    }
    if (url.endpoint.socket_path.size() > 107)
      return fail(Errc::invalid_url, "a socket path has at most 107 bytes");
  } else if (scheme == "valkey" || scheme == "redis" || scheme == "valkey+cluster") {
    // Credentials first: a '/' in a password is no path.
    ECHOMQ_CHECK(take_credentials(rest, url));
    std::string_view path;
    if (const std::size_t slash = rest.rfind('/'); slash != std::string_view::npos) {
      path = rest.substr(slash + 1);
      rest = rest.substr(0, slash);
    }
    if (scheme.ends_with("+cluster")) {
      ECHOMQ_CHECK(parse_seeds(rest, url));
    } else {
      ECHOMQ_TRY(url.endpoint, parse_host(rest));
    }
    if (!path.empty()) {
      ECHOMQ_CHECK(parse_database(path, url));
    }
  } else if (scheme == "valkeys" || scheme == "rediss" || scheme == "valkey+sentinel") {
    return fail(Errc::invalid_url, "scheme '" + std::string(scheme) + "' is not supported by this version");
  } else {
    return fail(Errc::invalid_url, "unknown scheme '" + std::string(scheme.substr(0, 32)) + "'");
  }
  while (!query.empty()) {
    const std::size_t end = query.find('&');
    const std::string_view pair = query.substr(0, end);
    query = end == std::string_view::npos ? std::string_view() : query.substr(end + 1);
    if (pair.starts_with("db=")) {
      ECHOMQ_CHECK(parse_database(pair.substr(3), url));
    } else {
      return fail(Errc::invalid_url, "unknown option '" + std::string(pair.substr(0, 32)) + "'");
    }
  }
  if (!url.seeds.empty() && url.database.value_or(0) != 0)
    return fail(Errc::invalid_url, "a cluster has database 0 only, got " + std::to_string(*url.database));
  return url;
}

std::string Url::to_string() const {
  if (seeds.empty())
    return endpoint.to_string();
  std::string text = "valkey+cluster://";
  for (const Endpoint& seed : seeds) {
    if (&seed != &seeds.front())
      text += ',';
    text += seed.to_string().substr(std::string_view("valkey://").size());
  }
  return text;
}

}  // namespace wire
}  // namespace v1
}  // namespace echomq
