#!lua flags=allow-oom
-- cache_load_keep (extension): the holder of the right to load a row is still loading.
-- KEYS[1] lease eccx:{T}:load:<id>
-- ARGV[1] token of the caller     ARGV[2] the lease in ms, from now on
-- Replies: 1 renewed; 0 it is not the caller's (any more).
-- Refusals: ERR lease must be a positive integer of ms; WRONGTYPE
local lease = KEYS[1]
if not string.find(ARGV[2], '^[1-9][0-9]*$') or #ARGV[2] > 15 then
  return redis.error_reply('ERR lease must be a positive integer of ms')
end
if redis.call('GET', lease) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', lease, ARGV[2])
