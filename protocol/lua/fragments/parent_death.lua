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
      -- [parent_dies]
      -- [end]
    elseif redis.call('HSET', parent_row .. ':unsuccessful', id, reason) == 1 then
      -- [release_parent]
      -- [end]
    end
  end
end
