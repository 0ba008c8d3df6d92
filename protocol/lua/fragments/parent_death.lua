-- Expects p, id, parent, parent_queue, policy, reason and made. The child is dead: its parent dies (fp) or
-- counts it as done (id). A parent in another queue is told through the outbox; so is the parent of a parent
-- that this call has moved to dead.
local own_queue = string.sub(p, 6, -3)
if parent_queue and parent_queue ~= '' and parent_queue ~= own_queue then
  redis.call('RPUSH', p .. 'flow:outbox', '\0fail\0' .. parent_queue .. '\0' .. parent .. '\0' .. id .. '\0' .. policy
    .. '\0' .. reason)
else
  local parent_row = p .. 'job:' .. parent
  local up = redis.call('HMGET', parent_row, 'state', 'parent', 'parent_queue', 'parent_policy')
  local parent_state = up[1]
  if parent_state and policy == 'id' then
    if redis.call('HSET', parent_row .. ':unsuccessful', id, reason) == 1
        and redis.call('HEXISTS', parent_row .. ':processed', id) == 0 then
      -- [release_parent]
      -- [end]
    end
  elseif parent_state then
    redis.call('HSET', parent_row .. ':failed', id, reason)
    if parent_state ~= 'dead' then
      redis.call('HSET', parent_row, 'state', 'dead')
      redis.call('ZADD', p .. 'dead', 0, parent)
      local left_set = parent_state == 'active' and 'active' or parent_state == 'scheduled' and 'schedule' or 'pending'
      redis.call('ZREM', p .. left_set, parent)
      if up[2] then
        redis.call('RPUSH', p .. 'flow:outbox', '\0fail\0' .. (up[3] or own_queue) .. '\0' .. up[2] .. '\0' .. parent
          .. '\0' .. (up[4] == 'id' and 'id' or 'fp') .. '\0' .. reason)
      end
    end
  end
end
