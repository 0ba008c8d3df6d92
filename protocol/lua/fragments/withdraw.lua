-- Expects p, id and g. Takes the job out of active, or, when its lease has lapsed, out of where it waits for the next claim.
local active = redis.call('ZREM', p .. 'active', id) == 1
local withdrawn = active
if g then
  if active then
    local freed = 1
    -- [free_slots]
    -- [end]
    local waiting = redis.call('ZCARD', p .. 'g:' .. g .. ':pending') > 0
    if waiting then
      -- [ring_return]
      -- [end]
    end
  else
    withdrawn = redis.call('ZREM', p .. 'g:' .. g .. ':pending', id) == 1
    if withdrawn and redis.call('ZCARD', p .. 'g:' .. g .. ':pending') == 0 then
      redis.call('LREM', p .. 'ring', 0, g)
    end
  end
end
if not withdrawn then withdrawn = redis.call('ZREM', p .. 'pending', id) == 1 end
