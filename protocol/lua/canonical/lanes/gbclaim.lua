#!lua flags=allow-oom
-- gbclaim: leases the oldest jobs of the lane at the head of the ring, as many as there are and its ceiling leaves room for; its weight
-- is not looked at. A paused queue answers empty.
-- KEYS[1] ring                KEYS[2] active
-- ARGV[1] base emq:{q}:       ARGV[2] lease in ms    ARGV[3] most jobs; absent, or above it: 1000
-- Replies: [[id, payload or null, token, group], ...] in mint order, all of one group; empty array: nothing to claim.
-- Refusals: ERR lease must be a positive number of ms; ERR limit must be a positive integer
local ring, active = KEYS[1], KEYS[2]
local p = ARGV[1]
local lease, most = tonumber(ARGV[2]), tonumber(ARGV[3] or 1000)
if not lease or not (lease > 0) then return redis.error_reply('ERR lease must be a positive number of ms') end
if not most or not (most >= 1) then return redis.error_reply('ERR limit must be a positive integer') end
most = math.min(math.floor(most), 1000)
local gate = redis.call('HMGET', p .. 'meta', 'paused', 'log_claims')
if gate[1] then return {} end
local logging = gate[2] and redis.call('EXISTS', p .. 'logging') == 1
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
local weighted = false
-- [lane_turn]
-- Expects p, log, ring, active, lease, most and weighted; sets jobs: the members served, all of one lane, leased until the same
-- instant. The head of the ring moves to the tail; lanes that are empty or full leave the ring on the way to one that
-- has a job, members without a row are dropped. All numbers are read before the first member is taken, and what is
-- counted as in flight is what was served.
local jobs, leases, bound = {}, {}, 1000   -- stale heads and dropped members, together
while #jobs == 0 and bound > 0 do
  local g = redis.call('LMOVE', ring, ring, 'LEFT', 'RIGHT')
  if not g then break end
  bound = bound - 1
  local lane = p .. 'g:' .. g .. ':pending'
  local wanted = most
  if weighted then
    local weight = tonumber(redis.call('HGET', p .. 'gweight', g))
    wanted = weight and weight >= 1 and math.min(math.floor(weight), most) or 1
  end
  local ceiling = tonumber(redis.call('HGET', p .. 'glimit', g))
  if ceiling then
    wanted = math.min(wanted, math.ceil(ceiling - (tonumber(redis.call('HGET', p .. 'gactive', g)) or 0)))
  end
  while #jobs < wanted and bound > 0 do
    local popped = redis.call('ZPOPMIN', lane, wanted - #jobs)
    if #popped == 0 then break end
    for i = 1, #popped, 2 do
      local id = popped[i]
      local row = p .. 'job:' .. id
      local fields = redis.call('HMGET', row, 'attempts', 'payload', 'state')
      local state = fields[3]
      local exists = fields[1] or fields[2] or state
      local misplaced = false
      if state ~= 'pending' then
        -- Expects p, id, state and g; sets misplaced: the job is in the set that its row's state names, so this
        -- membership is a leftover.
        local home = state == 'active' and 'active' or state == 'scheduled' and 'schedule' or state == 'dead' and 'dead'
            or state == 'pending' and (g and 'g:' .. g .. ':pending' or 'pending')
        misplaced = home and redis.call('ZSCORE', p .. home, id)
      end
      if exists and not misplaced then
        local token = math.floor(tonumber(fields[1]) or 0) + 1
        redis.call('HSET', row, 'state', 'active', 'attempts', token)
        leases[#leases + 1] = now + lease
        leases[#leases + 1] = id
        jobs[#jobs + 1] = {id, fields[2], token, g}
        if log then log('active', id, token, g) end
      else
        bound = bound - 1
      end
    end
  end
  if #jobs > 0 then
    local act = redis.pcall('HINCRBY', p .. 'gactive', g, #jobs)
    if type(act) ~= 'number' then
      act = #jobs
      redis.call('HSET', p .. 'gactive', g, act)
    end
    if ceiling and act >= ceiling or redis.call('ZCARD', lane) == 0 then
      redis.call('LREM', ring, -1, g)   -- it has just moved to the tail
    end
  elseif wanted <= 0 or redis.call('ZCARD', lane) == 0 then
    redis.call('LREM', ring, -1, g)
  end
end
bites('ZADD', active, leases)
-- [end]
return jobs
