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
        -- [elsewhere]
        -- [end]
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
-- [log_function]
-- [end]
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
    -- [parent_death]
    -- [end]
    local after = lived and call('HMGET', p .. 'job:' .. parent, 'state', 'cancel') or {}
    if after[1] == 'dead' then
      if after[2] then call('HDEL', p .. 'job:' .. parent, 'cancel') end
      fallen[#fallen + 1] = parent
    end
  end
  local keep = fields[4]
  -- [keep_death]
  -- [end]
end
if #expired > 0 then redis.pcall('HINCRBY', p .. 'metrics:failed', 'count', #expired) end
if made > 0 then
  -- [flat_wake]
  -- [end]
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
