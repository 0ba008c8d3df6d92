#!lua flags=no-writes
-- is_maxed: is the queue at its ceiling of jobs in flight? A ceiling that is no number counts as absent.
-- KEYS[1] meta                KEYS[2] active
-- ARGV: none
-- Replies: 0 there is room.
-- Refusals: EMQRATE at concurrency ceiling
local ceiling = tonumber(redis.call('HGET', KEYS[1], 'concurrency')) or 0
if ceiling > 0 and redis.call('ZCARD', KEYS[2]) >= ceiling then
  return redis.error_reply('EMQRATE at concurrency ceiling')
end
return 0
