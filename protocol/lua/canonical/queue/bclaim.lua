#!lua flags=allow-oom
-- bclaim: leases the oldest flat jobs, all until the same instant, each with a token of its own. A paused queue answers empty; members
-- without a row, or leased, scheduled or dead by their row and by that set, are dropped and the next ones taken.
-- KEYS[1] pending             KEYS[2] active
-- ARGV[1] row prefix emq:{q}:job:
-- ARGV[2] lease in ms         ARGV[3] most jobs; above 1000 it counts as 1000
-- Replies: [[id, payload or null, token], ...] in mint order; empty array: nothing to claim.
-- Refusals: ERR lease must be a positive number of ms; ERR size must be a positive integer
local pending, active = KEYS[1], KEYS[2]
local lease, size = tonumber(ARGV[2]), tonumber(ARGV[3])
if not lease or not (lease > 0) then return redis.error_reply('ERR lease must be a positive number of ms') end
if not size or not (size >= 1) then return redis.error_reply('ERR size must be a positive integer') end
size = math.min(math.floor(size), 1000)

local p = string.sub(pending, 1, -8)
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
local jobs, leases, dropped = {}, {}, 0
while #jobs < size and dropped < 1000 do
  local popped = redis.call('ZPOPMIN', pending, size - #jobs)
  if #popped == 0 then break end
  for i = 1, #popped, 2 do
    local id = popped[i]
    local row = ARGV[1] .. id
    local fields = redis.call('HMGET', row, 'attempts', 'payload', 'state', 'group')
    local state, g = fields[3], fields[4]
    local exists = fields[1] or fields[2] or state
    local misplaced = false
    if state ~= 'pending' then
      -- [elsewhere]
      -- Expects p, id, state and g; sets misplaced: the job is in the set that its row's state names, so this
      -- membership is a leftover.
      local home = state == 'active' and 'active' or state == 'scheduled' and 'schedule' or state == 'dead' and 'dead'
          or state == 'pending' and (g and 'g:' .. g .. ':pending' or 'pending')
      misplaced = home and redis.call('ZSCORE', p .. home, id)
      -- [end]
    end
    if exists and not misplaced then
      local token = math.floor(tonumber(fields[1]) or 0) + 1
      redis.call('HSET', row, 'state', 'active', 'attempts', token)
      if g then redis.pcall('HINCRBY', p .. 'gactive', g, 1) end   -- every settle of a row with a group lowers it
      leases[#leases + 1] = now + lease
      leases[#leases + 1] = id
      jobs[#jobs + 1] = {id, fields[2], token}
      if log then log('active', id, token, g) end
    else
      dropped = dropped + 1
    end
  end
end
bites('ZADD', active, leases)
return jobs
