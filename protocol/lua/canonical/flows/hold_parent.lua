-- hold_parent: admits a parent that waits, in no set, for children that are admitted after it, here or in other queues. Without
-- allow-oom: a full server refuses it with OOM before anything is written.
-- KEYS[1] row of the parent   KEYS[2] its :dependencies
-- ARGV[1] parent id           ARGV[2] payload        ARGV[3] n, the number of children
-- optional, of a node that is itself a child:
-- ARGV[4] its parent's id or empty    ARGV[5] that one's queue when it is another one, else empty    ARGV[6] policy: `fp` or `id`
-- optional: ARGV[7..] ids of the children
-- Replies: 1 held; 0 the row is there already, of the same place in a flow: nothing is changed; -1 it is another job's.
--   With ids of children the same in a list, followed, after 0, by those children that have ended and are recorded: whoever goes
--   on with an admission that was broken off leaves them out.
-- Refusals: EMQKIND job id must be JOB-namespaced; ERR number of children must be a positive integer; ERR policy must be fp or id
-- What a former parent of that id has left in :processed, :failed and :unsuccessful goes.
local row, dependencies = KEYS[1], KEYS[2]
local up, up_queue, policy = ARGV[4] or '', ARGV[5] or '', ARGV[6] or ''
local call = redis.call

if string.sub(ARGV[1], 1, 3) ~= 'JOB' then return redis.error_reply('EMQKIND job id must be JOB-namespaced') end
local n = tonumber(ARGV[3])
if not n or n < 1 or n ~= math.floor(n) then
  return redis.error_reply('ERR number of children must be a positive integer')
end
if up ~= '' and policy ~= 'fp' and policy ~= 'id' then return redis.error_reply('ERR policy must be fp or id') end

local verdict, answer = 1, {1}
if call('EXISTS', row) == 1 then
  local link = call('HMGET', row, 'parent', 'parent_queue')
  local same = (link[1] or '') == up and (link[2] or '') == up_queue
  verdict = same and call('EXISTS', dependencies) == 1 and 0 or -1
  answer[1] = verdict
  for first = 7, verdict == 0 and #ARGV or 0, 1000 do
    local last = math.min(first + 999, #ARGV)
    local ended = {}
    for _, records in ipairs({':processed', ':unsuccessful', ':failed'}) do
      for i, value in ipairs(call('HMGET', row .. records, unpack(ARGV, first, last))) do
        if value then ended[i] = true end
      end
    end
    for i = 1, last - first + 1 do
      if ended[i] then answer[#answer + 1] = ARGV[first + i - 1] end
    end
  end
else
  if up == '' then
    call('HSET', row, 'state', 'awaiting_children', 'attempts', '0', 'payload', ARGV[2])
  elseif up_queue == '' then
    call('HSET', row, 'state', 'awaiting_children', 'attempts', '0', 'payload', ARGV[2], 'parent', up, 'parent_policy', policy)
  else
    call('HSET', row, 'state', 'awaiting_children', 'attempts', '0', 'payload', ARGV[2], 'parent', up, 'parent_policy', policy,
      'parent_queue', up_queue)
  end
  call('SET', dependencies, string.format('%d', n))
  call('DEL', row .. ':processed', row .. ':failed', row .. ':unsuccessful')
end
if #ARGV < 7 then return verdict end
return answer
