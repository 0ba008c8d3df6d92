#!lua flags=allow-oom
-- obliterate: deletes a paused queue bit by bit: its jobs, lanes, repeats, metrics, limits, at last the pause itself. What stays: dedup
-- keys, flow subkeys, streams, the log for a week, and flow:outbox, whose records belong to parents in other queues. A parent that is held back for a child
-- deleted here goes with it, when it is in this queue; in another it is told as if the child had died with the error `obliterated`.
-- KEYS[1] meta                KEYS[2] base emq:{q}:
-- ARGV[1] `force` to delete jobs in flight too, or empty
-- ARGV[2] most jobs; absent: 1000. Of groups and repeats one call looks at 1000 each.
-- Replies: 0 finished; 1 there may be more: call again.
-- Refusals: EMQSTATE not paused; EMQSTATE active jobs present; ERR budget must be a positive integer
local meta, p = KEYS[1], KEYS[2]
local left = tonumber(ARGV[2] or 1000)
if not left or not (left >= 1) then return redis.error_reply('ERR budget must be a positive integer') end
left = math.floor(left)
if redis.call('HEXISTS', meta, 'paused') == 0 then return redis.error_reply('EMQSTATE not paused') end
if (ARGV[1] or '') == '' and redis.call('ZCARD', p .. 'active') > 0 then
  return redis.error_reply('EMQSTATE active jobs present')
end

-- [bites]
local function bites(command, key, list)
  for first = 1, #list, 1000 do
    redis.call(command, key, unpack(list, first, math.min(first + 999, #list)))
  end
end
-- [end]

local own_queue = string.sub(p, 6, -3)
-- Deletes one job and gives its lane. Held parents are in no set: they are found through their children only, of whom 64
-- generations are followed.
local function forget(id, was_dead)
  local row = p .. 'job:' .. id
  local link = redis.call('HMGET', row, 'parent', 'parent_queue', 'parent_policy', 'group')
  redis.call('DEL', row, row .. ':logs', row .. ':lock')
  local child, parent, parent_queue, policy = id, link[1], link[2], link[3]
  for _ = 1, 64 do
    if not parent then break end
    if parent_queue and parent_queue ~= '' and parent_queue ~= own_queue then
      if not was_dead then
        redis.call('RPUSH', p .. 'flow:outbox', '\0fail\0' .. parent_queue .. '\0' .. parent .. '\0' .. child .. '\0'
          .. (policy == 'id' and 'id' or 'fp') .. '\0obliterated')
      end
      break
    end
    local parent_row = p .. 'job:' .. parent
    local up = redis.call('HMGET', parent_row, 'state', 'parent', 'parent_queue', 'parent_policy')
    if up[1] ~= 'awaiting_children' then break end
    redis.call('DEL', parent_row, parent_row .. ':logs', parent_row .. ':lock')
    child, parent, parent_queue, policy, was_dead = parent, up[2], up[3], up[4], false
  end
  return link[4]
end

local ids = redis.call('ZRANGE', p .. 'active', 0, left - 1)
local groups, slots = {}, {}
for _, id in ipairs(ids) do
  local g = forget(id)
  if g then
    if not slots[g] then groups[#groups + 1] = g end
    slots[g] = (slots[g] or 0) + 1
  end
end
bites('ZREM', p .. 'active', ids)
left = left - #ids
-- A call that ends here leaves counts and ring true for the jobs that are left.
for _, g in ipairs(groups) do
  local freed = slots[g]
  -- [free_slots]
  -- Expects p, g and freed: the lane's jobs in flight fall by that many; a count at zero, or one that is no number, is dropped.
  local act = redis.pcall('HINCRBY', p .. 'gactive', g, -freed)
  if type(act) ~= 'number' or act <= 0 then
    redis.call('HDEL', p .. 'gactive', g)
    act = 0
  end
  -- [end]
  local waiting = redis.call('ZCARD', p .. 'g:' .. g .. ':pending') > 0
  if waiting then
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
if left <= 0 then return 1 end

for _, set in ipairs({'pending', 'schedule', 'dead'}) do
  ids = redis.call('ZRANGE', p .. set, 0, left - 1)
  for _, id in ipairs(ids) do forget(id, set == 'dead') end
  bites('ZREM', p .. set, ids)
  left = left - #ids
  if left <= 0 then return 1 end
end

-- Every lane is named by one of these: on the ring, paused, full, or with a setting.
local function sample(key)
  if key == 'ring' then return redis.call('LRANGE', p .. key, 0, 999), redis.call('LLEN', p .. key) end
  if key == 'paused' then return redis.call('SRANDMEMBER', p .. key, 1000), redis.call('SCARD', p .. key) end
  return redis.call('HRANDFIELD', p .. key, 1000), redis.call('HLEN', p .. key)
end
for _, key in ipairs({'ring', 'paused', 'gactive', 'glimit', 'gweight'}) do
  local some, size = sample(key)
  for i, g in ipairs(some) do
    local lane = p .. 'g:' .. g .. ':pending'
    ids = redis.call('ZRANGE', lane, 0, left - 1)
    for _, id in ipairs(ids) do forget(id) end
    bites('ZREM', lane, ids)
    left = left - #ids
    if left <= 0 then
      if key == 'ring' then redis.call('LTRIM', p .. key, redis.call('EXISTS', lane) == 1 and i - 1 or i, -1) end
      return 1
    end
  end
  if key == 'ring' then redis.call('LTRIM', p .. key, #some, -1) end   -- their lanes are empty
  if size > #some then   -- too many for one call: these are done with
    if key ~= 'ring' then bites(key == 'paused' and 'SREM' or 'HDEL', p .. key, some) end
    return 1
  end
end

local names = redis.call('ZRANGE', p .. 'repeat', 0, 999)
for _, name in ipairs(names) do redis.call('DEL', p .. 'repeat:' .. name) end
if redis.call('ZCARD', p .. 'repeat') > #names then
  bites('ZREM', p .. 'repeat', names)
  return 1
end
redis.call('DEL', p .. 'metrics:completed', p .. 'metrics:completed:data', p .. 'metrics:failed', p .. 'metrics:failed:data',
  p .. 'metrics:repaired', p .. 'gactive', p .. 'glimit', p .. 'gweight', p .. 'ring', p .. 'wake', p .. 'paused',
  p .. 'repeat', p .. 'limiter', meta)
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
if log then
  -- What the log has outlives the queue by a week; what is written there after this call is of a new queue, whose log is off.
  log('obliterated')
  redis.pcall('PEXPIRE', p .. 'log', 604800000)
  redis.call('DEL', p .. 'logging')
end
return 0
