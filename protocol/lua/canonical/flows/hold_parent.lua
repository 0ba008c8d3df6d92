-- hold_parent: admits a parent that waits, in no set, for children that are admitted after it, here or in other queues. Without
-- allow-oom: a full server refuses it with OOM before anything is written.
-- KEYS[1] row of the parent   KEYS[2] its :dependencies
-- ARGV[1] parent id           ARGV[2] payload        ARGV[3] n, the number of children
-- optional, of a node that is itself a child:
-- ARGV[4] its parent's id or empty    ARGV[5] that one's queue when it is another one, else empty    ARGV[6] policy: `fp` or `id`
-- optional: ARGV[7..] ids of the n children; then, optional, pairs of name and value, how the job is run, as of admit
-- Replies: 1 held; 0 the row is there already, of the same place in a flow: nothing is changed; -1 it is another job's.
--   With ids of children the same in a list, followed, after 0, by those children that have ended and are recorded: whoever goes
--   on with an admission that was broken off leaves them out.
-- Refusals: EMQKIND job id must be JOB-namespaced; ERR number of children must be a positive integer; ERR policy must be fp or id;
--   ERR fields of a flow are malformed
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

local children, now, run_names = math.min(#ARGV, 6 + n), nil, nil
if children < #ARGV then
  -- [run_fault]
  -- Expects a local run_names. Sets it to the names of how a job is run, each with its field of the row, and makes run_fault(first, last):
  -- whether something is wrong with the names and values ARGV[first..last], and whether `expire` is among them.
  run_names = {
    max_attempts = 'max_attempts', backoff = 'backoff', timeout = 'timeout', keep = 'keep', traceparent = 'traceparent',
    expire = 'expires_at', expires_at = 'expires_at'
  }
  local function run_fault(first, last)
    local expires = false
    for i = first, last, 2 do
      local name, value = ARGV[i], ARGV[i + 1] or ''
      if not run_names[name] then return true end
      if name == 'backoff' then
        if value == '' or #value > 64 then return true end
      elseif name == 'traceparent' then
        if #value ~= 55 then return true end
      elseif not string.find(value, '^[1-9][0-9]*$') or (#value > 15 and tonumber(value) > 9007199254740991) then
        return true
      elseif name == 'expire' then
        expires = true
      end
    end
    return false, expires
  end
  -- [end]
  if #ARGV - children > 16 or run_fault(children + 1, #ARGV) then
    return redis.error_reply('ERR fields of a flow are malformed')
  end
  local clock = redis.call('TIME')
  now = clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local verdict, answer = 1, {1}
if call('EXISTS', row) == 1 then
  local link = call('HMGET', row, 'parent', 'parent_queue')
  local same = (link[1] or '') == up and (link[2] or '') == up_queue
  verdict = same and call('EXISTS', dependencies) == 1 and 0 or -1
  answer[1] = verdict
  for first = 7, verdict == 0 and children or 0, 1000 do
    local last = math.min(first + 999, children)
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
  if now then
    local fields, first, last = {}, children + 1, #ARGV
    -- [run_fields]
    -- Expects fields, run_names, first and last (names and values ARGV[first..last], checked), and now when `expire` is among them: they
    -- go into fields, a duration until expiry as the instant it ends.
    local size = #fields
    for i = first, last, 2 do
      local name, value = ARGV[i], ARGV[i + 1]
      if name == 'expire' then value = string.format('%.0f', math.min(now + value, 9007199254740991)) end
      fields[size + 1] = run_names[name]
      fields[size + 2] = value
      size = size + 2
    end
    -- [end]
    call('HSET', row, unpack(fields, 1, math.min(#fields, 40)))
  end
  call('SET', dependencies, string.format('%d', n))
  call('DEL', row .. ':processed', row .. ':failed', row .. ':unsuccessful')
end
if #ARGV < 7 then return verdict end
return answer
