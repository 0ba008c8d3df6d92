#!lua flags=allow-oom
-- delay: puts a claimed job back to schedule without calling the run a failure. The lane of a grouped job gets its slot back.
-- KEYS[1] row of the job      KEYS[2] active         KEYS[3] schedule
-- ARGV[1] job id              ARGV[2] token
-- ARGV[3] `in`: the value is a delay by the server's clock; anything else (`at`): it is Unix ms
-- ARGV[4] value in ms
-- ARGV[5] optional, `count`: the row field delays counts it, so that no maximum of attempts is held against this claim; not when its
--   lease has lapsed, which was counted
-- Replies: 1 scheduled, also when this token has already put it there (nothing is changed then).
-- Refusals: EMQKIND job id must be JOB-namespaced; EMQSTALE job gone; EMQSTALE delay token mismatch (also for a dead job);
--   ERR value of delay must be a number
local row, schedule = KEYS[1], KEYS[3]
local id, token = ARGV[1], ARGV[2]
local p = string.sub(KEYS[2], 1, -7)

if string.sub(id, 1, 3) ~= 'JOB' then return redis.error_reply('EMQKIND job id must be JOB-namespaced') end
local due = tonumber(ARGV[4])
if not due or due ~= due then return redis.error_reply('ERR value of delay must be a number') end
local fields = redis.call('HMGET', row, 'attempts', 'state', 'group', 'delays')
if not fields[1] then return redis.error_reply('EMQSTALE job gone') end
if fields[1] ~= token or token == '0' then return redis.error_reply('EMQSTALE delay token mismatch') end
local state, g = fields[2], fields[3]

-- [withdraw]
-- Expects p, id and g. Takes the job out of active, or, when its lease has lapsed, out of where it waits for the next claim.
local active = redis.call('ZREM', p .. 'active', id) == 1
local withdrawn = active
if g then
  if active then
    local freed = 1
    -- Expects p, g and freed: the lane's jobs in flight fall by that many; a count at zero, or one that is no number, is dropped.
    local act = redis.pcall('HINCRBY', p .. 'gactive', g, -freed)
    if type(act) ~= 'number' or act <= 0 then
      redis.call('HDEL', p .. 'gactive', g)
      act = 0
    end
    local waiting = redis.call('ZCARD', p .. 'g:' .. g .. ':pending') > 0
    if waiting then
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
  else
    withdrawn = redis.call('ZREM', p .. 'g:' .. g .. ':pending', id) == 1
    if withdrawn and redis.call('ZCARD', p .. 'g:' .. g .. ':pending') == 0 then
      redis.call('LREM', p .. 'ring', 0, g)
    end
  end
end
if not withdrawn then withdrawn = redis.call('ZREM', p .. 'pending', id) == 1 end
-- [end]

if not withdrawn and state == 'dead' then return redis.error_reply('EMQSTALE delay token mismatch') end
if not withdrawn and state == 'scheduled' then return 1 end
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

if ARGV[3] == 'in' then
  -- [clock]
  local clock = redis.call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  -- [end]
  due = now + due
end
redis.call('HSET', row, 'state', 'scheduled')
if ARGV[5] == 'count' and active then redis.call('HSET', row, 'delays', math.floor(tonumber(fields[4]) or 0) + 1) end
redis.call('ZADD', schedule, due, id)
if log then log('delayed', id, token, g, 'due', due) end
-- [due_wake]
-- Expects p and id, just put into schedule: a parked worker sleeps until the earliest due time, so an earlier one wakes it.
local parked = redis.call('ZCARD', p .. 'parked')
if parked > 0 and redis.call('ZRANGE', p .. 'schedule', 0, 0)[1] == id
    and redis.call('LLEN', p .. 'wake') < parked then
  if redis.call('LPUSH', p .. 'wake', '1') > 64 then redis.call('LTRIM', p .. 'wake', 0, 63) end
end
-- [end]
return 1
