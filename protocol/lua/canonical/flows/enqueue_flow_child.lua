-- enqueue_flow_child: admits one child of a held parent, ready to claim, in its own queue. Without allow-oom: a full server refuses
-- it with OOM before anything is written.
-- KEYS[1] row of the child    KEYS[2] pending of the child's queue
-- ARGV[1] child id            ARGV[2] payload        ARGV[3] parent id   ARGV[4] the parent's queue when it is another one, else empty
-- ARGV[5] policy: `fp` or `id`; absent: the host writes the field parent_policy, as canonical ones do
-- ARGV[6..] optional: pairs of name and value, how the job is run, as of admit
-- Replies: 1 admitted; 0 the row is there already, a child of that parent: nothing is changed; -1 it is another job's.
-- Refusals: EMQKIND job id must be JOB-namespaced; ERR policy must be fp or id; ERR fields of a flow are malformed
local row, pending = KEYS[1], KEYS[2]
local id, parent, parent_queue, policy = ARGV[1], ARGV[3], ARGV[4] or '', ARGV[5]
local p, call = string.sub(pending, 1, -8), redis.call

if string.sub(id, 1, 3) ~= 'JOB' then return redis.error_reply('EMQKIND job id must be JOB-namespaced') end
if policy and policy ~= 'fp' and policy ~= 'id' then return redis.error_reply('ERR policy must be fp or id') end
local now, run_names
if #ARGV > 5 then
  -- [run_fault]
  -- Expects a local run_names. Sets it to the names of how a job is run, each with its field of the row, and makes run_fault(first, last):
  -- whether something is wrong with the names and values ARGV[first..last], and whether `expire` is among them.
  run_names = {
    max_attempts = 'max_attempts', backoff = 'backoff', timeout = 'timeout', keep = 'keep', traceparent = 'traceparent',
    expire = 'expires_at', expires_at = 'expires_at'
  }
  local function run_fault(first, last)
    local expires = false
    for i = first, last, 2 do
      local name, value = ARGV[i], ARGV[i + 1] or ''
      if not run_names[name] then return true end
      if name == 'backoff' then
        if value == '' or #value > 64 then return true end
      elseif name == 'traceparent' then
        if #value ~= 55 then return true end
      elseif not string.find(value, '^[1-9][0-9]*$') or (#value > 15 and tonumber(value) > 9007199254740991) then
        return true
      elseif name == 'expire' then
        expires = true
      end
    end
    return false, expires
  end
  -- [end]
  if #ARGV > 21 or run_fault(6, #ARGV) then return redis.error_reply('ERR fields of a flow are malformed') end
  local clock = redis.call('TIME')
  now = clock[1] * 1000 + math.floor(clock[2] / 1000)
end
local known = call('EXISTS', row, p .. 'logging')   -- the log is off as a rule: one look for both
local logging = known > 0 and call('EXISTS', p .. 'logging') == 1
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
if known > (logging and 1 or 0) then
  local link = call('HMGET', row, 'parent', 'parent_queue')
  return link[1] == parent and (link[2] or '') == parent_queue and 0 or -1
end

local fields = {'state', 'pending', 'attempts', '0', 'payload', ARGV[2], 'parent', parent}
if parent_queue ~= '' then
  fields[#fields + 1] = 'parent_queue'
  fields[#fields + 1] = parent_queue
end
if policy then
  fields[#fields + 1] = 'parent_policy'
  fields[#fields + 1] = policy
end
if now then
  local first, last = 6, #ARGV
  -- [run_fields]
  -- Expects fields, run_names, first and last (names and values ARGV[first..last], checked), and now when `expire` is among them: they
  -- go into fields, a duration until expiry as the instant it ends.
  local size = #fields
  for i = first, last, 2 do
    local name, value = ARGV[i], ARGV[i + 1]
    if name == 'expire' then value = string.format('%.0f', math.min(now + value, 9007199254740991)) end
    fields[size + 1] = run_names[name]
    fields[size + 2] = value
    size = size + 2
  end
  -- [end]
end
call('ZADD', pending, 0, id)   -- first: a key of another type refuses with nothing written
call('HSET', row, unpack(fields, 1, math.min(#fields, 40)))
if log then log('added', id, '0', nil, 'parent', parent) end

local made = 1
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
return 1
