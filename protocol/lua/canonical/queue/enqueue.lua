-- enqueue: admits one flat job, ready to claim. Without allow-oom: a full server refuses it with OOM before anything is written.
-- KEYS[1] row of the job      KEYS[2] pending
-- ARGV[1] job id              ARGV[2] payload
-- Replies: 1 admitted; 0 the row exists, in whatever state: nothing is changed.
-- Refusals: EMQKIND job id must be JOB-namespaced
local row, pending = KEYS[1], KEYS[2]
local id = ARGV[1]

if string.sub(id, 1, 3) ~= 'JOB' then return redis.error_reply('EMQKIND job id must be JOB-namespaced') end
if redis.call('EXISTS', row) == 1 then return 0 end
redis.call('HSET', row, 'state', 'pending', 'attempts', '0', 'payload', ARGV[2])
redis.call('ZADD', pending, 0, id)

local p = string.sub(pending, 1, -8)
local made = 1
-- [flat_wake]
-- Expects p and made, the flat jobs this call has made claimable: a hint for each, no more than parked workers lack.
local parked = redis.call('ZCARD', p .. 'parked')
if parked > 0 then
  local lacking = math.min(made, 64, parked - redis.call('LLEN', p .. 'wake'))
  if lacking > 0 then
    local hints = {}
    for i = 1, lacking do hints[i] = '1' end
    redis.call('LPUSH', p .. 'wake', unpack(hints))
    redis.call('LTRIM', p .. 'wake', 0, 63)
  end
end
-- [end]
return 1
