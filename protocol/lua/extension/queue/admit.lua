-- admit (extension): admits a batch of jobs, all with one target (pending, a lane, or schedule, flat or for a lane), or each with a
-- target and row fields of its own. Admission is as by enqueue, genqueue and schedule; a scheduled job of a lane has its group in
-- the row from the start. Without allow-oom: a full server refuses the whole batch with OOM before anything is written.
-- KEYS[1] pending             KEYS[2] schedule       KEYS[3] ring        KEYS[4] paused          KEYS[5] glimit
-- KEYS[6] gactive             KEYS[7] wake           KEYS[8] parked
-- ARGV[1] base emq:{q}:       ARGV[2] group or empty
-- ARGV[3] empty: ready now; `in`: due after ARGV[4] ms by the server's clock; `at`: due at ARGV[4], Unix ms; `each`: see below
-- ARGV[4] value in ms, ignored when ARGV[3] is empty
-- ARGV[5..] id, payload, id, payload...
-- With `each`, where ARGV[2] and ARGV[4] are ignored, ARGV[5..] is a record a job: id, payload, group or empty, mode (empty, `in` or
--   `at`), value in ms, n (0..8), then n pairs of name and value, how the job is run: max_attempts, timeout and keep in ms, backoff,
--   traceparent, expires_at in Unix ms, or expire in ms from now by the server's clock, which becomes expires_at
-- Replies: one integer a job, in order: 1 admitted; 0 duplicate (the row exists, or an earlier job of the batch has the id);
--   -2 the id is not JOB-namespaced; -3 the row exists, but the job is in no set and its state names none: it would never run. One
--   whose state does name a set is put back there, counted in metrics:repaired, and answered as a duplicate.
-- Refusals: ERR value of admit must be a number; ERR a payload is missing; ERR a record of admit is malformed; a target of another type.
--   Nothing is written then.
local p, g, mode = ARGV[1], ARGV[2], ARGV[3]
local call = redis.call
local each = mode == 'each'
local count, due
local timed = mode == 'in'
local starts, run_names   -- of records
if each then
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
  count, starts = 0, {}
  local i = 5
  while i <= #ARGV do
    local when, n = ARGV[i + 3], tonumber(ARGV[i + 5])
    local fault = not n or n < 0 or n > 8 or n % 1 ~= 0 or i + 5 + 2 * n > #ARGV
    if not fault and n > 0 then
      local expires
      fault, expires = run_fault(i + 6, i + 5 + 2 * n)
      timed = timed or expires
    end
    if when == 'in' or when == 'at' then
      local value = tonumber(ARGV[i + 4])
      if not value or value ~= value then return redis.error_reply('ERR value of admit must be a number') end
      timed = timed or when == 'in'
    elseif when ~= '' then
      fault = true
    end
    if fault then return redis.error_reply('ERR a record of admit is malformed') end
    count = count + 1
    starts[count] = i
    i = i + (6 + 2 * n)
  end
else
  if mode ~= '' then
    due = tonumber(ARGV[4])
    if not due or due ~= due then return redis.error_reply('ERR value of admit must be a number') end
  end
  if #ARGV % 2 == 1 then return redis.error_reply('ERR a payload is missing') end
  count = #ARGV / 2 - 2
end
local prefix = p .. 'job:'

local rows = {}
for i = 1, count do rows[i] = prefix .. ARGV[each and starts[i] or 3 + 2 * i] end
local any = false
for first = 1, count, 1000 do
  if call('EXISTS', unpack(rows, first, math.min(first + 999, count))) > 0 then any = true end
end
local logging = call('EXISTS', p .. 'logging') == 1
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

local function known(id, row)
  -- [put_back]
  -- Expects p, log, row and id of a row that exists; sets found: the job is in a set, or waits for its children. One that was in no
  -- set is put back where its state says: what is scheduled is due at once, for its time is lost; what is active has a
  -- lapsed lease, so that the sweep counts it. A row without a state that has a set stays as it is.
  local fields = redis.call('HMGET', row, 'state', 'group')
  local state, g = fields[1], fields[2]
  local home = state == 'pending' and (g and 'g:' .. g .. ':pending' or 'pending') or state == 'active' and 'active'
      or state == 'scheduled' and 'schedule' or state == 'dead' and 'dead'
  local found = state == 'awaiting_children' or home and redis.call('ZSCORE', p .. home, id)
  if not found then
    for _, set in ipairs({'pending', 'active', 'schedule', 'dead', g and 'g:' .. g .. ':pending' or nil}) do
      found = found or redis.call('ZSCORE', p .. set, id)
    end
    if home and not found then
      found = true
      local made, act, freed, waiting = 1, nil, 0, redis.call('ZCARD', p .. home) > 0
      redis.call('ZADD', p .. home, 0, id)
      redis.call('HINCRBY', p .. 'metrics:repaired', 'count', 1)
      if log then log('put_back', id, redis.call('HGET', row, 'attempts'), g, 'state', state) end
      if home == 'pending' then
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
      elseif home == 'schedule' then
        -- Expects p and id, just put into schedule: a parked worker sleeps until the earliest due time, so an earlier one wakes it.
        local parked = redis.call('ZCARD', p .. 'parked')
        if parked > 0 and redis.call('ZRANGE', p .. 'schedule', 0, 0)[1] == id
            and redis.call('LLEN', p .. 'wake') < parked then
          if redis.call('LPUSH', p .. 'wake', '1') > 64 then redis.call('LTRIM', p .. 'wake', 0, 63) end
        end
      elseif state == 'pending' then
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
    end
  end
  -- [end]
  return found and 0 or -3
end

