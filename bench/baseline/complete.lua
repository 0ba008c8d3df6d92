-- The canonical complete, step by step as the protocol documents give it, without repairs and extensions. Only measured against.
-- KEYS[1] active, KEYS[2] row, a child's then :dependencies, :processed and the row of its parent, or the outbox
-- ARGV[1] id, ARGV[2] token, ARGV[3] base, a child's then parent id, result, `xq` and the parent's queue
local att = redis.call('HGET', KEYS[2], 'attempts')
if not att then
  return 0
end
if att ~= ARGV[2] then
  return redis.error_reply('EMQSTALE complete token mismatch')
end
local id, p = ARGV[1], ARGV[3]
local g = redis.call('HGET', KEYS[2], 'group')
local was_active = redis.call('ZREM', KEYS[1], id)
if g then
  local lane = p .. 'g:' .. g .. ':pending'
  if was_active == 1 then
    local act = redis.call('HINCRBY', p .. 'gactive', g, -1)
    if act <= 0 then
      redis.call('HDEL', p .. 'gactive', g)
    end
    if redis.call('SISMEMBER', p .. 'paused', g) == 0 and redis.call('ZCARD', lane) > 0 then
      local lim = redis.call('HGET', p .. 'glimit', g)
      if (not lim or act < tonumber(lim)) and not redis.call('LPOS', p .. 'ring', g) then
        redis.call('RPUSH', p .. 'ring', g)
        redis.call('LPUSH', p .. 'wake', '1')
        redis.call('LTRIM', p .. 'wake', 0, 63)
      end
    end
  else
    redis.call('ZREM', lane, id)
    if redis.call('ZCARD', lane) == 0 then
      redis.call('LREM', p .. 'ring', 0, g)
    end
  end
elseif was_active == 0 then
  redis.call('ZREM', p .. 'pending', id)
end
if ARGV[6] == 'xq' then
  if was_active == 1 then
    redis.call('RPUSH', KEYS[3], ARGV[7] .. '\0' .. ARGV[4] .. '\0' .. id .. '\0' .. ARGV[5])
  end
elseif KEYS[3] and was_active == 1 then
  local left = redis.call('DECR', KEYS[3])
  redis.call('HSET', KEYS[4], id, ARGV[5])
  if left <= 0 then
    redis.call('ZADD', p .. 'pending', 0, ARGV[4])
    redis.call('HSET', KEYS[5], 'state', 'pending')
  end
end
redis.call('DEL', KEYS[2])
redis.call('HINCRBY', p .. 'metrics:completed', 'count', 1)
return 1
