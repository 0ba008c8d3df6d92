#!lua flags=allow-oom
-- lock_clear: takes the markers of lock_mark off jobs that a worker no longer holds. A marker with another token is another holder's.
-- KEYS[1] active
-- ARGV[1] base emq:{q}:
-- ARGV[2..] job id, token; again and again
-- Replies: how many markers were deleted.
-- Refusals: ERR a token is missing
local p = ARGV[1]
if #ARGV % 2 ~= 1 then return redis.error_reply('ERR a token is missing') end

local cleared = 0
for i = 2, #ARGV, 2 do
  local row, token = p .. 'job:' .. ARGV[i], ARGV[i + 1]
  if redis.call('GET', row .. ':lock') == token then cleared = cleared + redis.call('DEL', row .. ':lock') end
  if redis.call('HGET', row, 'lock') == token then redis.call('HDEL', row, 'lock') end
end
return cleared
