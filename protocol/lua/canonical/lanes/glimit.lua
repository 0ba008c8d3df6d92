#!lua flags=allow-oom
-- glimit: sets how many jobs of a lane may be in flight. Those that are in flight go on.
-- KEYS[1] glimit              KEYS[2] gactive        KEYS[3] ring        KEYS[4] paused          KEYS[5] wake
-- ARGV[1] base emq:{q}:       ARGV[2] group          ARGV[3] ceiling
-- Replies: 1.
-- Refusals: ERR ceiling must be a positive integer
local glimit, gactive, ring, paused, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local g = ARGV[2]
local ceiling = tonumber(ARGV[3])
if not ceiling or not (ceiling >= 1) or ceiling % 1 ~= 0 then
  return redis.error_reply('ERR ceiling must be a positive integer')
end

redis.call('HSET', glimit, g, ARGV[3])
local act = tonumber(redis.call('HGET', gactive, g)) or 0
if act >= ceiling then
  redis.call('LREM', ring, 0, g)
elseif redis.call('ZCARD', ARGV[1] .. 'g:' .. g .. ':pending') > 0 and redis.call('SISMEMBER', paused, g) == 0
    and not redis.call('LPOS', ring, g) then
  redis.call('RPUSH', ring, g)
  if redis.call('LPUSH', wake, '1') > 64 then redis.call('LTRIM', wake, 0, 63) end
end
return 1
