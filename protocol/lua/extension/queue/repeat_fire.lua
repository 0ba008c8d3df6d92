-- repeat_fire: admits the occurrences that are due and sets their next runs, in one step, so that two pumps never admit one twice and
-- none is lost or doubled by a crash between the two. What is not as `repeat_due` saw it was fired by another pump.
-- KEYS[1] repeat              KEYS[2] pending
-- ARGV[1] base emq:{q}:
-- ARGV[2..] name, next run as it was seen, job id of the occurrence; again and again, 300 registrations at most
-- Replies: a list, one for each: 1 admitted; 0 it had no record, or one without a period or payload: swept; -1 fired or cancelled by
--   another meanwhile; -3 the id is taken: nothing changed.
-- Refusals: EMQKIND job id must be JOB-namespaced; ERR a name, run or id is missing; ERR too many registrations
local registry, pending = KEYS[1], KEYS[2]
local p = ARGV[1]
if #ARGV % 3 ~= 1 then return redis.error_reply('ERR a name, run or id is missing') end
if #ARGV > 901 then return redis.error_reply('ERR too many registrations') end
for i = 2, #ARGV, 3 do
  if string.sub(ARGV[i + 2], 1, 3) ~= 'JOB' then return redis.error_reply('EMQKIND job id must be JOB-namespaced') end
end

-- [clock]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
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
local verdicts, made = {}, 0
for i = 2, #ARGV, 3 do
  local name, id = ARGV[i], ARGV[i + 2]
  local record, row = p .. 'repeat:' .. name, p .. 'job:' .. id
  local run = redis.call('ZSCORE', registry, name)
  local verdict = -1
  if run and tonumber(run) == tonumber(ARGV[i + 1]) then
    local fields = redis.call('HMGET', record, 'every_ms', 'template')
    local every = tonumber(fields[1])
    if not fields[2] or not every or not (every >= 1) or every > 9007199254740991 then
      redis.call('ZREM', registry, name)
      redis.call('DEL', record)
      verdict = 0
    elseif redis.call('EXISTS', row) == 1 then
      verdict = -3
    else
      redis.call('ZADD', pending, 0, id)   -- first: a key of another type refuses with no job admitted
      redis.call('HSET', row, 'state', 'pending', 'attempts', '0', 'payload', fields[2])
      redis.call('ZADD', registry, now + math.floor(every), name)
      made = made + 1
      if log then log('added', id, '0', nil, 'repeat', name) end
      verdict = 1
    end
  end
  verdicts[#verdicts + 1] = verdict
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
return verdicts
