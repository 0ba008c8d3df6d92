#!lua flags=allow-oom
-- lock_beat: extends the leases of held jobs and the life of their markers.
-- KEYS[1] active
-- ARGV[1] base emq:{q}:       ARGV[2] lease in ms    ARGV[3] time to live of the markers in ms
-- ARGV[4..] job id, token; again and again
-- Replies: the ids that are no longer held: gone, another's, or not active. Their markers are left to expire.
-- Refusals: ERR a token is missing; ERR lease and time to live must be positive numbers of ms
local active, p = KEYS[1], ARGV[1]
local lease, ttl = tonumber(ARGV[2]), tonumber(ARGV[3])
if #ARGV % 2 ~= 1 then return redis.error_reply('ERR a token is missing') end
if not lease or not (lease > 0) or not ttl or not (ttl >= 1) or ttl % 1 ~= 0 then
  return redis.error_reply('ERR lease and time to live must be positive numbers of ms')
end

-- [clock]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- [end]
local lost = {}
for i = 4, #ARGV, 2 do
  local id, token = ARGV[i], ARGV[i + 1]
  local row = p .. 'job:' .. id
  local fields = redis.call('HMGET', row, 'attempts', 'lock')
  if fields[1] == token and redis.call('ZSCORE', active, id) then
    redis.call('ZADD', active, 'XX', now + lease, id)
    redis.call('PEXPIRE', row .. ':lock', ARGV[3])
    if fields[2] then redis.pcall('HPEXPIRE', row, ARGV[3], 'FIELDS', 1, 'lock') end
  else
    lost[#lost + 1] = id
  end
end
return lost
