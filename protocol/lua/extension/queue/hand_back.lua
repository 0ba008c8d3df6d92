#!lua flags=allow-oom
-- hand_back (extension): a stopping worker gives a job back that it has claimed and not run to its end: claimable again at once,
-- in pending or in its lane. Counted in the row (field handbacks), so that retry does not hold it against max attempts.
-- KEYS[1] active              KEYS[2] row of the job
-- ARGV[1] job id              ARGV[2] token          ARGV[3] base emq:{q}:
-- Replies: 1 given back; 0 the row is gone, or the job is not in active: nothing is changed.
-- With meta.concurrency, workers noted in parked are told of the lane's slot in the queue.
-- Refusals: EMQSTALE hand_back token mismatch
local active, row = KEYS[1], KEYS[2]
local id, p = ARGV[1], ARGV[3]

local fields = redis.call('HMGET', row, 'attempts', 'group', 'handbacks')
if not fields[1] then return 0 end
if fields[1] ~= ARGV[2] then return redis.error_reply('EMQSTALE hand_back token mismatch') end
if redis.call('ZREM', active, id) == 0 then return 0 end
redis.call('HSET', row, 'state', 'pending', 'handbacks', math.floor(tonumber(fields[3]) or 0) + 1)
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
local g = fields[2]
if log then log('handed_back', id, ARGV[2], g) end
if g then
  local lane = p .. 'g:' .. g .. ':pending'
  local freed, waiting = 1, redis.call('ZCARD', lane) > 0
  redis.call('ZADD', lane, 0, id)
  -- [free_slots]
  -- Expects p, g and freed: the lane's jobs in flight fall by that many; a count at zero, or one that is no number, is dropped.
  local act = redis.pcall('HINCRBY', p .. 'gactive', g, -freed)
  if type(act) ~= 'number' or act <= 0 then
    redis.call('HDEL', p .. 'gactive', g)
    act = 0
  end
  -- [end]
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
  local parked = redis.call('ZCARD', p .. 'parked')
  local gates = parked > 0 and redis.call('HMGET', p .. 'meta', 'paused', 'concurrency') or {}
  local ceiling = not gates[1] and tonumber(gates[2]) or 0
  if ceiling > 0 then
    local before = redis.call('ZCARD', active) + 1
    -- [ceiling_wake]
    -- Expects p, parked (more than 0), ceiling (jobs in active at most, more than 0) and before (how many there were). Workers that wait
    -- for a slot are told of those that this call has freed and left: a hint each as long as there is work, no more than they lack.
    local members = redis.call('ZCARD', p .. 'active')
    local open = math.min(before - members, math.ceil(ceiling - members))
    if open > 0 and redis.call('LLEN', p .. 'ring') == 0 then open = math.min(open, redis.call('ZCARD', p .. 'pending')) end
    if open > 0 then
      local lacking = math.min(open, 64, parked - redis.call('LLEN', p .. 'wake'))
      if lacking > 0 then
        local hints = {}
        for i = 1, lacking do hints[i] = '1' end
        if redis.call('LPUSH', p .. 'wake', unpack(hints)) > 64 then redis.call('LTRIM', p .. 'wake', 0, 63) end
      end
    end
    -- [end]
  end
  return 1
end
redis.call('ZADD', p .. 'pending', 0, id)
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
