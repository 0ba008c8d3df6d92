-- Expects p, id, parent, parent_row, parent_state, up (the parent's row from field 2: parent, parent_queue, parent_policy, group, keep),
-- own_queue, reason and log. Moves a parent that lives to dead, out of where it is, and tells its own parent through the outbox. The row
-- of a parent that is gone may be a lane's job by now: then its slot or its place in the lane is given up. No settle names the parent, so
-- its id is published for who waits for it whether or not its end is kept.
if parent_state ~= 'dead' then
  redis.call('HSET', parent_row, 'state', 'dead')
  redis.call('ZADD', p .. 'dead', 0, parent)
  local g = up[5]
  if log then log('dead', parent, redis.call('HGET', parent_row, 'attempts'), g, 'error', string.sub(reason, 1, 512)) end
  local left_set = parent_state == 'active' and 'active' or parent_state == 'scheduled' and 'schedule'
      or g and 'g:' .. g .. ':pending' or 'pending'
  local left = redis.call('ZREM', p .. left_set, parent) == 1
  if g and left then
    local waiting = redis.call('ZCARD', p .. 'g:' .. g .. ':pending') > 0
    if left_set == 'active' then
      local freed = 1
      -- [free_slots]
      -- [end]
      if waiting then
        -- [ring_return]
        -- [end]
      end
    elseif not waiting then
      redis.call('LREM', p .. 'ring', 0, g)
    end
  end
  local kept_for = tonumber(up[6])
  if kept_for and kept_for >= 1 then
    redis.call('SET', p .. 'result:' .. parent, 'dead\0' .. reason, 'PX', math.floor(math.min(kept_for, 1000000000000)))
  end
  redis.pcall('PUBLISH', p .. 'ended', parent)
  if up[2] and up[2] ~= '' then
    local up_queue = up[3] and up[3] ~= '' and up[3] or own_queue
    redis.call('RPUSH', p .. 'flow:outbox', '\0fail\0' .. up_queue .. '\0' .. up[2] .. '\0' .. parent .. '\0'
      .. (up[4] == 'id' and 'id' or 'fp') .. '\0' .. reason)
  end
end
