-- Expects p, log, row and id of a row that exists; sets found: the job is in a set, or waits for its children. One that was in no
-- set is put back where its state says: what is scheduled is due at once, for its time is lost; what is active has a
-- lapsed lease, so that the sweep counts it. A row without a state that has a set stays as it is.
local fields = redis.call('HMGET', row, 'state', 'group')
local state, g = fields[1], fields[2]
local home = state == 'pending' and (g and 'g:' .. g .. ':pending' or 'pending') or state == 'active' and 'active'
    or state == 'scheduled' and 'schedule' or state == 'dead' and 'dead'
local found = state == 'awaiting_children' or home and redis.call('ZSCORE', p .. home, id)
if not found then
  for _, set in ipairs({'pending', 'active', 'schedule', 'dead', g and 'g:' .. g .. ':pending' or nil}) do
    found = found or redis.call('ZSCORE', p .. set, id)
  end
  if home and not found then
    found = true
    local made, act, freed, waiting = 1, nil, 0, redis.call('ZCARD', p .. home) > 0
    redis.call('ZADD', p .. home, 0, id)
    redis.call('HINCRBY', p .. 'metrics:repaired', 'count', 1)
    if log then log('put_back', id, redis.call('HGET', row, 'attempts'), g, 'state', state) end
    if home == 'pending' then
      -- [flat_wake]
      -- [end]
    elseif home == 'schedule' then
      -- [due_wake]
      -- [end]
    elseif state == 'pending' then
      -- [ring_return]
      -- [end]
    end
  end
end
