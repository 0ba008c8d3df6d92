-- Expects p, id, keep (the row's field) and reason. The job is dead, and no settle has told: what became of a job that asked for it
-- is kept for so long, and its id is published for who waits.
local kept_for = tonumber(keep)
if kept_for and kept_for >= 1 then
  redis.call('SET', p .. 'result:' .. id, 'dead\0' .. reason, 'PX', math.floor(math.min(kept_for, 1000000000000)))
  redis.pcall('PUBLISH', p .. 'ended', id)
end
