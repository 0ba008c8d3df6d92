-- Expects p, parent, parent_row, parent_state, made and log. One child less to wait for; the last one releases a
-- parent that still waits.
local left = redis.pcall('DECR', parent_row .. ':dependencies')
if type(left) == 'number' and left <= 0 and parent_state == 'awaiting_children' then
  redis.call('HSET', parent_row, 'state', 'pending')
  redis.call('ZADD', p .. 'pending', 0, parent)
  made = made + 1
  if log then log('released', parent, redis.call('HGET', parent_row, 'attempts')) end
end
