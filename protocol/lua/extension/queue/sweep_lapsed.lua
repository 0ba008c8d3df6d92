#!lua flags=allow-oom
-- sweep_lapsed (extension): sweep_stalled that says whom it has let die. The state afterwards is that of sweep_stalled; beyond it, who dies
-- loses the mark `cancel`, for a runtime that reprocesses the job leaves it, and the next claim would end it.
-- KEYS[1] active              KEYS[2] pending        KEYS[3] dead
-- ARGV[1] base emq:{q}:       ARGV[2] max_stalled    ARGV[3] limit; absent: 1000
-- Replies: [[recovered ids], [dead ids], [flow parents of this queue that died of those, once each]]. A parent may be among the
--   recovered too: it was put back before it died.
-- Refusals: ERR max_stalled must be a number; ERR limit must be a positive integer
local active, pending, dead = KEYS[1], KEYS[2], KEYS[3]
local p = ARGV[1]
local max_stalled = tonumber(ARGV[2])
local limit = tonumber(ARGV[3] or 1000)
if not max_stalled then return redis.error_reply('ERR max_stalled must be a number') end
if not limit or not (limit >= 1) then return redis.error_reply('ERR limit must be a positive integer') end

-- [clock]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- [end]
local lapsed = redis.call('ZRANGEBYSCORE', active, '-inf', now, 'LIMIT', 0, limit)
if #lapsed == 0 then return {{}, {}, {}} end

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
local made = 0
local before = redis.call('ZCARD', active)
local fallen = {}
local function tell_parent(id, parent, parent_queue, policy)
  local reason = 'stalled'
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
  if after[1] == 'dead' then
    if after[2] then redis.call('HDEL', p .. 'job:' .. parent, 'cancel') end
    fallen[#fallen + 1] = parent
  end
end

bites('ZREM', active, lapsed)
local flat, lanes, slots, groups = {}, {}, {}, {}
local recovered, died, links = {}, {}, {}
for _, id in ipairs(lapsed) do
  local row = p .. 'job:' .. id
  local fields = redis.call('HMGET', row, 'state', 'group', 'attempts', 'payload', 'stalled', 'parent', 'parent_queue',
    'parent_policy', 'keep', 'cancel')
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
    local stalled = math.floor(tonumber(fields[5]) or 0) + 1
    if g then
      if not lanes[g] then
        lanes[g], slots[g] = {}, 0
        groups[#groups + 1] = g
      end
      slots[g] = slots[g] + 1
    end
    if stalled >= max_stalled then
      redis.call('HSET', row, 'state', 'dead', 'last_error', 'stalled', 'stalled', stalled)
      if fields[10] then redis.call('HDEL', row, 'cancel') end
      redis.call('ZADD', dead, 0, id)
      died[#died + 1] = id
      if log then log('dead', id, fields[3], g, 'error', 'stalled') end
      links[#died] = fields
    else
      redis.call('HSET', row, 'state', 'pending', 'stalled', stalled)
      recovered[#recovered + 1] = id
      if log then log('stalled', id, fields[3], g) end
      local target = g and lanes[g] or flat
      target[#target + 1] = 0
      target[#target + 1] = id
    end
  end
end

bites('ZADD', pending, flat)
for _, g in ipairs(groups) do
  local lane = p .. 'g:' .. g .. ':pending'
  local waiting, freed = redis.call('ZCARD', lane) > 0, slots[g]
  bites('ZADD', lane, lanes[g])
  -- [free_slots]
  -- Expects p, g and freed: the lane's jobs in flight fall by that many; a count at zero, or one that is no number, is dropped.
  local act = redis.pcall('HINCRBY', p .. 'gactive', g, -freed)
  if type(act) ~= 'number' or act <= 0 then
    redis.call('HDEL', p .. 'gactive', g)
    act = 0
  end
  -- [end]
  if waiting or #lanes[g] > 0 then
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
end
if #died > 0 then redis.pcall('HINCRBY', p .. 'metrics:failed', 'count', #died) end
-- Only now, when all have their new places: the parent may be one of them.
for i, id in ipairs(died) do
  local link = links[i]
  if link[6] then tell_parent(id, link[6], link[7], link[8] == 'id' and 'id' or 'fp') end
  local keep, reason = link[9], 'stalled'
  -- [keep_death]
  -- Expects p, id, keep (the row's field) and reason. The job is dead, and no settle has told: what became of a job that asked for it
  -- is kept for so long, and its id is published for who waits.
  local kept_for = tonumber(keep)
  if kept_for and kept_for >= 1 then
    redis.call('SET', p .. 'result:' .. id, 'dead\0' .. reason, 'PX', math.floor(math.min(kept_for, 1000000000000)))
    redis.pcall('PUBLISH', p .. 'ended', id)
  end
  -- [end]
end
made = made + #flat / 2
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
local parked = redis.call('ZCARD', p .. 'parked')
local gates = parked > 0 and redis.pcall('HMGET', p .. 'meta', 'paused', 'concurrency') or {}
local ceiling = not gates[1] and tonumber(gates[2]) or 0
if ceiling > 0 then
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
return {recovered, died, fallen}
