-- Expects p, log, ring, active, lease, most and weighted; sets jobs: the members served, all of one lane, leased until the same
-- instant. The head of the ring moves to the tail; lanes that are empty or full leave the ring on the way to one that
-- has a job, members without a row are dropped. All numbers are read before the first member is taken, and what is
-- counted as in flight is what was served.
local jobs, leases, bound = {}, {}, 1000   -- stale heads and dropped members, together
while #jobs == 0 and bound > 0 do
  local g = redis.call('LMOVE', ring, ring, 'LEFT', 'RIGHT')
  if not g then break end
  bound = bound - 1
  local lane = p .. 'g:' .. g .. ':pending'
  local wanted = most
  if weighted then
    local weight = tonumber(redis.call('HGET', p .. 'gweight', g))
    wanted = weight and weight >= 1 and math.min(math.floor(weight), most) or 1
  end
  local ceiling = tonumber(redis.call('HGET', p .. 'glimit', g))
  if ceiling then
    wanted = math.min(wanted, math.ceil(ceiling - (tonumber(redis.call('HGET', p .. 'gactive', g)) or 0)))
  end
  while #jobs < wanted and bound > 0 do
    local popped = redis.call('ZPOPMIN', lane, wanted - #jobs)
    if #popped == 0 then break end
    for i = 1, #popped, 2 do
      local id = popped[i]
      local row = p .. 'job:' .. id
      local fields = redis.call('HMGET', row, 'attempts', 'payload', 'state')
      local state = fields[3]
      local exists = fields[1] or fields[2] or state
      local misplaced = false
      if state ~= 'pending' then
        -- [elsewhere]
        -- [end]
      end
      if exists and not misplaced then
        local token = math.floor(tonumber(fields[1]) or 0) + 1
        redis.call('HSET', row, 'state', 'active', 'attempts', token)
        leases[#leases + 1] = now + lease
        leases[#leases + 1] = id
        jobs[#jobs + 1] = {id, fields[2], token, g}
        if log then log('active', id, token, g) end
      else
        bound = bound - 1
      end
    end
  end
  if #jobs > 0 then
    local act = redis.pcall('HINCRBY', p .. 'gactive', g, #jobs)
    if type(act) ~= 'number' then
      act = #jobs
      redis.call('HSET', p .. 'gactive', g, act)
    end
    if ceiling and act >= ceiling or redis.call('ZCARD', lane) == 0 then
      redis.call('LREM', ring, -1, g)   -- it has just moved to the tail
    end
  elseif wanted <= 0 or redis.call('ZCARD', lane) == 0 then
    redis.call('LREM', ring, -1, g)
  end
end
bites('ZADD', active, leases)
