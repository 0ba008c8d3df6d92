#include "support/exchange_side.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <set>
#include <sstream>
#include <utility>

#include "script/registry.hpp"

namespace echomq::test {
namespace {

/// Everything in the database as text, a line a member. Instants (scores beyond 1e12) are told in steps of 1,000 s from
/// now, rounded up: the test's own times are further apart and its runs shorter.
constexpr std::string_view kDump = R"(
  local t = redis.call('TIME')
  local now = t[1] * 1000 + math.floor(t[2] / 1000)
  local lines = {}
  local keys = redis.call('KEYS', 'emq:{q}:*')
  table.sort(keys)
  for _, key in ipairs(keys) do
    local kind = redis.call('TYPE', key).ok
    local own = {}
    if kind == 'string' then
      own[1] = redis.call('GET', key)
    elseif kind == 'hash' then
      local all = redis.call('HGETALL', key)
      for i = 1, #all, 2 do own[#own + 1] = all[i] .. '=' .. all[i + 1] end
      table.sort(own)
    elseif kind == 'list' then
      own = redis.call('LRANGE', key, 0, -1)
    elseif kind == 'set' then
      own = redis.call('SMEMBERS', key)
      table.sort(own)
    elseif kind == 'zset' then
      local all = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
      for i = 1, #all, 2 do
        local score = tonumber(all[i + 1])
        own[#own + 1] = all[i] .. '@' .. (score > 1e12 and 'now+' .. math.ceil((score - now) / 1e6) or all[i + 1])
      end
      table.sort(own)
    end
    for _, one in ipairs(own) do lines[#lines + 1] = key .. ' ' .. kind .. ' ' .. one end
    if redis.call('PTTL', key) >= 0 then lines[#lines + 1] = key .. ' expires' end
  end
  return table.concat(lines, '\n')
)";

}  // namespace

Side::Side() {
  using namespace std::chrono_literals;
  auto started = echomq::testing::PrivateServer::start({.listen = echomq::testing::Listen::unix_socket});
  EXPECT_TRUE(started) << started.error().message();
  server_.emplace(*std::move(started));
  // No call may be lost on a machine that stands still for a while: the sides would part.
  client_.emplace(
      Client::open(server_->url(),
                   {.connect_timeout = 60s, .deadline = 5min, .heartbeat = 0s, .node_lease = NodeLease::never})
          .value());
  queue_.emplace(client_->queue("q"));
}

Value Side::raw(const std::vector<std::string>& parts) {
  const std::vector<std::string_view> views(parts.begin(), parts.end());
  auto reply = client_->command(CommandParts(views)).get();
  if (reply)
    return *std::move(reply);
  EXPECT_TRUE(reply.error().is(Errc::server_error)) << reply.error().message();
  return Value();
}

std::string Side::script(std::string_view name, const std::vector<std::string>& keys,
                         const std::vector<std::string>& arguments) {
  const Value reply = call(name, keys, arguments);
  return reply.to_string();
}

Value Side::call(std::string_view name, const std::vector<std::string>& keys,
                 const std::vector<std::string>& arguments) {
  const script::ScriptSource* source = script::find_script(name);
  std::vector<std::string> parts = {"EVAL", std::string(source->source), std::to_string(keys.size())};
  for (const std::string& key : keys)
    parts.push_back(kBase + key);
  parts.insert(parts.end(), arguments.begin(), arguments.end());
  const std::vector<std::string_view> views(parts.begin(), parts.end());
  auto reply = client_->command(CommandParts(views)).get();
  if (!reply) {
    error_ = reply.error().message();
    return Value();
  }
  error_.clear();
  return *std::move(reply);
}

std::string Side::dump() {
  const Value reply = raw({"EVAL", std::string(kDump), "0"});
  return std::string(reply.as_text().value_or("(no dump)"));
}

std::vector<std::string> Side::members(const std::string& set) {
  std::vector<std::string> ids;
  const Value reply = raw({"ZRANGE", kBase + set, "0", "-1"});
  for (const Value& one : reply.items())
    ids.emplace_back(one.as_text().value_or(""));
  std::ranges::sort(ids);
  return ids;
}

std::string difference(const std::string& one_by_one, const std::string& together) {
  const auto lines = [](const std::string& text) {
    std::multiset<std::string> all;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);)
      all.insert(line);
    return all;
  };
  const auto left = lines(one_by_one);
  const auto right = lines(together);
  std::vector<std::string> only;
  std::set_difference(left.begin(), left.end(), right.begin(), right.end(), std::back_inserter(only));
  std::string out = "only one by one:\n";
  for (const std::string& line : only)
    out += "  " + line + "\n";
  only.clear();
  std::set_difference(right.begin(), right.end(), left.begin(), left.end(), std::back_inserter(only));
  out += "only together:\n";
  for (const std::string& line : only)
    out += "  " + line + "\n";
  return out;
}

}  // namespace echomq::test
