-- genqueue: admits one job into a lane and puts the lane on the ring when it is not paused and below its ceiling.
-- KEYS[1] row of the job      KEYS[2] lane           KEYS[3] ring        KEYS[4] paused          KEYS[5] glimit
-- KEYS[6] gactive             KEYS[7] wake
-- ARGV[1] job id              ARGV[2] payload        ARGV[3] group
-- Replies: 1 admitted; 0 the row exists, in whatever state or lane: nothing is changed.
-- Refusals: EMQKIND job id must be JOB-namespaced
local row, lane = KEYS[1], KEYS[2]
local id, g = ARGV[1], ARGV[3]
local p = string.sub(KEYS[3], 1, -5)

if string.sub(id, 1, 3) ~= 'JOB' then return redis.error_reply('EMQKIND job id must be JOB-namespaced') end
if redis.call('EXISTS', row) == 1 then return 0 end
local act, freed, waiting = nil, 0, redis.call('ZCARD', lane) > 0
redis.call('HSET', row, 'state', 'pending', 'attempts', '0', 'payload', ARGV[2], 'group', g)
redis.call('ZADD', lane, 0, id)
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
    redis.call('LPUSH', p .. 'wake', '1')
    redis.call('LTRIM', p .. 'wake', 0, 63)
  end
end
-- [end]
return 1
