-- enqueue_flow_child: admits one child of a held parent, ready to claim, in its own queue. Without allow-oom: a full server refuses
-- it with OOM before anything is written.
-- KEYS[1] row of the child    KEYS[2] pending of the child's queue
-- ARGV[1] child id            ARGV[2] payload        ARGV[3] parent id   ARGV[4] the parent's queue when it is another one, else empty
-- ARGV[5] policy: `fp` or `id`; absent: the host writes the field parent_policy, as canonical ones do
-- Replies: 1 admitted; 0 the row is there already, a child of that parent: nothing is changed; -1 it is another job's.
-- Refusals: EMQKIND job id must be JOB-namespaced; ERR policy must be fp or id
local row, pending = KEYS[1], KEYS[2]
local id, parent, parent_queue, policy = ARGV[1], ARGV[3], ARGV[4] or '', ARGV[5]
local call = redis.call

if string.sub(id, 1, 3) ~= 'JOB' then return redis.error_reply('EMQKIND job id must be JOB-namespaced') end
if policy and policy ~= 'fp' and policy ~= 'id' then return redis.error_reply('ERR policy must be fp or id') end
if call('EXISTS', row) == 1 then
  local link = call('HMGET', row, 'parent', 'parent_queue')
  return link[1] == parent and (link[2] or '') == parent_queue and 0 or -1
end

local fields = {'state', 'pending', 'attempts', '0', 'payload', ARGV[2], 'parent', parent}
if parent_queue ~= '' then
  fields[#fields + 1] = 'parent_queue'
  fields[#fields + 1] = parent_queue
end
if policy then
  fields[#fields + 1] = 'parent_policy'
  fields[#fields + 1] = policy
end
call('HSET', row, unpack(fields))
call('ZADD', pending, 0, id)

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
