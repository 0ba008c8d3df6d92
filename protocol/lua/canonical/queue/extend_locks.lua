#!lua flags=allow-oom
-- extend_locks: extend_lock for all jobs that a worker holds, with one deadline.
-- KEYS[1] active
-- ARGV[1] base emq:{q}:       ARGV[2] lease in ms    ARGV[3..] id, token, id, token...
-- Replies: the ids that were not extended, in the order given: gone, claimed again, or no longer in active.
-- Refusals: ERR lease must be a positive number of ms; ERR a token is missing
local active = KEYS[1]
local p = ARGV[1]
local lease = tonumber(ARGV[2])
if not lease or not (lease > 0) then return redis.error_reply('ERR lease must be a positive number of ms') end
if #ARGV % 2 == 1 then return redis.error_reply('ERR a token is missing') end

-- [clock]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- [end]
local failed = {}
for first = 3, #ARGV, 1000 do
  local ids, held = {}, {}
  local last = math.min(first + 999, #ARGV)
  for i = first, last, 2 do ids[#ids + 1] = ARGV[i] end
  local deadlines = redis.call('ZMSCORE', active, unpack(ids))
  for n, id in ipairs(ids) do
    if deadlines[n] and redis.call('HGET', p .. 'job:' .. id, 'attempts') == ARGV[first + 2 * n - 1] then
      held[#held + 1] = now + lease
      held[#held + 1] = id
    else
      failed[#failed + 1] = id
    end
  end
  if #held > 0 then redis.call('ZADD', active, 'XX', unpack(held)) end
end
return failed
