#!lua flags=allow-oom
-- flow_death_deliver (extension): flow_fail_deliver that says whether the parent has died of it. The state afterwards is that of
-- flow_fail_deliver; beyond it, a parent that dies loses the mark `cancel`.
-- KEYS[1] the parent's :dependencies    KEYS[2] :failed    KEYS[3] :unsuccessful    KEYS[4] row of the parent
-- ARGV[1] child id            ARGV[2] error          ARGV[3] policy: `fp`; anything else is id
-- ARGV[4] base emq:{q}: of the parent's queue        ARGV[5] parent id
-- Replies: 2 the parent has died of this record; 1 it has not: it lives, was dead before, or is gone.
local failed, unsuccessful, parent_row = KEYS[2], KEYS[3], KEYS[4]
local id, reason, policy, p, parent = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local own_queue = string.sub(p, 6, -3)
local made, reply = 0, 1

local up = redis.call('HMGET', parent_row, 'state', 'parent', 'parent_queue', 'parent_policy', 'group', 'keep', 'cancel')
local parent_state = up[1]
if not parent_state or redis.call('HEXISTS', parent_row .. ':processed', id) == 1 then return 1 end
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
if policy == 'fp' then
  if redis.call('HSETNX', failed, id, reason) == 1 then
    -- [parent_dies]
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
    -- [end]
    if parent_state ~= 'dead' then
      if up[7] then redis.call('HDEL', parent_row, 'cancel') end
      reply = 2
    end
  end
elseif redis.call('HSETNX', unsuccessful, id, reason) == 1 then
  -- [release_parent]
  -- Expects p, parent, parent_row, parent_state, made and log. One child less to wait for; the last one releases a
  -- parent that still waits.
  local left = redis.pcall('DECR', parent_row .. ':dependencies')
  if type(left) == 'number' and left <= 0 and parent_state == 'awaiting_children' then
    redis.call('HSET', parent_row, 'state', 'pending')
    redis.call('ZADD', p .. 'pending', 0, parent)
    made = made + 1
    if log then log('released', parent, redis.call('HGET', parent_row, 'attempts')) end
  end
  -- [end]
end
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
return reply
