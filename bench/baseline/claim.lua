-- The canonical claim, step by step as the protocol documents give it, without repairs and extensions. Only measured against.
-- KEYS[1] pending, KEYS[2] active; ARGV[1] row prefix, ARGV[2] lease in ms
local popped = redis.call('ZPOPMIN', KEYS[1])
if #popped == 0 then
  return {}
end
local id = popped[1]
local row = ARGV[1] .. id
local att = redis.call('HINCRBY', row, 'attempts', 1)
redis.call('HSET', row, 'state', 'active')
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZADD', KEYS[2], now + tonumber(ARGV[2]), id)
return {id, redis.call('HGET', row, 'payload'), att}
