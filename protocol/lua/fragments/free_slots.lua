-- Expects p, g and freed: the lane's jobs in flight fall by that many; a count at zero, or one that is no number, is dropped.
local act = redis.pcall('HINCRBY', p .. 'gactive', g, -freed)
if type(act) ~= 'number' or act <= 0 then
  redis.call('HDEL', p .. 'gactive', g)
  act = 0
end
