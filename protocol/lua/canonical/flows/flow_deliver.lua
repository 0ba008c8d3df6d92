#!lua flags=allow-oom
-- flow_deliver: tells a parent that its child in another queue is done; runs on the parent's queue. The same record again changes
-- nothing. A parent that is gone is not written to; the record counts as delivered.
-- KEYS[1] the parent's :dependencies    KEYS[2] the parent's :processed    KEYS[3] row of the parent
-- ARGV[1] child id            ARGV[2] result         ARGV[3] parent id   ARGV[4] base emq:{q}: of the parent's queue
-- Replies: 1, always.
-- A child that died under policy id and came back was counted at its death: only its record moves.
local processed, parent_row = KEYS[2], KEYS[3]
local id, result, parent, p = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local made = 0

local parent_state = redis.call('HGET', parent_row, 'state')
if not parent_state then return 1 end
if redis.call('HSETNX', processed, id, result) == 0 then return 1 end
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
if redis.call('HDEL', parent_row .. ':unsuccessful', id) == 0 then
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
return 1
