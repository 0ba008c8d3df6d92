// The boot conversation.
#include "wire/boot.hpp"

#include <algorithm>
#include <initializer_list>
#include <span>

#include "keyspace/keys.hpp"
#include "resp/encode.hpp"
#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {
namespace {

using keyspace::kVersionKey;

[[nodiscard]] std::string encode(std::initializer_list<std::string_view> parts) {
  const std::span<const std::string_view> all(parts.begin(), parts.size());
  std::string out(resp::encoded_size(all), '\0');
  resp::encode_to(out.data(), all);
  return out;
}

}  // namespace

std::string Boot::next() {
  switch (state_) {
    case State::hello: {
      if (settings_.password.empty())
        return encode({"HELLO", "3"});
      const std::string_view user = settings_.user.empty() ? "default" : std::string_view(settings_.user);
      return encode({"HELLO", "3", "AUTH", user, settings_.password});
    }
    case State::auth:
      if (settings_.user.empty())
        return encode({"AUTH", settings_.password});
      return encode({"AUTH", settings_.user, settings_.password});
    case State::select: return encode({"SELECT", std::to_string(settings_.database)});
    case State::set_name: return encode({"CLIENT", "SETNAME", settings_.client_name});
    case State::client_id: return encode({"CLIENT", "ID"});
    case State::get_version:
    case State::read_version: return encode({"GET", kVersionKey});
    case State::claim_version: return encode({"SET", kVersionKey, settings_.wire_version, "NX"});
    case State::live: break;
  }
  return {};
}

Boot::Step Boot::failed(Errc code, std::string text, bool is_final) {
  error_ = Error(code, std::move(text), Repeat::safe);
  final_ = is_final;
  return Step::failed;
}

Boot::Step Boot::refused(std::string_view server_text, Errc code) {
  Error error = to_error(server_text);
  // What may pass by itself is not a refusal.
  if (error.is(Errc::loading) || error.is(Errc::read_only) || error.is(Errc::out_of_memory)) {
    error_ = std::move(error);
    final_ = false;
    return Step::failed;
  }
  if (error.is(Errc::no_permission) || error.is(Errc::auth_refused)) {
    error_ = std::move(error);
    final_ = true;
    return Step::failed;
  }
  return failed(code, std::string(server_text), true);
}

Boot::Step Boot::advance() {
  // Skips the steps that the settings do not ask for.
  for (;;) {
    state_ = static_cast<State>(static_cast<int>(state_) + 1);
    switch (state_) {
      case State::auth: continue;  // HELLO did it; only RESP2 comes here on its own
      case State::select:
        if (settings_.database == 0)
          continue;
        return Step::more;
      case State::set_name:
        if (settings_.client_name.empty())
          continue;
        return Step::more;
      case State::client_id:
      case State::get_version: return Step::more;
      default: return Step::more;
    }
  }
}

Boot::Step Boot::take_version(const resp::View& reply) {
  if (reply.is_error()) {
    if (settings_.in_cluster && state_ == State::get_version && reply.error_text().starts_with("MOVED ")) {
      state_ = State::live;
      return Step::live;
    }
    const Error error = to_error(reply.error_text());
    error_ = error;
    final_ = false;  // an error reply is not a version
    return Step::failed;
  }
  if (reply.is_null()) {
    if (state_ == State::get_version) {
      state_ = State::claim_version;
      return Step::more;
    }
    return failed(Errc::version_mismatch, "{emq}:version could not be claimed", false);
  }
  const auto text = reply.as_text();
  const std::string stored(text ? *text : std::string_view("(not a string)"));
  if (std::ranges::find(settings_.accepted_versions, stored) != settings_.accepted_versions.end()) {
    state_ = State::live;
    return Step::live;
  }
  return failed(
      Errc::version_mismatch,
      "{emq}:version holds '" + stored.substr(0, 64) + "', this client speaks '" + settings_.wire_version + "'", true);
}

Boot::Step Boot::take(const resp::View& reply) {
  switch (state_) {
    case State::hello:
      if (!reply.is_error())
        return advance();
      if (reply.error_text().starts_with("NOAUTH") || reply.error_text().starts_with("WRONGPASS")) {
        return failed(Errc::auth_refused, std::string(reply.error_text()), true);
      }
      if (reply.error_text().starts_with("LOADING") || reply.error_text().starts_with("MASTERDOWN")) {
        return refused(reply.error_text(), Errc::loading);
      }
      // A server without HELLO: speak RESP2.
      protocol_ = 2;
      if (!settings_.password.empty()) {
        state_ = State::auth;
        return Step::more;
      }
      state_ = State::auth;
      return advance();
    case State::auth:
      if (reply.is_error())
        return refused(reply.error_text(), Errc::auth_refused);
      return advance();
    case State::select:
    case State::set_name:
      if (reply.is_error())
        return refused(reply.error_text(), Errc::boot_refused);
      return advance();
    case State::client_id:
      // Without the right to ask for it the connection works all the same; only CLIENT UNBLOCK needs it.
      if (const auto id = reply.as_integer())
        connection_id_ = *id;
      return advance();
    case State::get_version:
    case State::read_version: return take_version(reply);
    case State::claim_version:
      if (reply.is_error())
        return take_version(reply);
      state_ = State::read_version;
      return Step::more;
    case State::live: break;
  }
  return failed(Errc::protocol_error, "a reply after boot", false);
}

}  // namespace wire
}  // namespace v1
}  // namespace echomq
