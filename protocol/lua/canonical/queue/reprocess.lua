#!lua flags=allow-oom
-- reprocess: gives a dead job another chance, in pending or in its lane, without its last error, the mark `cancel` and what was kept of
-- its death. Attempts, stalled and metrics stay as they are.
-- KEYS[1] row of the job      KEYS[2] dead           KEYS[3] pending
-- ARGV[1] job id
-- Replies: 1 waiting again; -1 no such job.
-- Refusals: EMQSTATE not dead
local row, dead, pending = KEYS[1], KEYS[2], KEYS[3]
local id = ARGV[1]
local p = string.sub(pending, 1, -8)

if redis.call('EXISTS', row) == 0 then return -1 end
if redis.call('ZREM', dead, id) == 0 then return redis.error_reply('EMQSTATE not dead') end
redis.call('HDEL', row, 'last_error', 'cancel')
redis.call('DEL', p .. 'result:' .. id)   -- whoever completes it may keep nothing
redis.call('HSET', row, 'state', 'pending')
local g = redis.call('HGET', row, 'group')
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
if log then log('reprocessed', id, redis.call('HGET', row, 'attempts'), g) end
if g then
  local lane = p .. 'g:' .. g .. ':pending'
  local act, freed, waiting = nil, 0, redis.call('ZCARD', lane) > 0
  redis.call('ZADD', lane, 0, id)
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
  return 1
end
redis.call('ZADD', pending, 0, id)
local made = 1
-- [flat_wake]
-- Expects p and made, the flat jobs this call has made claimable: a hint for each, no more than parked workers lack.
local parked = redis.call('ZCARD', p .. 'parked')
if parked > 0 then
  local lacking = math.min(made, 64, parked - redis.call('LLEN', p .. 'wake'))
  if lacking > 0 then
    local hints = {}
    for i = 1, lacking do hints[i] = '1' end
    if redis.call('LPUSH', p .. 'wake', unpack(hints)) > 64 then redis.call('LTRIM', p .. 'wake', 0, 63) end
  end
end
-- [end]
return 1
