#!lua flags=allow-oom
-- stream_group_keep (extension): claims again what a consumer has in hand, and only what is still its own. XCLAIM by itself takes an entry
-- from whoever has it: a call that reaches the server late would take back what another consumer has claimed meanwhile.
-- KEYS[1] stream
-- ARGV[1] group
-- ARGV[2] consumer
-- ARGV[3] idle time that the entries have afterwards, ms: 0 keeps them from others, more lets them go so much earlier
-- ARGV[4...] entry ids, 1 to 100
-- Replies: [[ids that another consumer has, or that were acknowledged], [ids that were the consumer's and are not in the stream any more]]:
-- the rest is kept. What is pending for nobody and not in the stream is in neither: nobody else has handled it here.
-- Refusals: ERR what is to be kept is malformed; NOGROUP; WRONGTYPE
local key, group, consumer, idle = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local malformed = 'ERR what is to be kept is malformed'
if #ARGV < 4 or #ARGV > 103 or group == '' or consumer == '' or not string.match(idle, '^%d+$') or #idle > 12 then
  return redis.error_reply(malformed)
end
for i = 4, #ARGV do
  if not string.match(ARGV[i], '^%d+%-%d+$') then return redis.error_reply(malformed) end
end
local mine, others = {}, {}
for i = 4, #ARGV do
  local id = ARGV[i]
  local pending = redis.pcall('XPENDING', key, group, id, id, 1)
  if pending.err then return pending end
  if pending[1] then
    local into = pending[1][2] == consumer and mine or others
    into[#into + 1] = id
  elseif #redis.call('XRANGE', key, id, id, 'COUNT', 1) > 0 then
    others[#others + 1] = id
  end
end
local count = #mine
if count == 0 then return {others, {}} end
mine[count + 1] = 'IDLE'
mine[count + 2] = idle
mine[count + 3] = 'JUSTID'
local kept, gone = {}, {}
for _, id in ipairs(redis.call('XCLAIM', key, group, consumer, '0', unpack(mine, 1, math.min(count + 3, 103)))) do kept[id] = true end
for i = 1, count do
  if not kept[mine[i]] then gone[#gone + 1] = mine[i] end
end
return {others, gone}
