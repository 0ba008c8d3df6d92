-- schedule: admits one flat job that becomes claimable by a promote at its due time.
-- KEYS[1] row of the job      KEYS[2] schedule
-- ARGV[1] job id              ARGV[2] payload
-- ARGV[3] `in`: the value is a delay by the server's clock; anything else (hosts send `at`): it is Unix ms
-- ARGV[4] value in ms
-- Replies: 1 admitted; 0 the row exists: nothing is changed, but that a job which was in no set is put back where its state says,
--   and counted in metrics:repaired.
-- Refusals: EMQKIND job id must be JOB-namespaced; ERR value of schedule must be a number
local row, schedule = KEYS[1], KEYS[2]
local id = ARGV[1]
local p = string.sub(schedule, 1, -9)

if string.sub(id, 1, 3) ~= 'JOB' then return redis.error_reply('EMQKIND job id must be JOB-namespaced') end
local due = tonumber(ARGV[4])
if not due or due ~= due then return redis.error_reply('ERR value of schedule must be a number') end
local known = redis.call('EXISTS', row, p .. 'logging')   -- the log is off as a rule: one look for both
local logging = known > 0 and redis.call('EXISTS', p .. 'logging') == 1
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
if known > (logging and 1 or 0) then
  -- [put_back]
  -- Expects p, log, row and id of a row that exists; sets found: the job is in a set, or waits for its children. One that was in no
  -- set is put back where its state says: what is scheduled is due at once, for its time is lost; what is active has a
  -- lapsed lease, so that the sweep counts it. A row without a state that has a set stays as it is.
  local fields = redis.call('HMGET', row, 'state', 'group')
  local state, g = fields[1], fields[2]
  local home = state == 'pending' and (g and 'g:' .. g .. ':pending' or 'pending') or state == 'active' and 'active'
      or state == 'scheduled' and 'schedule' or state == 'dead' and 'dead'
  local found = state == 'awaiting_children' or home and redis.call('ZSCORE', p .. home, id)
  if not found then
    for _, set in ipairs({'pending', 'active', 'schedule', 'dead', g and 'g:' .. g .. ':pending' or nil}) do
      found = found or redis.call('ZSCORE', p .. set, id)
    end
    if home and not found then
      found = true
      local made, act, freed, waiting = 1, nil, 0, redis.call('ZCARD', p .. home) > 0
      redis.call('ZADD', p .. home, 0, id)
      redis.call('HINCRBY', p .. 'metrics:repaired', 'count', 1)
      if log then log('put_back', id, redis.call('HGET', row, 'attempts'), g, 'state', state) end
      if home == 'pending' then
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
      elseif home == 'schedule' then
        -- Expects p and id, just put into schedule: a parked worker sleeps until the earliest due time, so an earlier one wakes it.
        local parked = redis.call('ZCARD', p .. 'parked')
        if parked > 0 and redis.call('ZRANGE', p .. 'schedule', 0, 0)[1] == id
            and redis.call('LLEN', p .. 'wake') < parked then
          if redis.call('LPUSH', p .. 'wake', '1') > 64 then redis.call('LTRIM', p .. 'wake', 0, 63) end
        end
      elseif state == 'pending' then
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
      end
    end
  end
  -- [end]
  return 0
end
if ARGV[3] == 'in' then
  -- [clock]
  local clock = redis.call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  -- [end]
  due = now + due
end
redis.call('ZADD', schedule, due, id)   -- first: a key of another type refuses with nothing written
redis.call('HSET', row, 'state', 'scheduled', 'attempts', '0', 'payload', ARGV[2])
if log then log('added', id, '0', nil, 'due', due) end

-- [due_wake]
-- Expects p and id, just put into schedule: a parked worker sleeps until the earliest due time, so an earlier one wakes it.
local parked = redis.call('ZCARD', p .. 'parked')
if parked > 0 and redis.call('ZRANGE', p .. 'schedule', 0, 0)[1] == id
    and redis.call('LLEN', p .. 'wake') < parked then
  if redis.call('LPUSH', p .. 'wake', '1') > 64 then redis.call('LTRIM', p .. 'wake', 0, 63) end
end
-- [end]
return 1
