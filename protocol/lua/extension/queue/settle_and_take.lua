#!lua flags=allow-oom
-- settle_and_take (extension): settle, then take, in one call.
-- KEYS[1] pending             KEYS[2] active         all else is built from the base
-- ARGV[1] base emq:{q}:       ARGV[2] most jobs      ARGV[3] lease in ms     ARGV[4] order: all as for take
-- ARGV[5..] settlements, as for settle
-- Replies: [[verdict of each settlement, as of settle], [gate, ms, left, expired, [job, ...], server time, ...], as of take]
-- With meta.concurrency, workers noted in parked are told of slots that are free afterwards while there is work.
-- Refusals, with nothing written: a key of another type, as for both; ERR a settlement is malformed; ERR more than 1000 settlements; ERR most must be a positive integer;
--   ERR lease must be a positive number of ms; ERR order must be f, l, g, fl or lf
local p, at, call = ARGV[1], 5, redis.call
-- [take_input]
-- Expects p and call. Checks ARGV[2..4], looks at the gates and the sets; sets most, lease, order, whole, find_parents and what
-- the gates said; waiting and turns, what the two sets hold now.
local most, lease, order = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
if not most or not (most >= 1) then return redis.error_reply('ERR most must be a positive integer') end
if not lease or not (lease > 0) then return redis.error_reply('ERR lease must be a positive number of ms') end
local find_parents = order == 'flp' or order == 'lfp' or order == 'fp'
if find_parents then order = string.sub(order, 1, -2) end
local whole = order == 'g'   -- a turn gives all that is wanted, whatever the lane's weight
if whole then order = 'l' end
if order ~= 'f' and order ~= 'l' and order ~= 'fl' and order ~= 'lf' then
  return redis.error_reply('ERR order must be f, l, g, fl or lf')
end
most = math.min(math.floor(most), 1000)
local settings = call('HMGET', p .. 'meta', 'paused', 'concurrency', 'max', 'duration', 'log_claims')
local ceiling, window, span = tonumber(settings[2]) or 0, tonumber(settings[3]) or 0, tonumber(settings[4]) or 0
local used = window > 0 and tonumber(call('GET', p .. 'limiter')) or 0
local waiting = order ~= 'l' and call('ZCARD', p .. 'pending') or 0
local turns = order ~= 'f' and call('LLEN', p .. 'ring') or 0
call('ZCARD', p .. 'dead')
-- [end]
-- [settle_input]
-- Expects p, call, and at, the place in ARGV where the settlements begin. Reads and checks all of them, and looks at the sets
-- they will write, so that nothing is refused once something is written. Sets total and, for each settlement, ids, places (in
-- ARGV), keys (of its row), rows (fields of it); in_active; parked, how many workers wait to be woken; and logging, whether
-- the queue's log is on.
local prefix, active, try = p .. 'job:', p .. 'active', redis.pcall
local sizes = {d = 3, D = 5, r = 7, k = 5, w = 4, h = 3}
local ids, places, keys, rows, total, argv, arguments = {}, {}, {}, {}, 0, ARGV, #ARGV
local schedules, dies, returns = false, false, false
while at <= arguments do
  local kind = argv[at + 2]
  local size = sizes[kind]
  if not size or at + size - 1 > arguments then return redis.error_reply('ERR a settlement is malformed') end
  local sound = true
  if kind == 'r' then
    local wait = tonumber(argv[at + 4])
    sound = wait and wait == wait and tonumber(argv[at + 5]) and tonumber(argv[at + 6])
    schedules, dies = true, true
  elseif kind == 'D' or kind == 'k' then
    sound = tonumber(argv[at + 4])
    dies = dies or kind == 'k'
  elseif kind == 'w' then
    local wait = tonumber(argv[at + 3])
    sound = wait and wait == wait
    schedules, dies = true, true
  elseif kind == 'h' then
    returns = true
  end
  if not sound then return redis.error_reply('ERR a settlement is malformed') end
  total = total + 1
  ids[total], places[total], keys[total] = argv[at], at, prefix .. argv[at]
  at = at + size
end
if total > 1000 then return redis.error_reply('ERR more than 1000 settlements') end
if schedules then call('ZCARD', p .. 'schedule') end
if dies then call('ZCARD', p .. 'dead') end
if returns then call('ZCARD', p .. 'pending') end

