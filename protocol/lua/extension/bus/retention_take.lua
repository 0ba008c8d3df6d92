#!lua flags=allow-oom
-- retention_take (extension): which of these streams it is the caller's turn to sweep. A stream is one caller's for a period of the
-- caller's own; one that dies before it has swept leaves it to whoever asks after that. There is no leader to be lost.
-- KEYS[1] retention:swept
-- ARGV[1] period in ms        ARGV[2..] names of streams, 1 to 400
-- Replies: [0 or 1 for each name]
-- Refusals: ERR an argument of retention_take is malformed
local swept, period = KEYS[1], tonumber(ARGV[1] or '')
if not period or not (period > 0) or period > 31536000000 or #ARGV < 2 or #ARGV > 401 then
  return redis.error_reply('ERR an argument of retention_take is malformed')
end

-- [clock]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- [end]
local last = redis.call('HMGET', swept, unpack(ARGV, 2, math.min(#ARGV, 401)))
local reply, taken = {}, {}
for i = 2, #ARGV do
  local elapsed = now - (tonumber(last[i - 1]) or 0)
  -- A clock that was set back stops nobody.
  local turn = elapsed < 0 or elapsed >= period
  reply[i - 1] = turn and 1 or 0
  if turn then
    taken[#taken + 1] = ARGV[i]
    taken[#taken + 1] = string.format('%.0f', now)
  end
end
if #taken > 0 then
  redis.call('HSET', swept, unpack(taken, 1, math.min(#taken, 800)))
  -- Names that nobody asks for any more go with all the others, once nobody asks at all.
  redis.call('PEXPIRE', swept, math.max(3600000, math.ceil(4 * period)))
end
return reply
