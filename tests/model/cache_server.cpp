// The server of the cache's model test, and its connections.
#include "model/cache_server.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "resp/view.hpp"
#include "script/registry.hpp"
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
[[nodiscard]] bool is_script(const std::string& sha1, std::string_view name) {
  return sha1 == script::find_script(name)->sha1;
}
[[nodiscard]] std::uint64_t value_of(const std::string& version) { return BrandedId::parse(version)->value(); }

}  // namespace

CacheConnection::~CacheConnection() {
  while (!sent_.empty()) {  // who is told may send something
    detail::Call* call = sent_.front().call;
    sent_.pop_front();
    if (call == nullptr)
      continue;
    if (call->win())
      call->fail(Error(Errc::client_closed, "the play is over"));
    call->release();
  }
}

void CacheConnection::submit(detail::Call* call, Repeat repeat) {
  Sent sent{.call = call, .commands = commands_of({call->request, call->request_size}), .since = server_.time};
  sent.awaited = sent.commands.size();
  sent.unsafe = repeat == Repeat::unsafe;
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
  out_.push_back({.frame = std::move(reply), .refused = std::exchange(server_.refused_, std::nullopt)});
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
  if (next.refused && on_refused)
    on_refused(next.refused->first, next.refused->second);
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
  std::vector<detail::Call*> unknown;
  std::erase_if(sent_, [&](const Sent& one) {
    if (!one.unsafe || one.executed == 0)
      return false;
    unknown.push_back(one.call);
    return true;
  });
  for (Sent& one : sent_) {
    one.executed = 0;
    one.awaited = one.commands.size();
    one.since = server_.time;
  }
  for (detail::Call* call : unknown) {
    if (call->win())
      call->fail(Error(Errc::outcome_unknown, "the connection was lost"));
    call->release();
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
    if (at->second.life < whole_life)
      end_early(at->first);
    at = rows_.erase(at);
  }
  for (auto at = leases_.begin(); at != leases_.end();) {
    if (at->second.expires > time) {
      ++at;
      continue;
    }
    on_lease_over(at->first, at->second.by);
    at = leases_.erase(at);
  }
  std::erase_if(tags_, [&](const auto& one) { return one.second.expires <= time; });
  std::erase_if(tag_floors_, [&](const auto& one) { return one.second.expires <= time; });
}

void CacheServer::store(const std::string& key, std::string frame, std::uint64_t ttl, CacheConnection* by) {
  rows_[key] = {std::move(frame), time + ttl, ttl};
  changed(key, by);
}

bool CacheServer::erase(const std::string& key, CacheConnection* by) {
  if (rows_.erase(key) == 0)
    return false;
  changed(key, by);
  end_early(key);
  return true;
}

