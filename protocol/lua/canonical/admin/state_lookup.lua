#!lua flags=no-writes
-- state_lookup: where a job is, told by the sets, not by its row. A grouped job that waits in its lane is pending too.
-- KEYS[1] pending             KEYS[2] active         KEYS[3] schedule    KEYS[4] dead            KEYS[5] row of the job
-- ARGV[1] job id
-- Replies: `pending`, `active`, `scheduled`, `dead`, `awaiting_children`, `unknown` (a row in no set) or `absent`.
local states = {'pending', 'active', 'scheduled', 'dead'}
local id = ARGV[1]

for i, state in ipairs(states) do
  if redis.call('ZSCORE', KEYS[i], id) then return state end
end
local fields = redis.call('HMGET', KEYS[5], 'state', 'group')
if not fields[1] then return 'absent' end
if fields[1] == 'awaiting_children' then return fields[1] end
if fields[2] then
  local lane = string.sub(KEYS[1], 1, -8) .. 'g:' .. fields[2] .. ':pending'
  if redis.call('ZSCORE', lane, id) then return 'pending' end
end
return 'unknown'
