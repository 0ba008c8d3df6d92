#!lua flags=allow-oom
-- gclaim: leases the oldest job of the lane at the head of the ring; the head moves to the tail. Lanes that are empty or full are
-- taken off the ring on the way to one that has a job, members without a row are dropped. A paused queue answers empty.
-- KEYS[1] ring                KEYS[2] active
-- ARGV[1] base emq:{q}:       ARGV[2] lease in ms
-- Replies: [id, payload or null, token, group]; empty array: nothing to claim.
-- Refusals: ERR lease must be a positive number of ms
local ring, active = KEYS[1], KEYS[2]
local p = ARGV[1]
local lease = tonumber(ARGV[2])
if not lease or not (lease > 0) then return redis.error_reply('ERR lease must be a positive number of ms') end
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

local bound = 1000   -- stale heads and members without a row, together
while bound > 0 do
  local g = redis.call('LMOVE', ring, ring, 'LEFT', 'RIGHT')
  if not g then return {} end
  local lane = p .. 'g:' .. g .. ':pending'
  local ceiling = tonumber(redis.call('HGET', p .. 'glimit', g))
  local act = ceiling and (tonumber(redis.call('HGET', p .. 'gactive', g)) or 0)
  local id
  if not ceiling or act < ceiling then
    repeat
      bound = bound - 1
      id = redis.call('ZPOPMIN', lane)[1]
      if id then
        local row = p .. 'job:' .. id
        local fields = redis.call('HMGET', row, 'attempts', 'payload', 'state')
        local state = fields[3]
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
          -- [clock]
          local clock = redis.call('TIME')
          local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
          -- [end]
          redis.call('HSET', row, 'state', 'active', 'attempts', token)
          redis.call('ZADD', active, now + lease, id)
          act = redis.pcall('HINCRBY', p .. 'gactive', g, 1)
          if type(act) ~= 'number' then
            act = 1
            redis.call('HSET', p .. 'gactive', g, 1)
          end
          if ceiling and act >= ceiling or redis.call('ZCARD', lane) == 0 then
            redis.call('LREM', ring, -1, g)   -- it has just moved to the tail
          end
          if log then log('active', id, token, g) end
          return {id, fields[2], token, g}
        end
      end
    until not id or bound <= 0
  else
    bound = bound - 1
  end
  if not id then redis.call('LREM', ring, -1, g) end
end
return {}
