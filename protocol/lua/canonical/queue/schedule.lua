-- schedule: admits one flat job that becomes claimable by a promote at its due time.
-- KEYS[1] row of the job      KEYS[2] schedule
-- ARGV[1] job id              ARGV[2] payload
-- ARGV[3] `in`: the value is a delay by the server's clock; anything else (hosts send `at`): it is Unix ms
-- ARGV[4] value in ms
-- Replies: 1 admitted; 0 the row exists: nothing is changed.
-- Refusals: EMQKIND job id must be JOB-namespaced; ERR value of schedule must be a number
local row, schedule = KEYS[1], KEYS[2]
local id = ARGV[1]

if string.sub(id, 1, 3) ~= 'JOB' then return redis.error_reply('EMQKIND job id must be JOB-namespaced') end
local due = tonumber(ARGV[4])
if not due or due ~= due then return redis.error_reply('ERR value of schedule must be a number') end
if redis.call('EXISTS', row) == 1 then return 0 end
if ARGV[3] == 'in' then
  -- [clock]
  local clock = redis.call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  -- [end]
  due = now + due
end
redis.call('HSET', row, 'state', 'scheduled', 'attempts', '0', 'payload', ARGV[2])
redis.call('ZADD', schedule, due, id)

local p = string.sub(schedule, 1, -9)
-- [due_wake]
-- Expects p and id, just put into schedule: a parked worker sleeps until the earliest due time, so an earlier one wakes it.
local parked = redis.call('ZCARD', p .. 'parked')
if parked > 0 and redis.call('ZRANGE', p .. 'schedule', 0, 0)[1] == id
    and redis.call('LLEN', p .. 'wake') < parked then
  redis.call('LPUSH', p .. 'wake', '1')
  redis.call('LTRIM', p .. 'wake', 0, 63)
end
-- [end]
return 1
