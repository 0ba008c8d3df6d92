#!lua flags=allow-oom
-- extend_lock: gives a leased job a new deadline, counted from now. Never puts a job into active that is not there.
-- KEYS[1] active              KEYS[2] row of the job
-- ARGV[1] job id              ARGV[2] token          ARGV[3] lease in ms
-- Replies: 1 extended; -1 the row is gone.
-- Refusals: EMQSTALE extend token mismatch (also when the lease is already lost); ERR lease must be a positive number of ms
local active, row = KEYS[1], KEYS[2]
local id = ARGV[1]
local lease = tonumber(ARGV[3])
if not lease or not (lease > 0) then return redis.error_reply('ERR lease must be a positive number of ms') end

local attempts = redis.call('HGET', row, 'attempts')
if not attempts then return -1 end
if attempts ~= ARGV[2] then return redis.error_reply('EMQSTALE extend token mismatch') end
-- [clock]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- [end]
-- CH counts a changed score only: a second extension in the same ms answers 0 for a member that is there.
if redis.call('ZADD', active, 'XX', 'CH', now + lease, id) == 0 and not redis.call('ZSCORE', active, id) then
  return redis.error_reply('EMQSTALE extend token mismatch')
end
return 1
