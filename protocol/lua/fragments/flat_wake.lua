-- Expects p and made, the flat jobs this call has made claimable: a hint for each, no more than parked workers lack.
local parked = redis.call('ZCARD', p .. 'parked')
if parked > 0 then
  local lacking = math.min(made, 64, parked - redis.call('LLEN', p .. 'wake'))
  if lacking > 0 then
    local hints = {}
    for i = 1, lacking do hints[i] = '1' end
    if redis.call('LPUSH', p .. 'wake', unpack(hints)) > 64 then redis.call('LTRIM', p .. 'wake', 0, 63) end
  end
end
