#!lua flags=allow-oom
-- gweight: sets how many jobs of a lane one turn of gwclaim takes. The ring is not touched.
-- KEYS[1] gweight
-- ARGV[1] group               ARGV[2] weight
-- Replies: 1.
-- Refusals: ERR weight must be a positive integer
local weight = tonumber(ARGV[2])
if not weight or not (weight >= 1) or weight % 1 ~= 0 then
  return redis.error_reply('ERR weight must be a positive integer')
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
