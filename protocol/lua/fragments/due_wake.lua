-- Expects p and id, just put into schedule: a parked worker sleeps until the earliest due time, so an earlier one wakes it.
local parked = redis.call('ZCARD', p .. 'parked')
if parked > 0 and redis.call('ZRANGE', p .. 'schedule', 0, 0)[1] == id
    and redis.call('LLEN', p .. 'wake') < parked then
  if redis.call('LPUSH', p .. 'wake', '1') > 64 then redis.call('LTRIM', p .. 'wake', 0, 63) end
end
