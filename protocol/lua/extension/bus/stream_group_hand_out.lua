#!lua flags=allow-oom
-- stream_group_hand_out (extension): hands an entry that a consumer has in hand out once more, which counts, if it is still its own. XCLAIM by
-- itself takes it from whoever has it.
-- KEYS[1] stream
-- ARGV[1] group
-- ARGV[2] consumer
-- ARGV[3] entry id
-- Replies: [entry id, fields]; 0 another consumer has it; 1 it was acknowledged, or is not in the stream any more
-- Refusals: ERR what is to be handed out is malformed; NOGROUP; WRONGTYPE
local key, group, consumer, id = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if #ARGV ~= 3 or group == '' or consumer == '' or not string.match(id, '^%d+%-%d+$') then
  return redis.error_reply('ERR what is to be handed out is malformed')
end
local pending = redis.pcall('XPENDING', key, group, id, id, 1)
if pending.err then return pending end
if not pending[1] then return 1 end
if pending[1][2] ~= consumer then return 0 end
local claimed = redis.call('XCLAIM', key, group, consumer, '0', id)
return claimed[1] or 1
