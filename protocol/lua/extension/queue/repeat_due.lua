#!lua flags=no-writes
-- repeat_due: registrations whose next run has come by the server's clock, with their records, in one look.
-- KEYS[1] repeat
-- ARGV[1] base emq:{q}:       ARGV[2] limit; absent, or above it: 1000
-- Replies: [[name, period or null, payload or null, next run], ...], the oldest run first.
-- Refusals: ERR limit must be a positive integer
local limit = tonumber(ARGV[2] or 1000)
if not limit or not (limit >= 1) then return redis.error_reply('ERR limit must be a positive integer') end

-- [clock]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- [end]
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, math.min(math.floor(limit), 1000))
local records = {}
for i = 1, #due, 2 do
  local record = redis.call('HMGET', ARGV[1] .. 'repeat:' .. due[i], 'every_ms', 'template')
  records[#records + 1] = {due[i], record[1], record[2], due[i + 1]}
end
return records
