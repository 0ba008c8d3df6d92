#!lua flags=allow-oom
-- take (extension): claims jobs of the flat set and of lanes in one call, half and half where both have work, and the gates with it:
-- meta.paused, meta.concurrency (jobs in active), meta.max (jobs a window, counted in limiter). Lanes are served turn by turn as by
-- gwclaim. With meta.duration (ms) the claim itself counts what it gives and opens a window of that length; without it, limiter is
-- only read. A job past its row field expires_at is moved to dead (last_error `expired`) and not given; when these are many, a
-- call ends after about 100 more than it was asked for, and says that work is left.
-- KEYS[1] pending             KEYS[2] active         all else is built from the base
-- ARGV[1] base emq:{q}:       ARGV[2] most jobs; above 1000 it counts as 1000
-- ARGV[3] lease in ms         ARGV[4] `f` flat only, `l` lanes only, `fl` both, flat first, `lf` both, lanes first; `g` lanes only,
--   each turn gives all that is wanted, as by gbclaim (a batch of one lane, then the rest from the next one);
--   `fp`, `flp`, `lfp`: the same, and the reply says which jobs are parents of flows, a look-up more a flat job
-- ARGV[5] optional: Unix ms, server clock, after which nothing is claimed and gate is 4. For a claim that waits behind a BLPOP: a
--   worker that was cut off must not be given jobs long after
-- Replies: [gate, ms until the window ends, 1 if jobs that could be claimed are left, jobs expired, [job, ...], server time in ms], and
--   when jobs have expired [their ids], and when flow parents of this queue died of that [their ids].
--   Gate: why fewer than asked came: 0 there are none, 1 paused, 2 concurrency, 3 rate, 4 too late. A job: [id, payload or null, token,
--   group or null], and, when the row has any of them, max_attempts, timeout, backoff, traceparent (each or null), failures before
--   this claim (attempts less stalled, handbacks and delays), flow (the sum of 1 a child, 2 a parent, 4 somebody wants it ended).
-- Refusals, with nothing written: a key of another type (meta, limiter, active, dead unless the only plain job of a queue without
--   settings and lanes is claimed, and pending or ring if it is served; the set of a
--   lane, its limit, weight and count, and a row count as absent then; not looked at beforehand is what hears of a child that dies of
--   age: flow:outbox, wake, the row of the parent and the keys beside it); ERR most must be a positive integer; ERR lease must be a
--   positive number of ms; ERR order must be f, l, g, fl or lf; ERR the last moment must be a number of ms
local p, call = ARGV[1], redis.call
-- [clock]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- [end]

-- What the claim of an idle worker finds nearly always: no settings, no lanes, one job, in its first run and without anything
-- of its own. It is served before all that the rest needs is made: with caches gone cold that costs a server more than the claim.
-- The same writes and reply as below; whatever else there is, nothing has been written yet.
local wanted, span_of_lease, sets, until_when = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5] or now)
if (sets == 'fl' or sets == 'lf' or sets == 'f') and wanted and wanted >= 1 and span_of_lease and span_of_lease > 0
    and until_when and now <= until_when and call('EXISTS', p .. 'meta', p .. 'ring') == 0 then
  local oldest = call('ZRANGE', p .. 'pending', 0, 1)
  if #oldest == 1 then
    local id = oldest[1]
    local row = p .. 'job:' .. id
    local fields = redis.pcall('HMGET', row, 'attempts', 'payload', 'state', 'group', 'expires_at', 'max_attempts', 'timeout',
      'backoff', 'traceparent', 'parent')
    if fields[1] == '0' and fields[3] == 'pending' and not (fields[4] or fields[5] or fields[6] or fields[7] or fields[8]
        or fields[9] or fields[10]) then
      call('ZADD', p .. 'active', now + span_of_lease, id)   -- the one key whose type has not shown yet: first
      call('ZREM', p .. 'pending', id)
      call('HSET', row, 'state', 'active', 'attempts', 1)
      return {0, 0, 0, 0, {{id, fields[2], 1, false}}, now}
    end
  end
end

call('ZCARD', p .. 'active')
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
-- [bites]
local function bites(command, key, list)
  for first = 1, #list, 1000 do
    redis.call(command, key, unpack(list, first, math.min(first + 999, #list)))
  end
end
-- [end]
local last = ARGV[5] and tonumber(ARGV[5])
if ARGV[5] and (not last or last ~= last) then return redis.error_reply('ERR the last moment must be a number of ms') end
if last and now > last then return {4, 0, 0, 0, {}, now} end
local log, logging
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
return taken
