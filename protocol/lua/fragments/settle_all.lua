-- Expects p, call, now, bites and what settle_input sets. Settles one after the other; sets verdicts and log. What can wait is gathered
-- and written by few commands: settlements of jobs that are in active and whose end moves no other job of this call. All
-- else is done by itself, after what is gathered has been written. Behind the verdicts stand the parents of this queue that died of a
-- child, each with the number of the settlement. The state is that of one settlement after the other: lanes
-- come to the ring in the order of what made room, and hints are counted as if each were pushed at once.
-- [log]
-- [end]
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
    -- [parent_done]
    -- [end]
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
  -- [withdraw]
  -- [end]
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
        -- [due_wake]
        -- [end]
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
      -- [due_wake]
      -- [end]
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
        -- [parent_death]
        -- [end]
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
    -- [flat_wake]
    -- [end]
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
