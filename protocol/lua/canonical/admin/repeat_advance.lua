#!lua flags=allow-oom
-- repeat_advance: sets the next run of a registration.
-- KEYS[1] repeat              KEYS[2] repeat:<name>
-- ARGV[1] name                ARGV[2] next run, Unix ms
-- ARGV[3] `in`: ARGV[2] is ms from now by the server's clock; absent: an instant
-- Replies: 1 advanced; 0 there is no record of that name: a member that was left over is deleted.
-- Refusals: ERR next run must be a number of ms
local run = tonumber(ARGV[2])
if not run or run ~= run then return redis.error_reply('ERR next run must be a number of ms') end

if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('ZREM', KEYS[1], ARGV[1])
  return 0
end
if ARGV[3] == 'in' then
  -- [clock]
  local clock = redis.call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  -- [end]
  run = now + run
end
redis.call('ZADD', KEYS[1], run, ARGV[1])
return 1
