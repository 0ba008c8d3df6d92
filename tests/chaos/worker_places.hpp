// Where the jobs of a queue are, asked of the server in one step.
#pragma once

#include <string>
#include <string_view>

#include "echomq/client.hpp"

namespace echomq::test {

enum class Ceilings : bool {
  may_fall,  ///< they change while jobs are in flight, so more may be in flight than they allow
  stand,
};

inline constexpr std::string_view kMisplaced = R"(
local p = ARGV[1]
local seen = {}
for _, set in ipairs({'pending', 'active', 'schedule', 'dead'}) do
  for _, id in ipairs(redis.call('ZRANGE', p .. set, 0, -1)) do
    if seen[id] then return id .. ' is in ' .. seen[id] .. ' and in ' .. set end
    seen[id] = set
    if redis.call('EXISTS', p .. 'job:' .. id) == 0 then return id .. ' in ' .. set .. ' has no row' end
  end
end
local lanes = {}
for _, key in ipairs(redis.call('KEYS', p .. 'g:*:pending')) do
  for _, id in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    if seen[id] then return id .. ' is in ' .. seen[id] .. ' and in ' .. key end
    seen[id] = key
  end
end
local inflight = {}
for _, key in ipairs(redis.call('KEYS', p .. 'job:??????????????')) do
  local id = string.sub(key, #p + 5)
  if not seen[id] and redis.call('HGET', key, 'state') ~= 'awaiting_children' then return id .. ' is in no set' end
  local g = redis.call('HGET', key, 'group')
  if g and seen[id] == 'active' then inflight[g] = (inflight[g] or 0) + 1 end
end
local counted = redis.call('HGETALL', p .. 'gactive')
for i = 1, #counted, 2 do
  local ceiling = tonumber(redis.call('HGET', p .. 'glimit', counted[i]))
  if ceiling and tonumber(ARGV[2]) == 1 and tonumber(counted[i + 1]) > ceiling then
    return 'lane ' .. counted[i] .. ' has ' .. counted[i + 1] .. ' in flight, its ceiling is ' .. ceiling
  end
  if (inflight[counted[i]] or 0) ~= tonumber(counted[i + 1]) then
    return 'gactive of ' .. counted[i] .. ' is ' .. counted[i + 1] .. ', in flight ' .. (inflight[counted[i]] or 0)
  end
  inflight[counted[i]] = nil
end
for g, n in pairs(inflight) do return 'gactive of ' .. g .. ' lacks ' .. n end
return ''
)";

/// Each job of the queue is in exactly one place, no place holds a job without a row, and the lanes' counts of jobs in
/// flight are what `active` holds, within their ceilings when those stand. "" when all is well.
[[nodiscard]] inline std::string misplaced(const Client& client, std::string_view queue,
                                           Ceilings ceilings = Ceilings::may_fall) {
  const std::string base = "emq:{" + std::string(queue) + "}:";
  auto answer = client.command("EVAL", kMisplaced, "0", base, ceilings == Ceilings::stand ? "1" : "0").get();
  return answer ? std::string(answer->as_text().value_or("?")) : answer.error().message();
}

}  // namespace echomq::test
