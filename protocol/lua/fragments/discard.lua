-- Expects p, id, expected (the state of the jobs of the set it was taken out of), reason, made and log. Deletes the job; the
-- parent of a flow child is told as if the child had died. A job that is at home in another set keeps its row.
local row = p .. 'job:' .. id
local fields = redis.call('HMGET', row, 'state', 'group', 'parent', 'parent_queue', 'parent_policy', 'attempts')
local state, g = fields[1], fields[2]
local misplaced = false
if state ~= expected then
  -- [elsewhere]
  -- [end]
end
if not misplaced then
  if log and fields[1] then log('removed', id, fields[6], g, 'reason', reason) end
  redis.call('DEL', row, row .. ':logs', row .. ':lock')
  local parent, parent_queue, policy = fields[3], fields[4], fields[5] == 'id' and 'id' or 'fp'
  if parent then
    -- [parent_death]
    -- [end]
  end
end
