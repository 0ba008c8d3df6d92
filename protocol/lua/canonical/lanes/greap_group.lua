#!lua flags=allow-oom
-- greap_group: gives jobs of one group whose lease has lapsed back to their lane, uncounted. The leases of other groups stay for reap,
-- and do not count against the limit.
-- KEYS[1] active              KEYS[2] base emq:{q}:
-- ARGV[1] group               ARGV[2] limit; absent: 100
-- ARGV[3] where among the lapsed leases to begin; absent: at the oldest. One call looks at 5000 of them.
-- Replies: how many were given back; with ARGV[3]: [that, where to go on, -1 when all were seen]. Members of the group that wait, are
--   scheduled or dead by their row and that set are dropped and not counted.
-- Refusals: ERR limit must be a positive integer; ERR begin must be 0 or more
local active, p = KEYS[1], KEYS[2]
local g = ARGV[1]
local limit, from = tonumber(ARGV[2] or 100), tonumber(ARGV[3] or 0)
if not limit or not (limit >= 1) then return redis.error_reply('ERR limit must be a positive integer') end
if not from or not (from >= 0) then return redis.error_reply('ERR begin must be 0 or more') end
limit = math.floor(limit)

-- [bites]
local function bites(command, key, list)
  for first = 1, #list, 1000 do
    redis.call(command, key, unpack(list, first, math.min(first + 999, #list)))
  end
end
-- [end]

-- [clock]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
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
local lane = p .. 'g:' .. g .. ':pending'
local gone, back, seen, ended = {}, {}, 0, false
for page = 0, 4 do
  local lapsed = redis.call('ZRANGEBYSCORE', active, '-inf', now, 'LIMIT', from + page * 1000, 1000)
  for _, id in ipairs(lapsed) do
    local row = p .. 'job:' .. id
    local fields = redis.call('HMGET', row, 'group', 'state')
    seen = seen + 1
    if fields[1] == g then
      local state, misplaced = fields[2], false
      if state ~= 'active' then
        -- [elsewhere]
        -- Expects p, id, state and g; sets misplaced: the job is in the set that its row's state names, so this
        -- membership is a leftover.
        local home = state == 'active' and 'active' or state == 'scheduled' and 'schedule' or state == 'dead' and 'dead'
            or state == 'pending' and (g and 'g:' .. g .. ':pending' or 'pending')
        misplaced = home and redis.call('ZSCORE', p .. home, id)
        -- [end]
      end
      gone[#gone + 1] = id
      if not misplaced then
        redis.call('HSET', row, 'state', 'pending')
        if log then log('stalled', id, redis.call('HGET', row, 'attempts'), g) end
        back[#back + 1] = 0
        back[#back + 1] = id
        if #back / 2 == limit then break end
      end
    end
  end
  if #back / 2 == limit then break end
  if #lapsed < 1000 then
    ended = true
    break
  end
end

bites('ZREM', active, gone)
local freed = #back / 2
if freed > 0 then
  local waiting = redis.call('ZCARD', lane) > 0
  bites('ZADD', lane, back)
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
if not ARGV[3] then return freed end
return {freed, ended and -1 or from + seen - #gone}
