-- enqueue_flow: admits a parent and all its children, which are in the parent's queue, in one step. The children are ready to
-- claim; the parent waits for them in no set. Without allow-oom: a full server refuses it with OOM before anything is written.
-- KEYS[1] row of the parent   KEYS[2] its :dependencies    KEYS[3] pending    KEYS[4..] rows of the children, in order
-- ARGV[1] parent id           ARGV[2] parent payload       ARGV[3] n, the number of children
-- ARGV[4..] n pairs: child id, child payload
-- then, optional, n policies: `fp` or `id` (field parent_policy). Without them the host writes the field, as canonical ones do
-- then, optional, for the parent and each child: m (0..8), then m pairs of name and value, how that job is run, as of admit
-- Replies: n admitted; 0 the parent is there already, a flow's: nothing is changed; -1 its row is another job's; -1 - i the row of
--   child i (from 1) is there and not this parent's to wait for: another job's, or dead. Nothing is written then.
-- Refusals: EMQKIND job id must be JOB-namespaced (parent or any child); ERR keys and arguments of enqueue_flow do not match; ERR
--   the ids of a flow must differ; ERR policy must be fp or id; ERR fields of a flow are malformed. Nothing is written then.
-- Children of this parent that are there already (it was removed and comes again) stay as they are and are waited for. What a
-- former parent of that id has left in :processed, :failed and :unsuccessful goes: those children run again.
local row, dependencies, pending = KEYS[1], KEYS[2], KEYS[3]
local parent = ARGV[1]
local p = string.sub(pending, 1, -8)
local call = redis.call

local n = tonumber(ARGV[3])
local own = n and #ARGV > 3 + 3 * n
local policies = own or n and #ARGV == 3 + 3 * n
if not n or n < 1 or #KEYS ~= 3 + n or not (policies or #ARGV == 3 + 2 * n) then
  return redis.error_reply('ERR keys and arguments of enqueue_flow do not match')
end
if string.sub(parent, 1, 3) ~= 'JOB' then return redis.error_reply('EMQKIND job id must be JOB-namespaced') end
local seen = {[parent] = true}
for i = 1, n do
  local id = ARGV[2 + 2 * i]
  if string.sub(id, 1, 3) ~= 'JOB' then return redis.error_reply('EMQKIND job id must be JOB-namespaced') end
  if seen[id] then return redis.error_reply('ERR the ids of a flow must differ') end
  seen[id] = true
  local policy = policies and ARGV[3 + 2 * n + i] or 'fp'
  if policy ~= 'fp' and policy ~= 'id' then return redis.error_reply('ERR policy must be fp or id') end
end

local own_at, now, run_names = {}, nil, nil
if own then
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
  local i = 4 + 3 * n
  for node = 0, n do
    local m = tonumber(ARGV[i])
    if not m or m < 0 or m > 8 or m ~= math.floor(m) or i + 2 * m > #ARGV or run_fault(i + 1, i + 2 * m) then
      return redis.error_reply('ERR fields of a flow are malformed')
    end
    own_at[node] = i
    i = i + 1 + 2 * m
  end
  if i ~= #ARGV + 1 then return redis.error_reply('ERR fields of a flow are malformed') end
  local clock = redis.call('TIME')
  now = clock[1] * 1000 + math.floor(clock[2] / 1000)
end
local function set_own(job_row, node)
  local fields, first, last = {}, own_at[node] + 1, own_at[node] + 2 * ARGV[own_at[node]]
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
  if #fields > 0 then redis.call('HSET', job_row, unpack(fields, 1, math.min(#fields, 40))) end
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
  return call('EXISTS', dependencies) == 1 and call('HEXISTS', row, 'parent') == 0 and 0 or -1
end
local any = false
for first = 4, #KEYS, 1000 do
  if call('EXISTS', unpack(KEYS, first, math.min(first + 999, #KEYS))) > 0 then any = true end
end
local there = {}
if any then
  for i = 1, n do
    if call('EXISTS', KEYS[3 + i]) == 1 then
      local link = call('HMGET', KEYS[3 + i], 'parent', 'parent_queue', 'state')
      if link[1] ~= parent or (link[2] and link[2] ~= '') or link[3] == 'dead' then return -1 - i end
      there[i] = true
    end
  end
end

local members, made = {}, 0
for i = 1, n do
  if not there[i] then
    made = made + 1
    members[2 * made - 1] = 0
    members[2 * made] = ARGV[2 + 2 * i]
  end
end
for first = 1, 2 * made, 1000 do   -- first: a key of another type refuses with nothing written
  call('ZADD', pending, unpack(members, first, math.min(first + 999, 2 * made)))
end
call('HSET', row, 'state', 'awaiting_children', 'attempts', '0', 'payload', ARGV[2])
if own then set_own(row, 0) end
call('SET', dependencies, string.format('%d', n))
call('DEL', row .. ':processed', row .. ':failed', row .. ':unsuccessful')
if log then log('added', parent, '0', nil, 'state', 'awaiting_children') end
for i = 1, n do
  if not there[i] then
    local id, payload = ARGV[2 + 2 * i], ARGV[3 + 2 * i]
    if policies then
      call('HSET', KEYS[3 + i], 'state', 'pending', 'attempts', '0', 'payload', payload, 'parent', parent, 'parent_policy',
        ARGV[3 + 2 * n + i])
    else
      call('HSET', KEYS[3 + i], 'state', 'pending', 'attempts', '0', 'payload', payload, 'parent', parent)
    end
    if own then set_own(KEYS[3 + i], i) end
    if log then log('added', id, '0', nil, 'parent', parent) end
  end
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
return n