void CacheServer::end_early(const std::string& key) {
  for (CacheConnection* one : connections_) {
    for (auto& out : one->out_)
      out.versions.erase(key);
  }
  on_early_end(key);
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
  if (on_execute)
    on_execute(command, by);
  if (refuses) {
    if (auto refusal = refuses(command))
      return *std::move(refusal);
  }
  const std::string& name = command[0];
  if (name == "GETRANGE")  // 0 13
    return bulk(frame(command[1]).value_or("").substr(0, 14));
  if (name == "PTTL") {
    const auto at = rows_.find(command[1]);
    return number(at == rows_.end() ? -2 : static_cast<std::int64_t>(at->second.expires - time));
  }
  if (name == "GET" && command[1] == "eccx:{t}:tagdrops")
    return drops_ == 0 ? null() : bulk(std::to_string(drops_));
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
  if (name == "DEL") {
    return number(static_cast<std::int64_t>(leases_.erase(command[1])) + (erase(command[1], by) ? 1 : 0));
  }
  if (name == "PUBLISH")
    return number(publish(command[1], command[2]));
  if (is_script(command[1], "cache_load"))
    return load(command, by);
  if (is_script(command[1], "cache_load_keep"))
    return keep(command);
  if (is_script(command[1], "cache_load_end"))
    return end_load(command);
  if (is_script(command[1], "cache_put_tagged"))
    return put_tagged(command);
  if (is_script(command[1], "cache_tag_drop"))
    return drop(command);
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

std::int64_t CacheServer::publish(const std::string& channel, const std::string& message) {
  if (channel == "eccx:{t}:loads") {
    on_load_told(message);
    return 0;
  }
  std::int64_t heard = 0;
  for (CacheConnection* one : connections_) {
    if (!one->listening_ || one->listens_ != CacheConnection::Listens::to_channel || silent)
      continue;
    one->out_.push_back({.frame = ">3\r\n" + bulk("message") + bulk(channel) + bulk(message), .push = true});
    ++heard;
  }
  return heard;
}

// The scripts of shared loads and tags, as protocol/lua has them.

std::string CacheServer::load(const CacheConnection::Command& command, CacheConnection* by) {
  const std::string& lease = command[4];
  const std::string& token = command[5];
  const auto there = frame(command[3]);
  const auto stored = there ? cache::read_frame(*there) : std::nullopt;
  if (stored && stored->version.text() != command[7])
    return number(0);
  if (const auto held = leases_.find(lease); held != leases_.end() && held->second.token != token)
    return bulk(held->second.token);
  leases_[lease] = {token, by, time + number_of(command[6])};
  ++grants_[by];
  return number(1);
}

std::string CacheServer::keep(const CacheConnection::Command& command) {
  const auto held = leases_.find(command[3]);
  if (held == leases_.end() || held->second.token != command[4])
    return number(0);
  held->second.expires = time + number_of(command[5]);
  return number(1);
}

std::string CacheServer::end_load(const CacheConnection::Command& command) {
  const std::string& key = command[3];
  const auto held = leases_.find(command[4]);
  const bool has = held != leases_.end() && held->second.token == command[6];
  const bool knows = !command[8].empty();
  const bool writes = !command[9].empty();
  std::optional<std::string> newer;
  if (knows) {
    const std::uint64_t version = value_of(command[8]);
    const auto there = frame(key);
    const auto stored = there ? cache::read_frame(*there) : std::nullopt;
    if (!has) {
      const bool same = stored && stored->version.value() == version;
      if (same && writes)
        return number(1);
      if (same)
        (void)erase(key, nullptr);
      if (writes)
        refused_ = {key, version};
      return number(0);
    }
    if (stored && stored->version.value() > version) {
      newer = *there;
    } else if (writes) {
      store(key, cache::make_frame(*BrandedId::parse(command[8]), command[10]), number_of(command[9]), nullptr);
    }
  }
  if (!has)
    return number(0);
  leases_.erase(held);
  (void)publish(command[5], command[7]);
  return newer ? bulk(*newer) : number(1);
}

std::string CacheServer::put_tagged(const CacheConnection::Command& command) {
  const std::string& key = command[3];
  const std::string& base = command[5];
  const BrandedId version = *BrandedId::parse(command[6]);
  const std::uint64_t hold = number_of(command[10]);
  const auto known = command[11].empty() ? std::nullopt : std::optional(std::stoll(command[11]));
  if (known && *known > drops_)
    return number(0);
  for (std::size_t i = 13; i < command.size(); ++i) {
    const auto floor = tag_floors_.find(base + "tagfloor:" + command[i]);
    if (floor == tag_floors_.end())
      continue;
    if (version.value() < floor->second.version || (known && floor->second.number > *known))
      return number(0);
  }
  const auto there = frame(key);
  const auto stored = there ? cache::read_frame(*there) : std::nullopt;
  if (stored && is_newer(stored->version, version))
    return bulk(*there);
  if (!command[12].empty() && (!stored || stored->version.text() != command[12]))
    return number(0);
  store(key, cache::make_frame(version, command[7]), number_of(command[8]), nullptr);
  for (std::size_t i = 13; i < command.size(); ++i) {
    Tag& tag = tags_[base + "tag:" + command[i]];
    for (int gone = 0; gone < 2; ++gone) {
      const auto over = std::ranges::find_if(tag.rows, [&](const auto& one) { return one.second < time; });
      if (over != tag.rows.end())
        tag.rows.erase(over);
    }
    std::uint64_t& until = tag.rows[command[9]];
    until = std::max(until, time + hold);
    tag.expires = std::max(tag.expires, time + hold);
  }
  return number(stored ? 2 : 1);
}

/// One row a call, whatever is asked for, so that others come in between.
std::string CacheServer::drop(const CacheConnection::Command& command) {
  const std::string& apart = command[4];
  const std::string& base = command[7];
  const BrandedId version = *BrandedId::parse(command[8]);
  if (command[9] == "1") {
    ++drops_;
    std::uint64_t highest = version.value();
    if (const auto last = tag_floors_.find(command[5]); last != tag_floors_.end())
      highest = std::max(highest, last->second.version);
    tag_floors_[command[5]] = {highest, drops_, time + number_of(command[12])};
  }
  bool wanted = command[10] == "1";
  if (wanted && !tags_.contains(apart)) {
    if (const auto rows = tags_.find(command[3]); rows != tags_.end()) {
      tags_[apart] = std::move(rows->second);
      tags_.erase(rows);
    }
    wanted = false;
  }
  std::int64_t deleted = 0;
  std::string told_ids;
  if (const auto at = tags_.find(apart); at != tags_.end()) {
    const std::string id = at->second.rows.begin()->first;
    at->second.rows.erase(at->second.rows.begin());
    if (at->second.rows.empty())
      tags_.erase(at);
    const std::string key = base + id;
    BrandedId told = version;
    if (const auto there = frame(key)) {
      const auto stored = cache::read_frame(*there);
      if (stored && !is_newer(version, stored->version))
        told = cache::just_newer(stored->version);
      deleted = erase(key, nullptr) ? 1 : 0;
    }
    (void)publish(base + "coh", id + ":" + std::string(told.text()));
    told_ids = bulk(id);
  }
  const auto left = tags_.find(apart);
  return "*" + std::to_string(told_ids.empty() ? 3 : 4) + "\r\n" +
         number(left == tags_.end() ? 0 : static_cast<std::int64_t>(left->second.rows.size())) +
         number(wanted ? 1 : 0) + number(deleted) + told_ids;
}

}  // namespace echomq::model
