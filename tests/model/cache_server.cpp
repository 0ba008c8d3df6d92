// The server of the cache's model test, and its connections.
#include "model/cache_server.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "resp/view.hpp"
#include "wire/request_keys.hpp"

namespace echomq::model {
namespace {

[[nodiscard]] std::string bulk(std::string_view text) {
  return "$" + std::to_string(text.size()) + "\r\n" + std::string(text) + "\r\n";
}
[[nodiscard]] std::string number(std::int64_t value) { return ":" + std::to_string(value) + "\r\n"; }
[[nodiscard]] std::string null() { return "_\r\n"; }

[[nodiscard]] std::size_t read_size(std::string_view text, std::size_t& at) {
  std::size_t value = 0;
  at = static_cast<std::size_t>(std::from_chars(text.data() + at + 1, text.data() + text.size(), value).ptr -
                                text.data()) +
       2;
  return value;
}
[[nodiscard]] std::vector<CacheConnection::Command> commands_of(std::string_view request) {
  std::vector<CacheConnection::Command> all;
  for (std::size_t at = 0; at < request.size();) {
    CacheConnection::Command command(read_size(request, at));
    for (std::string& part : command) {
      const std::size_t size = read_size(request, at);
      part = request.substr(at, size);
      at += size + 2;
    }
    all.push_back(std::move(command));
  }
  return all;
}
[[nodiscard]] std::uint64_t number_of(const std::string& text) { return std::stoull(text); }

}  // namespace

CacheConnection::~CacheConnection() {
  for (Sent& one : sent_) {
    if (one.call == nullptr)
      continue;
    if (one.call->win())
      one.call->fail(Error(Errc::client_closed, "the play is over"));
    one.call->release();
  }
}

void CacheConnection::submit(detail::Call* call) {
  Sent sent{.call = call, .commands = commands_of({call->request, call->request_size}), .since = server_.time};
  sent.awaited = sent.commands.size();
  sent_.push_back(std::move(sent));
}

void CacheConnection::post(Command command) {
  sent_.push_back({.commands = {std::move(command)}, .awaited = 1, .since = server_.time, .posted = true});
}

void CacheConnection::listen() {
  sent_.push_back({.commands = {{"LISTEN"}}, .awaited = 1, .since = server_.time, .asks_to_listen = true});
}

CacheConnection::Sent* CacheConnection::unexecuted() {
  for (Sent& one : sent_) {
    if (one.executed < one.commands.size())
      return &one;
  }
  return nullptr;
}

bool CacheConnection::can_fail() const {
  return std::ranges::any_of(sent_, [](const Sent& one) { return one.call != nullptr; });
}

std::optional<std::uint64_t> CacheConnection::waits_since() const {
  if (sent_.empty())
    return std::nullopt;
  return sent_.front().since;
}

void CacheConnection::execute() {
  Sent& next = *unexecuted();
  const Command& command = next.commands[next.executed++];
  if (next.asks_to_listen) {
    listening_ = true;
    if (std::ranges::find(server_.connections_, this) == server_.connections_.end())
      server_.connections_.push_back(this);
    out_.push_back({.frame = "+OK\r\n", .versions = server_.versions()});
    return;
  }
  // Before the reply is queued: messages that a PUBLISH makes come first to whoever hears on this connection.
  std::string reply = server_.execute(command, this);
  out_.push_back({.frame = std::move(reply)});
}

void CacheConnection::deliver() {
  const Out next = std::move(out_.front());
  out_.pop_front();
  const resp::View view(next.frame);
  if (next.push)
    return on_push(view, next.versions);
  Sent& one = sent_.front();
  detail::Call* call = one.call;
  const bool last = --one.awaited == 0;
  const bool confirmed = one.asks_to_listen;
  if (last)
    sent_.pop_front();
  if (confirmed)
    return on_confirmed(next.versions);
  if (call == nullptr)
    return;
  if (!last)
    return call->part(view);
  if (call->win())
    call->accept(view);
  call->release();
}

void CacheConnection::fail_oldest(Error error, bool forget) {
  const auto at = std::ranges::find_if(sent_, [](const Sent& one) { return one.call != nullptr; });
  detail::Call* call = std::exchange(at->call, nullptr);
  if (forget && at->executed == 0)
    sent_.erase(at);
  if (call->win())
    call->fail(std::move(error));
  call->release();
}

void CacheConnection::cut() {
  up_ = false;
  listening_ = false;
  out_.clear();
}

void CacheConnection::reconnect() {
  cut();
  up_ = true;
  std::erase_if(sent_, [](const Sent& one) { return one.call == nullptr && !one.posted; });
  for (Sent& one : sent_) {
    one.executed = 0;
    one.awaited = one.commands.size();
    one.since = server_.time;
  }
}

std::optional<std::string> CacheServer::frame(const std::string& key) {
  expire();
  const auto at = rows_.find(key);
  return at == rows_.end() ? std::nullopt : std::optional(at->second.frame);
}

std::uint64_t CacheServer::version(const std::string& key) {
  const auto bytes = frame(key);
  const auto parsed = bytes ? cache::read_frame(*bytes) : std::nullopt;
  return parsed ? parsed->version.value() : 0;
}

CacheConnection::Versions CacheServer::versions() {
  expire();
  CacheConnection::Versions all;
  for (const auto& [key, row] : rows_)
    all[key] = version(key);
  return all;
}

void CacheServer::expire() {
  for (auto at = rows_.begin(); at != rows_.end();) {
    if (at->second.expires > time) {
      ++at;
      continue;
    }
    changed(at->first, nullptr);
    at = rows_.erase(at);
  }
}

void CacheServer::store(const std::string& key, std::string frame, std::uint64_t ttl, CacheConnection* by) {
  rows_[key] = {std::move(frame), time + ttl};
  changed(key, by);
}

bool CacheServer::erase(const std::string& key, CacheConnection* by) {
  if (rows_.erase(key) == 0)
    return false;
  changed(key, by);
  return true;
}

void CacheServer::end_turn() {
  if (changed_.empty())
    return;
  const auto all = std::exchange(changed_, {});
  const CacheConnection::Versions now = versions();
  for (CacheConnection* one : connections_) {
    if (!one->listening_ || one->listens_ != CacheConnection::Listens::to_changes)
      continue;
    std::string keys;
    std::size_t count = 0;
    CacheConnection::Versions told;
    for (const auto& [key, by] : all) {
      if (by == one)
        continue;
      keys += bulk(key);
      ++count;
      if (const auto at = now.find(key); at != now.end())
        told.insert(*at);
    }
    if (count > 0)
      one->out_.push_back({">2\r\n" + bulk("invalidate") + "*" + std::to_string(count) + "\r\n" + keys, true, told});
  }
}

std::string CacheServer::execute(const CacheConnection::Command& command, CacheConnection* by) {
  expire();
  const std::string& name = command[0];
  if (name == "PTTL") {
    const auto at = rows_.find(command[1]);
    return number(at == rows_.end() ? -2 : static_cast<std::int64_t>(at->second.expires - time));
  }
  if (name == "GET") {
    const auto found = frame(command[1]);
    return found ? bulk(*found) : null();
  }
  if (name == "SET") {  // NX GET PX
    if (const auto there = frame(command[1]))
      return bulk(*there);
    store(command[1], command[2], number_of(command.back()), by);
    return null();
  }
  if (name == "DEL")
    return number(erase(command[1], by) ? 1 : 0);
  if (name == "PUBLISH") {
    std::int64_t heard = 0;
    for (CacheConnection* one : connections_) {
      if (!one->listening_ || one->listens_ != CacheConnection::Listens::to_channel || silent)
        continue;
      one->out_.push_back({">3\r\n" + bulk("message") + bulk(command[1]) + bulk(command[2]), true, {}});
      ++heard;
    }
    return number(heard);
  }
  // EVALSHA: `cache_put` has a value and a time, `coherence_drop` a version alone. What scripts write is of nobody.
  const std::string& key = command[3];
  const BrandedId version = *BrandedId::parse(command[4]);
  const auto there = frame(key);
  const auto stored = there ? cache::read_frame(*there) : std::nullopt;
  if (command.size() == 5)
    return number(there && (!stored || is_newer(version, stored->version)) && erase(key, nullptr) ? 1 : 0);
  if (stored && is_newer(stored->version, version))
    return bulk(*there);
  store(key, cache::make_frame(version, command[5]), number_of(command[6]), nullptr);
  return number(stored ? 2 : 1);
}

}  // namespace echomq::model
