#!lua flags=allow-oom
-- stream_group_remove (extension): removes a consumer group, or one consumer of it, unless that would lose entries: what is pending belongs
-- to nobody when its consumer is removed, and is handed out no more.
-- KEYS[1] stream
-- ARGV[1] group
-- ARGV[2] consumer, empty for the whole group
-- ARGV[3] `1`: also with entries pending; else `0`
-- Replies: [1 removed | 0 not removed, entries pending]; [0, 0] when there is no such stream, group or consumer
-- Refusals: ERR a removal is malformed; WRONGTYPE
local key, group, consumer, force = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if #ARGV ~= 3 or group == '' or (force ~= '0' and force ~= '1') then return redis.error_reply('ERR a removal is malformed') end
if redis.call('EXISTS', key) == 0 then return {0, 0} end
local groups = redis.pcall('XINFO', 'GROUPS', key)
if groups.err then return groups end
local function value(row, name)
  for i = 1, #row, 2 do
    if row[i] == name then return row[i + 1] end
  end
end
local pending
for _, row in ipairs(groups) do
  if value(row, 'name') == group then pending = value(row, 'pending') end
end
if pending and consumer ~= '' then
  pending = nil
  for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', key, group)) do
    if value(row, 'name') == consumer then pending = value(row, 'pending') end
  end
end
pending = tonumber(pending)
if not pending then return {0, 0} end
if pending ~= 0 and force == '0' then return {0, pending} end
if consumer == '' then
  redis.call('XGROUP', 'DESTROY', key, group)
else
  redis.call('XGROUP', 'DELCONSUMER', key, group, consumer)
end
return {1, pending}
