-- Expects p and call. Checks ARGV[2..4], looks at the gates and the sets; sets most, lease, order, whole, find_parents and what
-- the gates said; waiting and turns, what the two sets hold now.
local most, lease, order = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
if not most or not (most >= 1) then return redis.error_reply('ERR most must be a positive integer') end
if not lease or not (lease > 0) then return redis.error_reply('ERR lease must be a positive number of ms') end
local find_parents = order == 'flp' or order == 'lfp' or order == 'fp'
if find_parents then order = string.sub(order, 1, -2) end
local whole = order == 'g'   -- a turn gives all that is wanted, whatever the lane's weight
if whole then order = 'l' end
if order ~= 'f' and order ~= 'l' and order ~= 'fl' and order ~= 'lf' then
  return redis.error_reply('ERR order must be f, l, g, fl or lf')
end
most = math.min(math.floor(most), 1000)
local settings = call('HMGET', p .. 'meta', 'paused', 'concurrency', 'max', 'duration', 'log_claims')
local ceiling, window, span = tonumber(settings[2]) or 0, tonumber(settings[3]) or 0, tonumber(settings[4]) or 0
local used = window > 0 and tonumber(call('GET', p .. 'limiter')) or 0
local waiting = order ~= 'l' and call('ZCARD', p .. 'pending') or 0
local turns = order ~= 'f' and call('LLEN', p .. 'ring') or 0
call('ZCARD', p .. 'dead')
