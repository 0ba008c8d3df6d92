#!lua flags=allow-oom
-- cancel (extension): a job shall end. One that waits, in pending, its lane or schedule, is dead at once with the error `cancelled`; its
-- flow parent is told as of any death, the event `cancelled` is published (and `failed` and `dead` of a parent of this queue that dies of it), and with the row field keep its end is kept. One that is active gets the mark `cancel` in its row, and
-- its id is published on the queue's channel `cancel`: whoever holds it ends it.
-- KEYS[1] row of the job      KEYS[2] pending        KEYS[3] active      KEYS[4] schedule        KEYS[5] dead
-- ARGV[1] job id
-- Replies: `cancelled` it is dead, by this call or an earlier one; `requested` it is active, and marked. Nothing is changed when it is
-- `awaiting_children`, `dead` of another cause, `unknown` (a row in no set) or `absent`.
local row, pending, active, schedule, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id = ARGV[1]
local p = string.sub(pending, 1, -8)

local fields = redis.call('HMGET', row, 'state', 'group', 'last_error', 'cancel', 'parent', 'parent_queue', 'parent_policy',
  'attempts', 'keep')
local state, g = fields[1], fields[2]
if not state then return 'absent' end
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
if redis.call('ZSCORE', active, id) then
  redis.call('HSET', row, 'cancel', '1')
  if log and not fields[4] then log('cancel_requested', id, fields[8], g) end
  redis.pcall('PUBLISH', p .. 'cancel', id)
  return 'requested'
end
if redis.call('ZSCORE', dead, id) then return fields[3] == 'cancelled' and 'cancelled' or 'dead' end
if state == 'awaiting_children' then return state end

local left = redis.call('ZREM', pending, id) + redis.call('ZREM', schedule, id)
if g then
  local lane = p .. 'g:' .. g .. ':pending'
  if redis.call('ZREM', lane, id) == 1 then
    left = left + 1
    if redis.call('ZCARD', lane) == 0 then redis.call('LREM', p .. 'ring', 0, g) end
  end
end
if left == 0 then return 'unknown' end
redis.call('HSET', row, 'state', 'dead', 'last_error', 'cancelled')
if fields[4] then redis.call('HDEL', row, 'cancel') end
redis.call('ZADD', dead, 0, id)
if log then log('cancelled', id, fields[8], g, 'error', 'cancelled') end
redis.pcall('HINCRBY', p .. 'metrics:failed', 'count', 1)

local parent, parent_queue = fields[5], fields[6]
local fallen = false   -- a parent of this queue that dies of it
if parent then
  local policy, reason, made = fields[7] == 'id' and 'id' or 'fp', 'cancelled', 0
  local here = policy == 'fp' and (not parent_queue or parent_queue == '' or p == 'emq:{' .. parent_queue .. '}:')
  local lived = here and (redis.call('HGET', p .. 'job:' .. parent, 'state') or 'dead') ~= 'dead'
  -- [parent_death]
  -- Expects p, id, parent, parent_queue, policy, reason, made and log. The child is dead: its parent dies (fp) or
  -- counts it as done (id). A parent in another queue is told through the outbox; so is the parent of a parent
  -- that this call has moved to dead. A child that was counted as done before changes nothing.
  local own_queue = string.sub(p, 6, -3)
  if parent_queue and parent_queue ~= '' and parent_queue ~= own_queue then
    redis.call('RPUSH', p .. 'flow:outbox', '\0fail\0' .. parent_queue .. '\0' .. parent .. '\0' .. id .. '\0' .. policy
      .. '\0' .. reason)
  else
    local parent_row = p .. 'job:' .. parent
    local up = redis.call('HMGET', parent_row, 'state', 'parent', 'parent_queue', 'parent_policy', 'group', 'keep')
    local parent_state = up[1]
    if parent_state and redis.call('HEXISTS', parent_row .. ':processed', id) == 0 then
      if policy ~= 'id' then
        redis.call('HSET', parent_row .. ':failed', id, reason)
        -- Expects p, id, parent, parent_row, parent_state, up (the parent's row from field 2: parent, parent_queue, parent_policy, group, keep),
        -- own_queue, reason and log. Moves a parent that lives to dead, out of where it is, and tells its own parent through the outbox. The row
        -- of a parent that is gone may be a lane's job by now: then its slot or its place in the lane is given up. No settle names the parent, so
        -- its id is published for who waits for it whether or not its end is kept.
        if parent_state ~= 'dead' then
          redis.call('HSET', parent_row, 'state', 'dead')
          redis.call('ZADD', p .. 'dead', 0, parent)
          local g = up[5]
          if log then log('dead', parent, redis.call('HGET', parent_row, 'attempts'), g, 'error', string.sub(reason, 1, 512)) end
          local left_set = parent_state == 'active' and 'active' or parent_state == 'scheduled' and 'schedule'
              or g and 'g:' .. g .. ':pending' or 'pending'
          local left = redis.call('ZREM', p .. left_set, parent) == 1
          if g and left then
            local waiting = redis.call('ZCARD', p .. 'g:' .. g .. ':pending') > 0
            if left_set == 'active' then
              local freed = 1
              -- Expects p, g and freed: the lane's jobs in flight fall by that many; a count at zero, or one that is no number, is dropped.
              local act = redis.pcall('HINCRBY', p .. 'gactive', g, -freed)
              if type(act) ~= 'number' or act <= 0 then
                redis.call('HDEL', p .. 'gactive', g)
                act = 0
              end
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
            elseif not waiting then
              redis.call('LREM', p .. 'ring', 0, g)
            end
          end
          local kept_for = tonumber(up[6])
          if kept_for and kept_for >= 1 then
            redis.call('SET', p .. 'result:' .. parent, 'dead\0' .. reason, 'PX', math.floor(math.min(kept_for, 1000000000000)))
          end
          redis.pcall('PUBLISH', p .. 'ended', parent)
          if up[2] and up[2] ~= '' then
            local up_queue = up[3] and up[3] ~= '' and up[3] or own_queue
            redis.call('RPUSH', p .. 'flow:outbox', '\0fail\0' .. up_queue .. '\0' .. up[2] .. '\0' .. parent .. '\0'
              .. (up[4] == 'id' and 'id' or 'fp') .. '\0' .. reason)
          end
        end
      elseif redis.call('HSET', parent_row .. ':unsuccessful', id, reason) == 1 then
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
  end
  -- [end]
  local after = lived and redis.call('HMGET', p .. 'job:' .. parent, 'state', 'cancel') or {}
  fallen = after[1] == 'dead'
  if fallen and after[2] then redis.call('HDEL', p .. 'job:' .. parent, 'cancel') end
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
end
local keep, reason = fields[9], 'cancelled'
-- [keep_death]
-- Expects p, id, keep (the row's field) and reason. The job is dead, and no settle has told: what became of a job that asked for it
-- is kept for so long, and its id is published for who waits.
local kept_for = tonumber(keep)
if kept_for and kept_for >= 1 then
  redis.call('SET', p .. 'result:' .. id, 'dead\0' .. reason, 'PX', math.floor(math.min(kept_for, 1000000000000)))
  redis.pcall('PUBLISH', p .. 'ended', id)
end
-- [end]
redis.pcall('PUBLISH', p .. 'events', cjson.encode({event = 'cancelled', job = id}))
if fallen then
  redis.pcall('PUBLISH', p .. 'events', cjson.encode({event = 'failed', job = parent, error = 'cancelled'}))
  redis.pcall('PUBLISH', p .. 'events', cjson.encode({event = 'dead', job = parent}))
end
return 'cancelled'
