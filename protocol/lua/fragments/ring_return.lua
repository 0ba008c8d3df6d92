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
