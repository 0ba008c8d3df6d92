#!lua flags=no-writes
-- rate_ttl: how long the queue's rate window is still used up. A limit or counter that is no number counts as absent.
-- KEYS[1] limiter             KEYS[2] meta
-- ARGV[1] jobs a window; 0: meta.max
-- Replies: ms until the window ends; 0 when it is not used up or there is no limit.
local max = tonumber(ARGV[1]) or 0
if max == 0 then max = tonumber(redis.call('HGET', KEYS[2], 'max')) or 0 end
if max > 0 and max <= (tonumber(redis.call('GET', KEYS[1])) or 0) then
  return math.max(0, redis.call('PTTL', KEYS[1]))
end
return 0