-- A row that is no hash is none.
local function read_row(i)
  local kind = argv[places[i] + 2]
  if kind == 'd' or kind == 'D' then
    return try('HMGET', keys[i], 'attempts', 'group', 'parent', 'keep')
  end
  return try('HMGET', keys[i], 'attempts', 'group', 'parent', 'keep', 'state', 'handbacks', 'stalled',
    'max_attempts', 'delays')
end
-- Which of them are in active. A small set is one list that the server walks for each member: it is read as a whole then.
local in_active = {}
if total > 4 and call('ZCARD', active) <= 128 then
  local members = call('ZRANGE', active, 0, 127)
  for i = 1, #members do in_active[members[i]] = true end
elseif total == 0 then
  call('ZCARD', active)
else
  local scores = call('ZMSCORE', active, unpack(ids, 1, math.min(total, 1000)))
  for i = 1, total do in_active[ids[i]] = scores[i] end
end
local known = total > 0 and call('EXISTS', p .. 'parked', p .. 'logging') or 0   -- neither as a rule: one look for both
local parked = known > 0 and call('ZCARD', p .. 'parked') or 0
local logging = known > (parked > 0 and 1 or 0)
local laned, linked, alone = false, false, false
for i = 1, total do
  local fields = read_row(i)
  rows[i] = fields
  if fields[2] or fields[3] or not in_active[ids[i]] then
    local g, left = fields[2], fields[1] and not in_active[ids[i]]
    laned, linked, alone = laned or g, linked or fields[3], alone or left
    if g and (left or fields[3] or argv[places[i] + 2] == 'h') then call('ZCARD', p .. 'g:' .. g .. ':pending') end
  end
end
if alone or linked then
  call('ZCARD', p .. 'pending')
  call('ZCARD', p .. 'schedule')
  call('ZCARD', p .. 'dead')
  if laned then
    call('HLEN', p .. 'gactive')
    call('HLEN', p .. 'glimit')
    call('SCARD', p .. 'paused')
  end
end
if linked then call('LLEN', p .. 'flow:outbox') end
if laned or linked then call('LLEN', p .. 'ring') end
if laned or linked or parked > 0 then call('LLEN', p .. 'wake') end
-- [end]
local before = parked > 0 and ceiling > 0 and not settings[1] and call('ZCARD', active)
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
-- [settle_all]
-- Expects p, call, now, bites and what settle_input sets. Settles one after the other; sets verdicts and log. What can wait is gathered
-- and written by few commands: settlements of jobs that are in active and whose end moves no other job of this call. All
-- else is done by itself, after what is gathered has been written. Behind the verdicts stand the parents of this queue that died of a
-- child, each with the number of the settlement. The state is that of one settlement after the other: lanes
-- come to the ring in the order of what made room, and hints are counted as if each were pushed at once.
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
local verdicts = {}
local completed, failures, left_active, rows_doomed, behind = 0, 0, 0, 0, 0   -- behind: what stands behind the verdicts
local settled, touched = {}, {}   -- ids that this call has settled; parents it has told
local leaving, doomed, scheduled, died, waiting_again, steps = {}, {}, {}, {}, {}, {}
local rings, hints = {}, {}       -- when a lane came to the ring, when a hint was due: twice the settlement's number, and one more

