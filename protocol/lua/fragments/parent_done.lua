-- Expects p, id, parent, result and log. The child is done: recorded and counted once, never for a parent that is gone. A child that
-- died under policy id and came back was counted at its death: only its record moves.
local parent_row = p .. 'job:' .. parent
local parent_state = redis.call('HGET', parent_row, 'state')
if parent_state then
  local counted = redis.call('HDEL', parent_row .. ':unsuccessful', id) == 1
  if redis.call('HSET', parent_row .. ':processed', id, result) == 1 and not counted then
    -- [release_parent]
    -- [end]
  end
end
