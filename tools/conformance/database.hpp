// The whole state of a server's (or cluster's) database in the form of the golden histories.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/values.hpp"
#include "echomq/client.hpp"

namespace echomq::conformance {

/// What a peer that does not know our additions would not see: read from `protocol/keys.json`.
class Extensions {
 public:
  Extensions();
  [[nodiscard]] bool is_key(std::string_view key) const;
  [[nodiscard]] bool is_row_field(std::string_view key, std::string_view field) const;

 private:
  std::vector<std::string> key_templates_;
  std::vector<std::string> row_fields_;
};

/// Every key but `{emq}:version` and those of extensions: type, value, and `ttl_ms` where there is one.
/// Throws on an error reply.
[[nodiscard]] json::object dump(const Client& client, const Extensions& extensions);

/// The server's clock in Unix milliseconds.
[[nodiscard]] std::int64_t server_time(const Client& client);

/// A client of that server; throws when it cannot connect.
[[nodiscard]] Client connect(const std::string& url, ClientOptions options);

/// Whether the server knows that command.
[[nodiscard]] bool has_command(const Client& client, const std::string& name);

/// A command's reply; throws on an error.
Value ask(const Client& client, const std::vector<std::string>& command);

/// Deletes the keys that fit the glob pattern, found by SCAN on every node: a server with many others goes on serving them.
void remove_keys(const Client& client, const std::string& pattern);

/// The same of every node: of the one server, or of all of a cluster.
std::vector<Value> ask_each(const Client& client, const std::vector<std::string>& command);

/// The names of all keys that fit, on whatever node.
[[nodiscard]] std::vector<std::string> keys_of(const Client& client, const std::string& pattern);

}  // namespace echomq::conformance
