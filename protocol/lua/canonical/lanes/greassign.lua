#!lua flags=allow-oom
-- greassign: moves a waiting job to another lane, where it keeps its place by age.
-- KEYS[1] row of the job      KEYS[2] destination lane   KEYS[3] ring    KEYS[4] paused          KEYS[5] glimit
-- KEYS[6] gactive             KEYS[7] wake
-- ARGV[1] job id              ARGV[2] destination group  ARGV[3] base emq:{q}:
-- Replies: 1 moved; 0 it waits in that lane already; -1 no such job, or a flat one; -2 it does not wait in a lane (active,
--   scheduled, dead).
local row, destination = KEYS[1], KEYS[2]
local id, g, p = ARGV[1], ARGV[2], ARGV[3]

local source = redis.call('HGET', row, 'group')
if not source then return -1 end
local lane = p .. 'g:' .. source .. ':pending'
if source == g then return redis.call('ZSCORE', lane, id) and 0 or -2 end
if redis.call('ZREM', lane, id) == 0 then return -2 end
local act, freed, waiting = nil, 0, redis.call('ZCARD', destination) > 0
redis.call('ZADD', destination, 0, id)
redis.call('HSET', row, 'group', g)
local logging = redis.call('EXISTS', p .. 'logging') == 1
-- [log]
-- Expects p and logging: whether the queue's log is on. Sets log, nil when it is off.
local log
-- Expects p, logging and a local log. While the log is on, log(event, id, attempts, lane, name, value, ...) appends one entry; lane may be
-- nil. The first of a call drops what is beyond the bounds. A log that cannot be written holds nobody up: what it lacks is counted.
if logging and not log then
  local bounds, key = redis.pcall('HMGET', p .. 'logging', 'most', 'age'), p .. 'log'
  if bounds.err then bounds = {} end
  log = function(event, id, attempts, lane, ...)
    local entry
    if not id then
      entry = redis.pcall('XADD', key, '*', 'event', event)
    elseif lane then
      entry = redis.pcall('XADD', key, '*', 'event', event, 'job', id, 'attempts', attempts or '0', 'lane', lane, ...)
    else
      entry = redis.pcall('XADD', key, '*', 'event', event, 'job', id, 'attempts', attempts or '0', ...)
    end
    if type(entry) ~= 'string' then
      redis.pcall('HINCRBY', p .. 'logging', 'lost', 1)
    elseif bounds then
      local most, age = tonumber(bounds[1]), tonumber(bounds[2])
      bounds = nil
      redis.pcall('XTRIM', key, 'MAXLEN', '~', most and most >= 1 and math.floor(most) or 100000)
      if age and age >= 1 then
        redis.pcall('XTRIM', key, 'MINID', '~', string.format('%.0f', math.max(0, string.match(entry, '^%d+') - age)))
      end
    end
  end
end
-- [end]
if log then log('moved', id, redis.call('HGET', row, 'attempts'), g, 'from', source) end
-- [ring_return]
-- Expects p, g, act (jobs of g in flight, nil: not read yet), freed (slots this call has freed) and waiting
-- (the lane had members before). Looks through 64 entries; on a longer ring a lane that waited below its
-- ceiling is on it by the ring's invariant.
if not redis.call('LPOS', p .. 'ring', g, 'MAXLEN', 64) and redis.call('SISMEMBER', p .. 'paused', g) == 0 then
  local ceiling = tonumber(redis.call('HGET', p .. 'glimit', g))
  local below, expected = true, waiting
  if ceiling then
    act = act or tonumber(redis.call('HGET', p .. 'gactive', g)) or 0
    below = act < ceiling
    expected = waiting and act + freed < ceiling
  end
  if below and not (expected and redis.call('LLEN', p .. 'ring') > 64) then
    redis.call('RPUSH', p .. 'ring', g)
    if redis.call('LPUSH', p .. 'wake', '1') > 64 then redis.call('LTRIM', p .. 'wake', 0, 63) end
  end
end
-- [end]
if redis.call('ZCARD', lane) == 0 then redis.call('LREM', p .. 'ring', 0, source) end
return 1
