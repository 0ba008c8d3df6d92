#!lua flags=allow-oom
-- upkeep (extension): whose turn the periodic work of the queue is. The worker that asks first after a period is over is told to
-- do it, and the period begins anew; one that dies before it has done it leaves the work to the next period. Nobody is told to
-- do what is not there to do: no lease that has lapsed, no outbox, no repeats. With the sweep's turn the counts of lanes are held
-- against active, up to 100 of them, any when there are more, and none while active has more than 300 members: lane_mend repairs.
-- KEYS[1] upkeep              KEYS[2] active         KEYS[3] flow:outbox         KEYS[4] repeat      KEYS[5] gactive
-- ARGV[1] period of the sweep in ms   ARGV[2] of the outbox   ARGV[3] of the repeats   ARGV[4] row prefix emq:{q}:job:
-- Replies: [1 or 0 for the sweep; for the outbox; for the repeats; ms until the next of the three is due; lanes whose count is not
-- what active holds of them]
-- Refusals: ERR periods must be positive numbers of ms
local upkeep = KEYS[1]
local periods, longest = {}, 0
for i = 1, 3 do
  local period = tonumber(ARGV[i])
  if not period or not (period > 0) or period == math.huge then
    return redis.error_reply('ERR periods must be positive numbers of ms')
  end
  periods[i] = period
  longest = math.max(longest, period)
end

-- [clock]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- [end]
local function there(i)
  if i > 1 then return redis.call('EXISTS', KEYS[i + 1]) == 1 end
  local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2]) <= now
end
local function lanes_that_differ()
  local said = redis.call('HRANDFIELD', KEYS[5], 100, 'WITHVALUES')
  local differ, counts = {}, {}
  if #said == 0 or redis.call('ZCARD', KEYS[2]) > 300 then return differ end
  for _, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, 299)) do
    local g = redis.pcall('HGET', ARGV[4] .. id, 'group')
    if type(g) == 'string' then counts[g] = (counts[g] or 0) + 1 end
  end
  for i = 1, #said, 2 do
    if said[i + 1] ~= tostring(counts[said[i]] or 0) then differ[#differ + 1] = said[i] end
  end
  return differ
end
local names = {'sweep', 'outbox', 'repeats'}
local last = redis.call('HMGET', upkeep, unpack(names))
local reply, done, wait = {}, {}, nil
reply[5] = {}
for i, name in ipairs(names) do
  local elapsed = now - (tonumber(last[i]) or 0)
  local turn = elapsed < 0 or elapsed >= periods[i]   -- a clock that was set back does not stop the work
  if turn then
    done[#done + 1] = name
    done[#done + 1] = now
  end
  reply[i] = turn and there(i) and 1 or 0
  if turn and name == 'sweep' then reply[5] = lanes_that_differ() end
  local left = turn and periods[i] or periods[i] - elapsed
  wait = math.min(wait or left, left)
end
if #done > 0 then
  redis.call('HSET', upkeep, unpack(done))
  redis.call('PEXPIRE', upkeep, math.ceil(4 * longest))
end
reply[4] = math.ceil(wait)
return reply
