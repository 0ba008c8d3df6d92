-- repeat_register: registers a job that is admitted again and again. An existing registration is left as it is.
-- KEYS[1] repeat              KEYS[2] repeat:<name>
-- ARGV[1] name                ARGV[2] period in ms   ARGV[3] payload of each occurrence
-- ARGV[4] first run, Unix ms  ARGV[5] `in`: ARGV[4] is ms from now by the server's clock; absent: an instant
-- Replies: 1 registered; 0 there is one of that name.
-- Refusals: ERR period must be a positive integer; ERR first run must be a number of ms
local every, first = tonumber(ARGV[2]), tonumber(ARGV[4])
if not every or not (every >= 1) or every % 1 ~= 0 then
  return redis.error_reply('ERR period must be a positive integer')
end
if not first or first ~= first then return redis.error_reply('ERR first run must be a number of ms') end

if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
if ARGV[5] == 'in' then
  -- [clock]
  local clock = redis.call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  -- [end]
  first = now + first
end
redis.call('HSET', KEYS[2], 'every_ms', ARGV[2], 'template', ARGV[3])
redis.call('ZADD', KEYS[1], first, ARGV[1])
return 1
