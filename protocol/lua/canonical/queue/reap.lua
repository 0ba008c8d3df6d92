#!lua flags=allow-oom
-- reap: gives jobs whose lease has lapsed back to be claimed again, uncounted: to pending, or to the lane of a grouped job.
-- KEYS[1] active              KEYS[2] pending
-- ARGV[1] base emq:{q}:       ARGV[2] limit; absent: 100
-- Replies: how many were given back. Members without a row, or waiting, scheduled or dead by their row and that set, are dropped
--   and not counted.
-- Refusals: ERR limit must be a positive integer
local active, pending = KEYS[1], KEYS[2]
local p = ARGV[1]
local limit = tonumber(ARGV[2] or 100)
if not limit or not (limit >= 1) then return redis.error_reply('ERR limit must be a positive integer') end

-- [clock]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- [end]
local lapsed = redis.call('ZRANGEBYSCORE', active, '-inf', now, 'LIMIT', 0, limit)
if #lapsed == 0 then return 0 end

-- [bites]
local function bites(command, key, list)
  for first = 1, #list, 1000 do
    redis.call(command, key, unpack(list, first, math.min(first + 999, #list)))
  end
end
-- [end]

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
local flat, lanes, groups, returned = {}, {}, {}, 0
for _, id in ipairs(lapsed) do
  local row = p .. 'job:' .. id
  local fields = redis.call('HMGET', row, 'state', 'group', 'attempts', 'payload')
  local state, g = fields[1], fields[2]
  local exists = state or fields[3] or fields[4]
  local misplaced = false
  if state ~= 'active' then
    -- [elsewhere]
    -- Expects p, id, state and g; sets misplaced: the job is in the set that its row's state names, so this
    -- membership is a leftover.
    local home = state == 'active' and 'active' or state == 'scheduled' and 'schedule' or state == 'dead' and 'dead'
        or state == 'pending' and (g and 'g:' .. g .. ':pending' or 'pending')
    misplaced = home and redis.call('ZSCORE', p .. home, id)
    -- [end]
  end
  if exists and not misplaced then
    redis.call('HSET', row, 'state', 'pending')
    returned = returned + 1
    if log then log('stalled', id, fields[3], g) end
    local target = flat
    if g then
      if not lanes[g] then
        lanes[g] = {}
        groups[#groups + 1] = g
      end
      target = lanes[g]
    end
    target[#target + 1] = 0
    target[#target + 1] = id
  end
end

bites('ZREM', active, lapsed)
bites('ZADD', pending, flat)
for _, g in ipairs(groups) do
  local lane = p .. 'g:' .. g .. ':pending'
  local waiting, freed = redis.call('ZCARD', lane) > 0, #lanes[g] / 2
  bites('ZADD', lane, lanes[g])
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
end
local made = #flat / 2
if made > 0 then
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
end
return returned
