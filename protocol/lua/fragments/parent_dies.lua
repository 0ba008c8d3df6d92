-- Expects p, parent, parent_row, parent_state, up (the parent's row from field 2: parent, parent_queue, parent_policy), own_queue
-- and reason. Moves a parent that lives to dead, out of where it is, and tells its own parent through the outbox.
if parent_state ~= 'dead' then
  redis.call('HSET', parent_row, 'state', 'dead')
  redis.call('ZADD', p .. 'dead', 0, parent)
  local left_set = parent_state == 'active' and 'active' or parent_state == 'scheduled' and 'schedule' or 'pending'
  redis.call('ZREM', p .. left_set, parent)
  if up[2] and up[2] ~= '' then
    local up_queue = up[3] and up[3] ~= '' and up[3] or own_queue
    redis.call('RPUSH', p .. 'flow:outbox', '\0fail\0' .. up_queue .. '\0' .. up[2] .. '\0' .. parent .. '\0'
      .. (up[4] == 'id' and 'id' or 'fp') .. '\0' .. reason)
  end
end
