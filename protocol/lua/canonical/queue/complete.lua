#!lua flags=allow-oom
-- complete: ends a job that its token holder has done: the row goes, metrics:completed rises, a flow parent is told. Accepted
-- also after the lease has lapsed, as long as nobody has claimed the job again.
-- KEYS[1] active              KEYS[2] row of the job
-- KEYS[3..] the parent's :dependencies, :processed and row, or the queue's flow:outbox: may be passed, are derived
-- ARGV[1] job id              ARGV[2] token          ARGV[3] base emq:{q}:
-- ARGV[4] parent id; absent or empty: the link is read from the row
-- ARGV[5] result; absent: the job's own id
-- ARGV[6] `xq` with ARGV[7] the parent's queue, when that is another one and ARGV[4] is given
-- Replies: 1 completed; 0 the row is gone.
-- Refusals: EMQSTALE complete token mismatch (also for token 0: nobody has claimed the job)
-- The parent is told when this call took the job out of active, its waiting set or schedule; out of dead only a parent of the
-- same queue, whose records show what was counted. A job that was in no set is deleted without counting.
local row = KEYS[2]
local id, token, p = ARGV[1], ARGV[2], ARGV[3]

local fields = redis.call('HMGET', row, 'attempts', 'group', 'parent', 'parent_queue')
if not fields[1] then return 0 end
if fields[1] ~= token or token == '0' then return redis.error_reply('EMQSTALE complete token mismatch') end
local g, parent, parent_queue = fields[2], fields[3], fields[4]
if ARGV[4] and ARGV[4] ~= '' then
  parent, parent_queue = ARGV[4], ARGV[6] == 'xq' and ARGV[7]
end
local result = ARGV[5] or id
local made = 0
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

local was_dead = false
if not withdrawn then
  withdrawn = redis.call('ZREM', p .. 'schedule', id) == 1
  was_dead = redis.call('ZREM', p .. 'dead', id) == 1
end
if parent and (withdrawn or was_dead) then
  if parent_queue and parent_queue ~= '' and p ~= 'emq:{' .. parent_queue .. '}:' then
    if withdrawn then
      redis.call('RPUSH', p .. 'flow:outbox', parent_queue .. '\0' .. parent .. '\0' .. id .. '\0' .. result)
    end
  else
    -- [parent_done]
    -- Expects p, id, parent, result and log. The child is done: recorded and counted once, never for a parent that is gone. A child that
    -- died under policy id and came back was counted at its death: only its record moves.
    local parent_row = p .. 'job:' .. parent
    local parent_state = redis.call('HGET', parent_row, 'state')
    if parent_state then
      local counted = redis.call('HDEL', parent_row .. ':unsuccessful', id) == 1
      if redis.call('HSET', parent_row .. ':processed', id, result) == 1 and not counted then
        -- Expects p, parent, parent_row, parent_state, made and log. One child less to wait for; the last one releases a
        -- parent that still waits.
        local left = redis.pcall('DECR', parent_row .. ':dependencies')
        if type(left) == 'number' and left <= 0 and parent_state == 'awaiting_children' then
          redis.call('HSET', parent_row, 'state', 'pending')
          redis.call('ZADD', p .. 'pending', 0, parent)
          made = made + 1
          if log then log('released', parent, redis.call('HGET', parent_row, 'attempts')) end
        end
      end
    end
    -- [end]
  end
end
redis.call('DEL', row, row .. ':logs', row .. ':lock')
if log then log('completed', id, token, g) end
redis.pcall('HINCRBY', p .. 'metrics:completed', 'count', 1)

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
return 1
