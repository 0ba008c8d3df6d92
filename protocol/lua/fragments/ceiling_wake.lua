-- Expects p, parked (more than 0), ceiling (jobs in active at most, more than 0) and before (how many there were). Workers that wait
-- for a slot are told of those that this call has freed and left: a hint each as long as there is work, no more than they lack.
local members = redis.call('ZCARD', p .. 'active')
local open = math.min(before - members, math.ceil(ceiling - members))
if open > 0 and redis.call('LLEN', p .. 'ring') == 0 then open = math.min(open, redis.call('ZCARD', p .. 'pending')) end
if open > 0 then
  local lacking = math.min(open, 64, parked - redis.call('LLEN', p .. 'wake'))
  if lacking > 0 then
    local hints = {}
    for i = 1, lacking do hints[i] = '1' end
    if redis.call('LPUSH', p .. 'wake', unpack(hints)) > 64 then redis.call('LTRIM', p .. 'wake', 0, 63) end
  end
end