local function push_wakes()
  local count, r = 0, 1
  if #hints > 0 then
    local length = call('LLEN', p .. 'wake')
    for _, order in ipairs(hints) do
      while r <= #rings and tonumber(rings[r]) < tonumber(order) do
        r = r + 1
        count, length = count + 1, math.min(64, length + 1)
      end
      if length < parked then count, length = count + 1, length + 1 end
    end
  end
  count = math.min(64, count + #rings - r + 1)
  if count > 0 then
    local tokens = {}
    for i = 1, count do tokens[i] = '1' end
    if call('LPUSH', p .. 'wake', unpack(tokens, 1, math.min(count, 64))) > 64 then call('LTRIM', p .. 'wake', 0, 63) end
  end
  rings, hints = {}, {}
end

-- Steps are {lane, id or false, settlement}: a job of the lane has left active, and, with an id, waits in it again.
local function give_lanes_back()
  local lanes, names, pushed, length = {}, {}, {}, nil
  for _, step in ipairs(steps) do
    local g, id = step[1], step[2]
    local lane = lanes[g]
    if not lane then
      lane = {freed = 0, members = {}}
      lanes[g] = lane
      names[#names + 1] = g
    end
    lane.freed = lane.freed + 1
    if id then
      lane.members[#lane.members + 1] = 0
      lane.members[#lane.members + 1] = id
    end
  end
  for _, g in ipairs(names) do
    local lane = lanes[g]
    local members = lane.members
    local size = redis.pcall('ZCARD', p .. 'g:' .. g .. ':pending')
    lane.waiting = type(size) == 'number' and size > 0
    bites('ZADD', p .. 'g:' .. g .. ':pending', members)
    local act = redis.pcall('HINCRBY', p .. 'gactive', g, -lane.freed)
    if type(act) ~= 'number' or act <= 0 then redis.pcall('HDEL', p .. 'gactive', g) end
    lane.act = type(act) == 'number' and act + lane.freed or 0
    lane.off = (lane.waiting or #members > 0) and not call('LPOS', p .. 'ring', g, 'MAXLEN', 64)
      and redis.pcall('SISMEMBER', p .. 'paused', g) ~= 1
    lane.ceiling = lane.off and tonumber(redis.pcall('HGET', p .. 'glimit', g))
  end
  for _, step in ipairs(steps) do
    local lane = lanes[step[1]]
    local act = math.max(0, lane.act - 1)
    lane.act = act
    if lane.off and (lane.waiting or step[2]) then
      local below, expected = true, lane.waiting
      if lane.ceiling then
        below = act < tonumber(lane.ceiling)
        expected = lane.waiting and act + 1 < tonumber(lane.ceiling)
      end
      if expected then length = length or call('LLEN', p .. 'ring') end
      if below and not (expected and length + #pushed > 64) then
        lane.off = false
        pushed[#pushed + 1] = step[1]
        rings[#rings + 1] = 2 * step[3]
      end
    end
    if step[2] then lane.waiting = true end
  end
  bites('RPUSH', p .. 'ring', pushed)
end

local function write_gathered()
  if left_active > 0 then
    call('ZREM', active, unpack(leaving, 1, math.min(left_active, 1000)))
    if #steps > 0 then give_lanes_back() end
    for first = 1, rows_doomed, 999 do call('DEL', unpack(doomed, first, math.min(first + 998, rows_doomed))) end
    bites('ZADD', p .. 'schedule', scheduled)
    bites('ZADD', p .. 'dead', died)
    bites('ZADD', p .. 'pending', waiting_again)
    push_wakes()
    leaving, doomed, scheduled, died, waiting_again, steps = {}, {}, {}, {}, {}, {}
    left_active, rows_doomed = 0, 0
  end
end

local function tell(id, how, text, keep)
  if keep and keep >= 1 then
    call('SET', p .. 'result:' .. id, how .. '\0' .. text, 'PX', math.floor(math.min(keep, 1000000000000)))
    call('PUBLISH', p .. 'ended', id)
  end
end

-- Gives the number of parents released, 0 or 1.
local function told_done(id, parent, parent_queue, result)
  local made = 0
  if parent_queue and parent_queue ~= '' and p ~= 'emq:{' .. parent_queue .. '}:' then
    call('RPUSH', p .. 'flow:outbox', parent_queue .. '\0' .. parent .. '\0' .. id .. '\0' .. result)
  else
    touched[parent] = true
    -- Expects p, id, parent, result and log. The child is done: recorded and counted once, never for a parent that is gone. A child that
    -- died under policy id and came back was counted at its death: only its record moves.
    local parent_row = p .. 'job:' .. parent
    local parent_state = redis.call('HGET', parent_row, 'state')
    if parent_state then
      local counted = redis.call('HDEL', parent_row .. ':unsuccessful', id) == 1
      if redis.call('HSET', parent_row .. ':processed', id, result) == 1 and not counted then
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
  return made
end

-- Claims that ended in a failure: lost leases, hand-backs and delays are none.
local function failures_of(fields)
  return (tonumber(fields[1]) or 0) - (tonumber(fields[6]) or 0) - (tonumber(fields[7]) or 0) - (tonumber(fields[9]) or 0)
end

-- A job that is not in active, or whose death a parent must hear of.
local function settle_alone(i)
  local id, at, fields = ids[i], places[i], rows[i]
  local kind, row = argv[at + 2], keys[i]
  local g, parent, state = fields[2], fields[3], fields[5]
  local link = parent and call('HMGET', row, 'parent_queue', 'parent_policy') or {}
  local parent_queue = link[1]
  local made = 0
  -- Expects p, id and g. Takes the job out of active, or, when its lease has lapsed, out of where it waits for the next claim.
  local active = redis.call('ZREM', p .. 'active', id) == 1
  local withdrawn = active
  if g then
    if active then
      local freed = 1
      -- Expects p, g and freed: the lane's jobs in flight fall by that many; a count at zero, or one that is no number, is dropped.
      local act = redis.pcall('HINCRBY', p .. 'gactive', g, -freed)
      if type(act) ~= 'number' or act <= 0 then
        redis.call('HDEL', p .. 'gactive', g)
        act = 0
      end
      local waiting = redis.call('ZCARD', p .. 'g:' .. g .. ':pending') > 0
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
    else
      withdrawn = redis.call('ZREM', p .. 'g:' .. g .. ':pending', id) == 1
      if withdrawn and redis.call('ZCARD', p .. 'g:' .. g .. ':pending') == 0 then
        redis.call('LREM', p .. 'ring', 0, g)
      end
    end
  end
  if not withdrawn then withdrawn = redis.call('ZREM', p .. 'pending', id) == 1 end
  if kind == 'd' or kind == 'D' then
    local was_dead = false
    if not withdrawn then
      withdrawn = call('ZREM', p .. 'schedule', id) == 1
      was_dead = call('ZREM', p .. 'dead', id) == 1
    end
    local elsewhere = parent_queue and parent_queue ~= '' and p ~= 'emq:{' .. parent_queue .. '}:'
    if parent and (withdrawn or was_dead and not elsewhere) then
      made = told_done(id, parent, parent_queue, kind == 'D' and argv[at + 3] or id)
    end
    call('DEL', row, row .. ':logs', row .. ':lock')
    completed = completed + 1
    if log then log('completed', id, fields[1], g) end
    local keep = kind == 'D' and tonumber(argv[at + 4]) or 0
    tell(id, 'completed', kind == 'D' and argv[at + 3] or id, keep > 0 and keep or tonumber(fields[4]))
    verdicts[i] = 1
  elseif kind == 'w' then
    if not withdrawn and state == 'dead' then
      verdicts[i] = -1
    else
      verdicts[i] = 4
      if withdrawn or state ~= 'scheduled' then
        call('HSET', row, 'state', 'scheduled')
        if active then call('HSET', row, 'delays', math.floor(tonumber(fields[9]) or 0) + 1) end
        call('ZADD', p .. 'schedule', now + tonumber(argv[at + 3]), id)
        if log then log('delayed', id, fields[1], g, 'due', now + tonumber(argv[at + 3])) end
        -- Expects p and id, just put into schedule: a parked worker sleeps until the earliest due time, so an earlier one wakes it.
        local parked = redis.call('ZCARD', p .. 'parked')
        if parked > 0 and redis.call('ZRANGE', p .. 'schedule', 0, 0)[1] == id
            and redis.call('LLEN', p .. 'wake') < parked then
          if redis.call('LPUSH', p .. 'wake', '1') > 64 then redis.call('LTRIM', p .. 'wake', 0, 63) end
        end
      end
    end
  elseif not withdrawn and (state == 'scheduled' or state == 'dead') then
    verdicts[i] = state == 'dead' and 3 or 2
  else
    local reason = argv[at + 3]
    local failed = failures_of(fields)
    if kind == 'r' and failed < (tonumber(fields[8]) or tonumber(argv[at + 5])) then
      call('HSET', row, 'last_error', reason, 'state', 'scheduled')
      call('ZADD', p .. 'schedule', now + tonumber(argv[at + 4]), id)
      if log then log('failed', id, fields[1], g, 'error', string.sub(reason, 1, 512), 'due', now + tonumber(argv[at + 4])) end
      -- Expects p and id, just put into schedule: a parked worker sleeps until the earliest due time, so an earlier one wakes it.
      local parked = redis.call('ZCARD', p .. 'parked')
      if parked > 0 and redis.call('ZRANGE', p .. 'schedule', 0, 0)[1] == id
          and redis.call('LLEN', p .. 'wake') < parked then
        if redis.call('LPUSH', p .. 'wake', '1') > 64 then redis.call('LTRIM', p .. 'wake', 0, 63) end
      end
      verdicts[i] = 2
    else
      call('HSET', row, 'last_error', reason, 'state', 'dead')
      call('HDEL', row, 'cancel')
      call('ZADD', p .. 'dead', 0, id)
      if log then log(reason == 'cancelled' and reason or 'dead', id, fields[1], g, 'error', string.sub(reason, 1, 512)) end
      failures = failures + 1
      if parent then
        local policy = link[2] == 'id' and 'id' or 'fp'
        touched[parent] = true
        local here = policy == 'fp' and (not parent_queue or parent_queue == '' or p == 'emq:{' .. parent_queue .. '}:')
        local lived = here and (call('HGET', p .. 'job:' .. parent, 'state') or 'dead') ~= 'dead'
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
        local after = lived and call('HMGET', p .. 'job:' .. parent, 'state', 'cancel') or {}
        if after[1] == 'dead' then
          if after[2] then call('HDEL', p .. 'job:' .. parent, 'cancel') end
          verdicts[total + behind + 1], verdicts[total + behind + 2] = parent, i
          behind = behind + 2
        end
      end
      local keep = tonumber(argv[at + sizes[kind] - 1])
      tell(id, 'dead', reason, keep > 0 and keep or tonumber(fields[4]))
      verdicts[i] = 3
    end
  end
  if made > 0 then
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
  end
end

for i = 1, total do
  local id, at = ids[i], places[i]
  local kind, token = argv[at + 2], argv[at + 1]
  if settled[id] or touched[id] then
    write_gathered()
    rows[i] = read_row(i)
    in_active[id] = call('ZSCORE', active, id)
  end
  local fields = rows[i]
  if not fields[1] then
    verdicts[i] = 0
  elseif fields[1] ~= token or token == '0' and kind ~= 'h' then
    verdicts[i] = -1
  elseif not in_active[id] then
    if kind == 'h' then
      verdicts[i] = 0
    else
      write_gathered()
      settle_alone(i)
      settled[id] = true
    end
  else
    local row, g, parent = keys[i], fields[2], fields[3]
    if parent and settled[parent] then write_gathered() end
    local left, back = true, false
    if kind == 'd' or kind == 'D' then
      if parent and told_done(id, parent, call('HGET', row, 'parent_queue'), kind == 'D' and argv[at + 3] or id) > 0 and parked > 0 then
        hints[#hints + 1] = 2 * i + 1
      end
      doomed[rows_doomed + 1], doomed[rows_doomed + 2], doomed[rows_doomed + 3] = row, row .. ':logs', row .. ':lock'
      rows_doomed = rows_doomed + 3
      completed = completed + 1
      if log then log('completed', id, token, g) end
      if kind == 'D' then
        local keep = tonumber(argv[at + 4])
        tell(id, 'completed', argv[at + 3], keep > 0 and keep or tonumber(fields[4]))
      elseif fields[4] then
        tell(id, 'completed', id, tonumber(fields[4]))
      end
      verdicts[i] = 1
    elseif kind == 'h' then
      call('HSET', row, 'state', 'pending', 'handbacks', math.floor(tonumber(fields[6]) or 0) + 1)
      back = g and id
      if log then log('handed_back', id, token, g) end
      if not g then
        waiting_again[#waiting_again + 1] = 0
        waiting_again[#waiting_again + 1] = id
        if parked > 0 then hints[#hints + 1] = 2 * i + 1 end
      end
      verdicts[i] = 5
    else
      local due
      if kind == 'w' then
        due = now + tonumber(argv[at + 3])
        call('HSET', row, 'state', 'scheduled', 'delays', math.floor(tonumber(fields[9]) or 0) + 1)
        if log then log('delayed', id, token, g, 'due', due) end
        verdicts[i] = 4
      else
        local failed = failures_of(fields)
        if kind == 'r' and failed < (tonumber(fields[8]) or tonumber(argv[at + 5])) then
          due = now + tonumber(argv[at + 4])
          call('HSET', row, 'last_error', argv[at + 3], 'state', 'scheduled')
          if log then log('failed', id, token, g, 'error', string.sub(argv[at + 3], 1, 512), 'due', due) end
          verdicts[i] = 2
        elseif parent then
          left = false
          write_gathered()
          settle_alone(i)
        else
          call('HSET', row, 'last_error', argv[at + 3], 'state', 'dead')
          call('HDEL', row, 'cancel')   -- a runtime that reprocesses it leaves the mark, and its next claim would end it
          died[#died + 1] = 0
          died[#died + 1] = id
          if log then
            log(argv[at + 3] == 'cancelled' and 'cancelled' or 'dead', id, token, g, 'error', string.sub(argv[at + 3], 1, 512))
          end
          failures = failures + 1
          local keep = tonumber(argv[at + sizes[kind] - 1])
          tell(id, 'dead', argv[at + 3], keep > 0 and keep or tonumber(fields[4]))
          verdicts[i] = 3
        end
      end
      if due and parked > 0 then   -- an earlier due time wakes a parked worker: then the set is written at once
        call('ZADD', p .. 'schedule', due, id)
        if call('ZRANGE', p .. 'schedule', 0, 0)[1] == id then hints[#hints + 1] = 2 * i + 1 end
      elseif due then
        scheduled[#scheduled + 1] = due
        scheduled[#scheduled + 1] = id
      end
    end
    settled[id] = true
    if left then
      left_active = left_active + 1
      leaving[left_active] = id
      if g then steps[#steps + 1] = {g, back, i} end
    end
  end
end
write_gathered()
if completed > 0 then redis.pcall('HINCRBY', p .. 'metrics:completed', 'count', completed) end
if failures > 0 then redis.pcall('HINCRBY', p .. 'metrics:failed', 'count', failures) end
-- [end]
if order ~= 'l' then waiting = call('ZCARD', p .. 'pending') end   -- what was settled may have changed them
if order ~= 'f' then turns = call('LLEN', p .. 'ring') end
-- [take_all]
-- Expects p, call, now, bites, locals log and logging, and what take_input sets. Claims; sets taken: {gate, ms of a used-up window, work left, expired
-- jobs, {job...}, now, and with expired jobs {id...}, and with parents of this queue that died of them {id...}}.
local gate, until_open, allowed = 0, 0, most
local jobs, count, expired, deps, flat = {}, 0, {}, {}, 0
local try, rows_of, floor = redis.pcall, p .. 'job:', math.floor
local bound = 1000   -- members that are not served, and turns that serve none; one that dies of age costs as much as ten of them
local lanes, visited = {}, {}

if settings[1] then gate, allowed = 1, 0 end
if allowed > 0 and ceiling > 0 then
  local room = math.max(0, math.ceil(ceiling - call('ZCARD', p .. 'active')))
  if room < allowed then gate, allowed = 2, room end
end
if allowed > 0 and window > 0 then
  local left = math.ceil(window - used)
  if left <= 0 then   -- a counter without an end does not count
    until_open = call('PTTL', p .. 'limiter')   -- 0 in its last millisecond, in which it still counts
    left = until_open >= 0 and 0 or math.ceil(window)
    until_open = math.max(0, until_open)
  end
  if left < allowed then gate, allowed = 3, left end
end

-- Leases up to wanted of the oldest members of a set; gives how many.
local function serve(set, wanted, lane)
  if not lane and waiting <= 0 then return 0 end
  local begun = count
  while count - begun < wanted and bound > 0 do
    local asked = wanted - (count - begun)
    local popped = try('ZPOPMIN', set, asked)
    if not lane then waiting = waiting - #popped / 2 end
    for i = 1, #popped, 2 do
      local id = popped[i]
      local row = rows_of .. id
      local fields = try('HMGET', row, 'attempts', 'payload', 'state', 'group', 'expires_at', 'max_attempts', 'timeout',
        'backoff', 'traceparent', 'parent')
      local state, g = fields[3], fields[4]
      local exists = fields[1] or fields[2] or state
      local misplaced = false
      if exists and state ~= 'pending' then
        -- Expects p, id, state and g; sets misplaced: the job is in the set that its row's state names, so this
        -- membership is a leftover.
        local home = state == 'active' and 'active' or state == 'scheduled' and 'schedule' or state == 'dead' and 'dead'
            or state == 'pending' and (g and 'g:' .. g .. ':pending' or 'pending')
        misplaced = home and redis.call('ZSCORE', p .. home, id)
        if state == 'active' and not misplaced then   -- those of this call are not in active yet
          for _, job in ipairs(jobs) do misplaced = misplaced or job[1] == id end
        end
      end
      local ends = tonumber(fields[5])
      if not exists or misplaced then
        bound = bound - 1
      elseif ends and ends <= now then
        bound = bound - 10
        call('HSET', row, 'last_error', 'expired', 'state', 'dead')
        call('HDEL', row, 'cancel')
        call('ZADD', p .. 'dead', 0, id)
        expired[#expired + 1] = id
      else
        local token = floor(tonumber(fields[1]) or 0) + 1
        call('HSET', row, 'state', 'active', 'attempts', token)
        count = count + 1
        local job = {id, fields[2], token, lane or g}
        jobs[count] = job
        if not lane then
          if g then try('HINCRBY', p .. 'gactive', g, 1) end   -- every settle of a row with a group lowers it
          if find_parents then
            flat = flat + 1
            deps[flat] = row .. ':dependencies'
          end
        end
        local earlier = token > 1 and call('HMGET', row, 'stalled', 'handbacks', 'cancel', 'delays')
        if fields[6] or fields[7] or fields[8] or fields[9] or fields[10]
            or earlier and (earlier[1] or earlier[2] or earlier[3] or earlier[4]) then
          local spared = earlier and (tonumber(earlier[1]) or 0) + (tonumber(earlier[2]) or 0) + (tonumber(earlier[4]) or 0) or 0
          job[5], job[6], job[7], job[8] = fields[6], fields[7], fields[8], fields[9]
          job[9], job[10] = token - 1 - spared, (fields[10] and 1 or 0) + (earlier and earlier[3] and 4 or 0)
        end
      end
    end
    if #popped < 2 * asked then break end
  end
  return count - begun
end

-- Turns by weight, or whole ones: the head of the ring moves to the tail and is served; lanes that are empty or full leave on the way.
local function serve_lanes(wanted)
  if turns == 0 then return 0 end
  local begun = count
  while count - begun < wanted and bound > 0 do
    local g = call('LMOVE', p .. 'ring', p .. 'ring', 'LEFT', 'RIGHT')
    if not g then break end
    local lane = lanes[g]
    if not lane then
      local weight = tonumber(try('HGET', p .. 'gweight', g))
      lane = {weight = weight and weight >= 1 and math.floor(weight) or 1, served = 0, act = 0,
        ceiling = tonumber(try('HGET', p .. 'glimit', g))}
      if lane.ceiling then lane.act = tonumber(try('HGET', p .. 'gactive', g)) or 0 end
      lanes[g] = lane
      visited[#visited + 1] = g
    end
    local share = math.min(whole and wanted or lane.weight, wanted - (count - begun))
    if lane.ceiling then share = math.min(share, math.ceil(lane.ceiling - lane.act)) end
    local got = share > 0 and serve(p .. 'g:' .. g .. ':pending', share, g) or 0
    lane.served, lane.act = lane.served + got, lane.act + got
    if got == 0 then bound = bound - 1 end
    local left = try('ZCARD', p .. 'g:' .. g .. ':pending')
    if lane.ceiling and lane.act >= lane.ceiling or type(left) ~= 'number' or left == 0 then
      call('LREM', p .. 'ring', -1, g)   -- it has just moved to the tail
    end
  end
  return count - begun
end

if allowed > 0 then
  local half = math.ceil(allowed / 2)
  if order == 'f' then
    serve(p .. 'pending', allowed, false)
  elseif order == 'l' then
    serve_lanes(allowed)
  elseif order == 'fl' then
    serve(p .. 'pending', half, false)
    serve_lanes(allowed - count)
    serve(p .. 'pending', allowed - count, false)
  else
    serve_lanes(half)
    serve(p .. 'pending', allowed - count, false)
    serve_lanes(allowed - count)
  end
end

-- Back to front: in a small set the server looks for each one's place from the front.
local leases, until_then = {}, string.format('%.17g', now + lease)
for i = 1, count do
  leases[2 * i - 1] = until_then
  leases[2 * i] = jobs[count + 1 - i][1]
end
bites('ZADD', p .. 'active', leases)
for _, g in ipairs(visited) do
  local served = lanes[g].served
  if served > 0 and type(redis.pcall('HINCRBY', p .. 'gactive', g, served)) ~= 'number' then
    redis.pcall('HSET', p .. 'gactive', g, served)
  end
end
if window > 0 and span >= 1 and count > 0 then
  if type(redis.pcall('INCRBY', p .. 'limiter', count)) ~= 'number' then call('SET', p .. 'limiter', count) end
  if call('PTTL', p .. 'limiter') < 0 then
    call('PEXPIRE', p .. 'limiter', math.floor(math.min(span, 1000000000000)))
  end
end

if (settings[5] or #expired > 0) and not logging then logging = call('EXISTS', p .. 'logging') == 1 end
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
if log then
  for i = 1, settings[5] and count or 0 do log('active', jobs[i][1], jobs[i][3], jobs[i][4]) end
  for _, id in ipairs(expired) do
    local fields = call('HMGET', p .. 'job:' .. id, 'attempts', 'group')
    log('dead', id, fields[1], fields[2], 'error', 'expired')
  end
end
-- Those that died of age tell their parents after all claims, so that no parent is moved that is just being claimed.
local made, fallen = 0, {}
for _, id in ipairs(expired) do
  local fields = call('HMGET', p .. 'job:' .. id, 'parent', 'parent_queue', 'parent_policy', 'keep')
  local parent, parent_queue, policy, reason = fields[1], fields[2], fields[3] == 'id' and 'id' or 'fp', 'expired'
  if parent then
    local here = policy == 'fp' and (not parent_queue or parent_queue == '' or p == 'emq:{' .. parent_queue .. '}:')
    local lived = here and (call('HGET', p .. 'job:' .. parent, 'state') or 'dead') ~= 'dead'
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
    local after = lived and call('HMGET', p .. 'job:' .. parent, 'state', 'cancel') or {}
    if after[1] == 'dead' then
      if after[2] then call('HDEL', p .. 'job:' .. parent, 'cancel') end
      fallen[#fallen + 1] = parent
    end
  end
  local keep = fields[4]
  -- Expects p, id, keep (the row's field) and reason. The job is dead, and no settle has told: what became of a job that asked for it
  -- is kept for so long, and its id is published for who waits.
  local kept_for = tonumber(keep)
  if kept_for and kept_for >= 1 then
    redis.call('SET', p .. 'result:' .. id, 'dead\0' .. reason, 'PX', math.floor(math.min(kept_for, 1000000000000)))
    redis.pcall('PUBLISH', p .. 'ended', id)
  end
end
if #expired > 0 then redis.pcall('HINCRBY', p .. 'metrics:failed', 'count', #expired) end
if made > 0 then
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
end

-- Parents of flows are flat; they keep the key :dependencies.
local parents = 0
for first = 1, flat, 1000 do parents = parents + call('EXISTS', unpack(deps, first, math.min(first + 999, flat))) end
if parents > 0 then
  for _, job in ipairs(jobs) do
    if call('EXISTS', p .. 'job:' .. job[1] .. ':dependencies') == 1 then
      if #job < 10 then
        job[5], job[6], job[7], job[8], job[9], job[10] = false, false, false, false, job[3] - 1, 0
      end
      job[10] = job[10] + 2
    end
  end
end

if #expired > 0 and order ~= 'l' then waiting = call('ZCARD', p .. 'pending') end   -- a parent of theirs may have come or gone
if turns > 0 or #expired > 0 and order ~= 'f' then turns = call('LLEN', p .. 'ring') end
local rest = waiting > 0 or turns > 0
if gate == 3 and until_open == 0 and count > 0 then until_open = math.max(0, call('PTTL', p .. 'limiter')) end
if gate > 0 and (not rest or count < allowed) and allowed > 0 then gate, until_open = 0, 0 end
local taken = {gate, until_open, rest and (gate == 0 or gate == 3 and until_open == 0) and 1 or 0, #expired, jobs, now,
  #expired > 0 and expired or nil, #fallen > 0 and fallen or nil}
-- [end]
if before then
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
return {verdicts, taken}
