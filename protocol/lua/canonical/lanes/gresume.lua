#!lua flags=allow-oom
-- gresume: puts a lane back into service. For a lane that is not paused it is a repair: a lane with jobs and room that is missing
-- from the ring is put on it, so this one looks through the whole ring.
-- KEYS[1] paused              KEYS[2] ring           KEYS[3] glimit      KEYS[4] gactive         KEYS[5] wake
-- ARGV[1] base emq:{q}:       ARGV[2] group
-- Replies: 1.
local paused, ring, glimit, gactive, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local g = ARGV[2]

redis.call('SREM', paused, g)
if redis.call('ZCARD', ARGV[1] .. 'g:' .. g .. ':pending') > 0 then
  local ceiling = tonumber(redis.call('HGET', glimit, g))
  local act = tonumber(redis.call('HGET', gactive, g)) or 0
  if (not ceiling or act < ceiling) and not redis.call('LPOS', ring, g) then
    redis.call('RPUSH', ring, g)
    if redis.call('LPUSH', wake, '1') > 64 then redis.call('LTRIM', wake, 0, 63) end
  end
end
return 1
