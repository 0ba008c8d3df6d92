#!lua flags=allow-oom
-- lane_mend (extension): an operator's repair of one lane, at one moment. Its count of jobs in flight becomes what active holds of it;
-- and it stands on the ring once when it has jobs, is not paused and is below its limit, else not at all.
-- KEYS[1] active              KEYS[2] gactive        KEYS[3] ring        KEYS[4] paused          KEYS[5] glimit
-- KEYS[6] wake
-- ARGV[1] base emq:{q}:       ARGV[2] group          ARGV[3] how many members active may have, at most 10000: all are looked at
-- Replies: [what gactive said or null, jobs in flight, turns on the ring before, turns now]
-- Refusals: ERR most must be 1 to 10000; ERR active has more members
local active, gactive, ring, paused, glimit, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local p, g, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
if not most or not (most >= 1 and most <= 10000) then return redis.error_reply('ERR most must be 1 to 10000') end
if redis.call('ZCARD', active) > most then return redis.error_reply('ERR active has more members') end

local said = redis.call('HGET', gactive, g)
local turns = #redis.call('LPOS', ring, g, 'COUNT', 0)
local count = 0
for _, id in ipairs(redis.call('ZRANGE', active, 0, 9999)) do
  if redis.pcall('HGET', p .. 'job:' .. id, 'group') == g then count = count + 1 end
end
local ceiling = tonumber(redis.call('HGET', glimit, g))
local serves = redis.call('ZCARD', p .. 'g:' .. g .. ':pending') > 0 and redis.call('SISMEMBER', paused, g) == 0
  and not (ceiling and count >= ceiling)
local wanted = serves and 1 or 0

redis.call('LLEN', wake)
if count == 0 then redis.call('HDEL', gactive, g) else redis.call('HSET', gactive, g, count) end
if turns > wanted then
  redis.call('LREM', ring, wanted - turns, g)   -- from the tail: the first turn stays
elseif turns < wanted then
  redis.call('RPUSH', ring, g)
  if redis.call('LPUSH', wake, '1') > 64 then redis.call('LTRIM', wake, 0, 63) end
end
return {said, count, turns, wanted}
