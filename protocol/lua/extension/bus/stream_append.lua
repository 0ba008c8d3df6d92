-- stream_append (extension): appends records to a stream in order and stops at the first that it refuses, so that none stands before
-- an earlier one of its appender. A record that is on the stream already (its entry id, its record id) counts as appended: the call may
-- be sent again. Without allow-oom: a full server refuses with OOM before anything is written.
-- KEYS[1] stream
-- ARGV[1] entry id, a space, record id of the record sent before these, empty for none: when it is not on the stream, nothing is appended.
--   An entry that somebody else made under the same entry id is not it
-- ARGV[2] how many later records of the appender follow, 0 to 4096; empty: neither these nor those of the call can be there already,
--   but by this call itself, and none is looked for
-- ARGV[3..] so many of them: entry id, a space, record id
-- ARGV[..] a record: entry id, number of texts that follow (even, 2 to 996), `id`, record id, field, value...
-- Replies: [appended], all records of the call; or, when fewer,
--   [appended, top id of the stream, highest id ever deleted alone, text of the refusal, id below which entries may have been trimmed,
--   [places in the call of records behind the refused one that are there], place in ARGV[3..] of the last that is there, or 0];
--   appended is -1 when ARGV[1] was missed
-- Refusals: ERR a record of stream_append is malformed; WRONGTYPE
local key, count = KEYS[1], 0
local first = {}
local before, receipt = string.match(ARGV[1], '^(%S+) (%S+)$')
if ARGV[1] ~= '' and not before then return redis.error_reply('ERR a record of stream_append is malformed') end
local looks = ARGV[2] ~= ''
local later = looks and tonumber(ARGV[2] or '') or 0
if not ARGV[2] or (looks and not string.find(ARGV[2], '^%d+$')) or later > 4096 then
  return redis.error_reply('ERR a record of stream_append is malformed')
end
for i = 3, 2 + later do
  if not string.find(ARGV[i] or '', '^%S+ %S+$') then
    return redis.error_reply('ERR a record of stream_append is malformed')
  end
end
local at = 3 + later
while at <= #ARGV do
  local texts = tonumber(ARGV[at + 1] or '')
  if not texts or texts ~= math.floor(texts) or texts < 2 or texts > 996 or texts % 2 == 1 or at + 1 + texts > #ARGV
      or ARGV[at + 2] ~= 'id' then
    return redis.error_reply('ERR a record of stream_append is malformed')
  end
  count = count + 1
  first[count] = at
  at = at + (2 + texts)
end

local function stopped(appended, why, places, last)
  local top, deleted, trimmed = '0-0', '0-0', '0-0'
  if redis.call('EXISTS', key) == 1 then
    local reply, info = redis.call('XINFO', 'STREAM', key), {}
    for i = 1, #reply, 2 do info[reply[i]] = reply[i + 1] end
    top, deleted = info['last-generated-id'], info['max-deleted-entry-id'] or deleted
    -- A trim does not move max-deleted-entry-id.
    if info['entries-added'] and info['entries-added'] ~= info['length'] then
      trimmed = info['length'] == 0 and top or info['first-entry'][1]
    end
  end
  return {appended, top, deleted, why, trimmed, places, last}
end

local function is_there(id, record)
  local entry = redis.call('XRANGE', key, id, id, 'COUNT', 1)[1]
  return entry and entry[2][2] == record
end

-- What was sent before its connection was lost may stand though an earlier record does not.
local function stopped_at(refused, why)
  local places = {}
  if not looks then return stopped(refused - 1, why, places, 0) end
  for i = refused + 1, count do
    if is_there(ARGV[first[i]], ARGV[first[i] + 3]) then places[#places + 1] = i end
  end
  for i = later, 1, -1 do
    local id, record = string.match(ARGV[2 + i], '^(%S+) (%S+)$')
    if is_there(id, record) then return stopped(refused - 1, why, places, i) end
  end
  return stopped(refused - 1, why, places, 0)
end

if before and not is_there(before, receipt) then return stopped(-1, '', {}, 0) end
for i = 1, count do
  at = first[i]
  local text = at + 2
  local answer = redis.pcall('XADD', key, ARGV[at], unpack(ARGV, text, math.min(text + 995, at + 1 + ARGV[at + 1])))
  if type(answer) == 'table' and answer.err then
    if i == 1 and not string.find(answer.err, 'XADD', 1, true) then return answer end
    if not is_there(ARGV[at], ARGV[at + 3]) then return stopped_at(i, answer.err) end
  end
end
return {count}