-- A set of another type refuses the batch with nothing written.
if not each then
  call('ZCARD', mode ~= '' and KEYS[2] or g == '' and KEYS[1] or p .. 'g:' .. g .. ':pending')
else
  local looked = {}
  for i = 1, count do
    local lane, due_later = ARGV[starts[i] + 2], ARGV[starts[i] + 3] ~= ''
    local set = due_later and 2 or lane   -- no group is the number 2
    if not looked[set] then
      looked[set] = true
      call('ZCARD', due_later and KEYS[2] or lane == '' and KEYS[1] or p .. 'g:' .. lane .. ':pending')
    end
  end
end

local now
if timed then
  local clock = redis.call('TIME')
  now = clock[1] * 1000 + math.floor(clock[2] / 1000)
end
local verdicts, seen, members = {}, {}, {}
local flat, scheduled, lanes, in_lane   -- scores and ids
if each then
  flat, scheduled, lanes, in_lane = {}, {}, {}, {}
  for i = 1, count do
    local s, row = starts[i], rows[i]
    local id = ARGV[s]
    local a, b, c = string.byte(id, 1, 3)
    if a ~= 74 or b ~= 79 or c ~= 66 then   -- J, O, B
      verdicts[i] = -2
    elseif seen[id] then
      verdicts[i] = 0
    elseif any and call('EXISTS', row) == 1 then
      verdicts[i] = known(id, row)
    else
      seen[id] = true
      verdicts[i] = 1
      local g, when, score = ARGV[s + 2], ARGV[s + 3], 0
      if when ~= '' then
        score = tonumber(ARGV[s + 4])
        if when == 'in' then score = now + score end
        members = scheduled
      elseif g == '' then
        members = flat
      else
        members = in_lane[g]
        if not members then
          members = {}
          in_lane[g] = members
          lanes[#lanes + 1] = g
        end
      end
      local state = when == '' and 'pending' or 'scheduled'
      if ARGV[s + 5] ~= '0' then
        local fields = {'state', state, 'attempts', '0', 'payload', ARGV[s + 1]}
        if g ~= '' then
          fields[7] = 'group'
          fields[8] = g
        end
        local first, last = s + 6, s + 5 + 2 * ARGV[s + 5]
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
        call('HSET', row, unpack(fields, 1, math.min(#fields, 40)))
      elseif g == '' then
        call('HSET', row, 'state', state, 'attempts', '0', 'payload', ARGV[s + 1])
      else
        call('HSET', row, 'state', state, 'attempts', '0', 'payload', ARGV[s + 1], 'group', g)
      end
      local size = #members
      members[size + 1] = score
      members[size + 2] = id
      if log and when ~= '' then
        log('added', id, '0', g ~= '' and g, 'due', score)
      elseif log then
        log('added', id, '0', g ~= '' and g)
      end
    end
  end
else
  if mode == 'in' then due = now + due end
  if due then
    scheduled = members
  elseif g == '' then
    flat = members
  else
    lanes, in_lane = {g}, {[g] = members}
  end
  local score = due or 0
  local state = due and 'scheduled' or 'pending'
  local made = 0
  for i = 1, count do
    local id, row = ARGV[3 + 2 * i], rows[i]
    local a, b, c = string.byte(id, 1, 3)
    if a ~= 74 or b ~= 79 or c ~= 66 then   -- J, O, B
      verdicts[i] = -2
    elseif seen[id] then
      verdicts[i] = 0
    elseif any and call('EXISTS', row) == 1 then
      verdicts[i] = known(id, row)
    else
      seen[id] = true
      if g == '' then
        call('HSET', row, 'state', state, 'attempts', '0', 'payload', ARGV[4 + 2 * i])
      else
        call('HSET', row, 'state', state, 'attempts', '0', 'payload', ARGV[4 + 2 * i], 'group', g)
      end
      verdicts[i] = 1
      made = made + 1
      members[2 * made - 1] = score
      members[2 * made] = id
      if log and due then
        log('added', id, '0', g ~= '' and g, 'due', due)
      elseif log then
        log('added', id, '0', g ~= '' and g)
      end
    end
  end
end

-- Back to front: in a small set the server looks for each one's place from the front.
local function add(set, list)
  local back, size = {}, #list
  for i = 1, size, 2 do back[i], back[i + 1] = list[size - i], list[size - i + 1] end
  for first = 1, size, 1000 do call('ZADD', set, unpack(back, first, math.min(first + 999, size))) end
end
if flat and #flat > 0 then
  add(KEYS[1], flat)
  local made = #flat / 2
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
for i = 1, lanes and #lanes or 0 do
  local g = lanes[i]
  local waiting_here = in_lane[g]
  if #waiting_here > 0 then
    local lane = p .. 'g:' .. g .. ':pending'
    local waiting = call('ZCARD', lane) > 0
    add(lane, waiting_here)
    local act, freed = nil, 0
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
if scheduled and #scheduled > 0 then
  for first = 1, #scheduled, 1000 do
    call('ZADD', KEYS[2], unpack(scheduled, first, math.min(first + 999, #scheduled)))
  end
  local id = call('ZRANGE', KEYS[2], 0, 0)[1]
  if seen[id] then
    -- [due_wake]
    -- Expects p and id, just put into schedule: a parked worker sleeps until the earliest due time, so an earlier one wakes it.
    local parked = redis.call('ZCARD', p .. 'parked')
    if parked > 0 and redis.call('ZRANGE', p .. 'schedule', 0, 0)[1] == id
        and redis.call('LLEN', p .. 'wake') < parked then
      if redis.call('LPUSH', p .. 'wake', '1') > 64 then redis.call('LTRIM', p .. 'wake', 0, 63) end
    end
    -- [end]
  end
end
return verdicts
