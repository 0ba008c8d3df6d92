-- stream_publish (extension): appends records that carry a key of their caller's, in order, each unless its key was used within the window:
-- then the id of the record that was appended under it is told, and nothing is written. Stops at the first that the stream refuses. The call
-- may be sent again: what it has appended is found under its keys. Without allow-oom: a full server refuses with OOM before anything is written.
-- KEYS[1] stream
-- KEYS[2] once, hash: caller's key -> record id
-- KEYS[3] once-ages, zset: caller's key, scored by when it was used (Unix ms, server clock)
-- ARGV[1] how many keys are kept, 1 to 10000000; the oldest go first
-- ARGV[2] for how long in ms, 0: however long; both keys expire when nothing was appended for so long
-- ARGV[3..] a record: caller's key, entry id, number of texts that follow (even, 2 to 996), `id`, record id, field, value...
-- Replies: [done, '', '', '', ids], all records of the call; or, when fewer,
--   [done, top id of the stream, highest id ever deleted from it, text of the refusal, ids of those done]
-- Refusals: ERR a record of stream_publish is malformed; WRONGTYPE
local key, once, ages, count, at = KEYS[1], KEYS[2], KEYS[3], 0, 3
local first, ids = {}, {}
local most, age = tonumber(ARGV[1] or ''), tonumber(ARGV[2] or '')
local malformed = 'ERR a record of stream_publish is malformed'
if not most or most ~= math.floor(most) or most < 1 or most > 10000000 or not age or age ~= math.floor(age) or age < 0
    or age > 9007199254740991 then
  return redis.error_reply(malformed)
end
while at <= #ARGV do
  local texts = tonumber(ARGV[at + 2] or '')
  if ARGV[at] == '' or not texts or texts ~= math.floor(texts) or texts < 2 or texts > 996 or texts % 2 == 1
      or at + 2 + texts > #ARGV or ARGV[at + 3] ~= 'id' then
    return redis.error_reply(malformed)
  end
  count = count + 1
  first[count] = at
  at = at + (3 + texts)
end
if count == 0 or count > 1000 then return redis.error_reply(malformed) end
-- Each of these refuses a key of another kind.
redis.call('XLEN', key)
redis.call('HLEN', once)
redis.call('ZCARD', ages)
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local done, why = count, nil
for i = 1, count do
  at = first[i]
  local id
  local used = redis.call('ZSCORE', ages, ARGV[at])
  if used and (age == 0 or tonumber(used) > now - age) then id = redis.call('HGET', once, ARGV[at]) end
  if not id then
    local text = at + 3
    local answer = redis.pcall('XADD', key, ARGV[at + 1], unpack(ARGV, text, math.min(text + 995, at + 2 + ARGV[at + 2])))
    if type(answer) == 'table' and answer.err then
      if i == 1 and not string.find(answer.err, 'XADD', 1, true) then return answer end
      done, why = i - 1, answer.err
      break
    end
    id = ARGV[at + 4]
    redis.call('HSET', once, ARGV[at], id)
    redis.call('ZADD', ages, now, ARGV[at])
  end
  ids[i] = id
end

local function forget(keys)
  if #keys == 0 then return end
  redis.call('HDEL', once, unpack(keys, 1, math.min(#keys, 998)))
  redis.call('ZREM', ages, unpack(keys, 1, math.min(#keys, 998)))
end
if done > 0 then
  -- More go than come: a window that was made smaller is reached in a few calls.
  if age > 0 then forget(redis.call('ZRANGEBYSCORE', ages, '-inf', now - age, 'LIMIT', 0, 998)) end
  local over = redis.call('ZCARD', ages) - most
  if over > 0 then forget(redis.call('ZRANGE', ages, 0, math.min(over, 998) - 1)) end
  for _, window in ipairs({once, ages}) do
    if age > 0 then
      redis.call('PEXPIRE', window, age)
    else
      redis.call('PERSIST', window)
    end
  end
end
if not why then return {done, '', '', '', ids} end
local top, deleted = '0-0', '0-0'
if redis.call('EXISTS', key) == 1 then
  local info = redis.call('XINFO', 'STREAM', key)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then top = info[i + 1] end
    if info[i] == 'max-deleted-entry-id' then deleted = info[i + 1] end
  end
end
return {done, top, deleted, why, ids}
