// The boot conversation of a connection, without I/O: HELLO, AUTH, SELECT, SETNAME, the version fence.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "echomq/error.hpp"
#include "resp/view.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {

struct BootSettings {
  std::string user;
  std::string password;
  std::uint32_t database = 0;
  std::string client_name;
  std::string wire_version;
  std::vector<std::string> accepted_versions;
  /// One node of a cluster: the fence belongs to the node that has the version key, the others say MOVED.
  bool in_cluster = false;
};

/// One boot. Feed it each reply in order; send what `next()` gives. Replies of errors that may pass (LOADING, NOPERM,
/// MASTERDOWN, READONLY) end it with an error that may be tried again; only a differing version *string*, refused
/// credentials and a refused SELECT or SETNAME are final.
class Boot {
 public:
  enum class Step : std::uint8_t { more, live, failed };

  explicit Boot(const BootSettings& settings) : settings_(settings) {}

  /// The encoded command to send now.
  [[nodiscard]] std::string next();
  /// Takes the reply to it.
  [[nodiscard]] Step take(const resp::View& reply);

  /// 2 or 3, once live.
  [[nodiscard]] int protocol() const noexcept { return protocol_; }
  /// CLIENT ID of this connection.
  [[nodiscard]] std::int64_t connection_id() const noexcept { return connection_id_; }
  /// Why it failed.
  [[nodiscard]] const Error& error() const noexcept { return error_; }
  /// Whether trying again cannot help until somebody changes something.
  [[nodiscard]] bool final() const noexcept { return final_; }

 private:
  enum class State : std::uint8_t {
    hello,
    auth,
    select,
    set_name,
    client_id,
    get_version,
    claim_version,
    read_version,
    live,
  };

  [[nodiscard]] Step failed(Errc code, std::string text, bool is_final);
  [[nodiscard]] Step refused(std::string_view server_text, Errc code);
  [[nodiscard]] Step advance();
  [[nodiscard]] Step take_version(const resp::View& reply);

  const BootSettings& settings_;
  State state_ = State::hello;
  int protocol_ = 3;
  std::int64_t connection_id_ = 0;
  Error error_;
  bool final_ = false;
};

}  // namespace wire
}  // namespace v1
}  // namespace echomq
