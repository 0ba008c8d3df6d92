#!lua flags=allow-oom
-- stream_retain (extension): removes from the head of a stream what is beyond the limits and held by no guard. Limits together: what any of
-- them does not keep may go. Guards: consumer groups, for all they have not acknowledged, up to harder limits; the archive's watermark,
-- without exception: where that is above the stream's top nothing goes, for the stream was deleted and begun anew, or has lost its newest
-- entries, and what it holds is in no archive. All is decided and done in one step, so that nothing that a group was just given, or that was
-- just appended, goes.
-- One call removes up to `most` entries a limit; the caller calls again while there is more. Bytes are names and values of the entries,
-- reckoned from the mean of some 30 of them times the length; what the server adds, and groups, are not counted.
-- KEYS[1] stream              KEYS[2] stream:archived
-- ARGV[1] entries to keep     ARGV[2] age in ms to keep, by entry id     ARGV[3] bytes to keep      each empty for no limit
-- ARGV[4] ARGV[5] ARGV[6] the same, beyond which groups hold nothing
-- ARGV[7] `=` exact, `~` whole nodes only                ARGV[8] 1: nothing behind the watermark goes, 0: it is not looked at
-- ARGV[9] most entries, 1000 to 100000                   ARGV[10] `none`, `all` groups, `named`: those that follow
-- ARGV[11..] names of groups; one that does not exist has seen nothing
-- Replies: [removed, 1 when another call would remove more, what holds entries beyond the limits: `` nothing, `groups`, `archive`]
-- Refusals: ERR an argument of stream_retain is malformed; ERR the watermark of the archive is no EVT id; WRONGTYPE
local key, how, mode, most = KEYS[1], ARGV[7], ARGV[10], tonumber(ARGV[9])
local limits = {}
local sound = (how == '=' or how == '~') and (ARGV[8] == '0' or ARGV[8] == '1') and most and most == math.floor(most)
    and most >= 1000 and most <= 100000 and (mode == 'none' or mode == 'all' or mode == 'named')
    and (mode == 'named' or #ARGV == 10) and #ARGV <= 1000
for i = 1, 6 do
  local text = ARGV[i] or '?'
  if text ~= '' and (not string.match(text, '^%d+$') or #text > 15) then sound = false end
  limits[i] = tonumber(text)
end
if not sound then return redis.error_reply('ERR an argument of stream_retain is malformed') end

-- Entry ids are pairs of decimal numbers of up to 20 digits without padding: beyond what a number holds.
local function smaller(a, b)
  if #a ~= #b then return #a < #b end
  for i = 1, #a do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return false
end
local function before(a, b)
  local a_time, a_tail = string.match(a, '^(%d+)-(%d+)$')
  local b_time, b_tail = string.match(b, '^(%d+)-(%d+)$')
  if a_time ~= b_time then return smaller(a_time, b_time) end
  return smaller(a_tail, b_tail)
end
local function behind(id)
  local time, tail = string.match(id, '^(%d+)-(%d+)$')
  if #tail > 15 then return id end   -- keeps one more
  return time .. '-' .. string.format('%.0f', tonumber(tail) + 1)
end
-- The first entry id that may not go. The id's value has 63 bits: it is reckoned in two parts.
local function behind_watermark(mark)
  if #mark ~= 14 or string.sub(mark, 1, 3) ~= 'EVT' then return nil end
  local high, low = 0, 0
  for i = 4, 14 do
    local digit = string.byte(mark, i)
    if digit >= 48 and digit <= 57 then digit = digit - 48
    elseif digit >= 65 and digit <= 90 then digit = digit - 55
    elseif digit >= 97 and digit <= 122 then digit = digit - 61
    else return nil end
    low = low * 62 + digit
    high = high * 62 + math.floor(low / 4194304)
    low = low % 4194304
  end
  return string.format('%.0f-%.0f', high + 1704067200000, low + 1)
end

local archive_guard
if ARGV[8] == '1' then
  local mark = redis.call('GET', KEYS[2])
  archive_guard = mark and behind_watermark(mark) or '0-0'
  if mark and archive_guard == '0-0' then return redis.error_reply('ERR the watermark of the archive is no EVT id') end
end
local first = redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
if not first then return {0, 0, ''} end
local last = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1][1]
if archive_guard and before(behind(last), archive_guard) then
  -- The newest may just have been deleted: the top tells.
  local info = redis.call('XINFO', 'STREAM', key)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' and before(behind(info[i + 1]), archive_guard) then
      archive_guard = '0-0'
      break
    end
  end
end

local group_guard
local function hold(id)
  if not group_guard or before(id, group_guard) then group_guard = id end
end
if mode ~= 'none' then
  local missing = {}
  for i = 11, #ARGV do missing[ARGV[i]] = true end
  for _, row in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    local group = {}
    for i = 1, #row, 2 do group[row[i]] = row[i + 1] end
    if mode == 'all' or missing[group.name] then
      missing[group.name] = nil
      hold(behind(group['last-delivered-id']))
      -- From the first entry on: what is pending and was removed long ago holds nothing.
      local oldest = group.pending ~= 0 and redis.call('XPENDING', key, group.name, first[1], '+', 1)[1]
      if oldest then hold(oldest[1]) end
    end
  end
  if next(missing) then group_guard = '0-0' end
end

-- [clock]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- [end]
local function size_of(entry)
  local size = 1
  for _, text in ipairs(entry[2]) do size = size + #text end
  return size
end
local mean
local function entries_in(bytes)
  if not mean then
    local from, to = tonumber(string.match(first[1], '^%d+')), tonumber(string.match(last, '^%d+'))
    local size, count = 0, 0
    for i = 0, 15 do
      local at = math.min(from + (to - from) * i / 15, 1.8e19)
      for _, entry in ipairs(redis.call('XRANGE', key, string.format('%.0f', at), '+', 'COUNT', 2)) do
        size, count = size + size_of(entry), count + 1
      end
    end
    mean = count > 0 and size / count or size_of(first)
  end
  return math.floor(bytes / mean)
end

local removed, more, held = 0, 0, ''
-- Whole nodes, up to the bound; then, when exactness asks for it, the rest of a node.
local function trim(strategy, bound)
  local gone = redis.call('XTRIM', key, strategy, '~', bound, 'LIMIT', most)
  if 2 * gone >= most then
    more = 1
  elseif how == '=' then
    gone = gone + redis.call('XTRIM', key, strategy, '=', bound)
  end
  removed = removed + gone
  return gone
end
local function trim_by_age(age, guard, why)
  local floor = string.format('%.0f-0', now - age)
  if now - age <= 0 then return end
  if guard and before(guard, floor) then
    if #redis.call('XRANGE', key, guard, '(' .. floor, 'COUNT', 1) > 0 then held = why end
    floor = guard
  end
  trim('MINID', floor)
end
local function trim_by_count(keep, guard, why)
  local excess = redis.call('XLEN', key) - keep
  if excess <= 0 then return end
  if not guard or before(last, guard) then return trim('MAXLEN', string.format('%.0f', keep)) end
  if guard == '0-0' then
    held = why
    return
  end
  -- Whole nodes below the guard, and no more entries than the excess: an approximate trim stays within its LIMIT.
  local gone = redis.call('XTRIM', key, 'MINID', '~', guard, 'LIMIT', math.min(most, excess))
  removed, excess = removed + gone, excess - gone
  if 2 * gone >= most then
    more = 1
    return
  end
  if excess == 0 then return end
  -- What is left to remove lies in one node, or is held: how much stands before an id can only be found by looking.
  local wanted = how == '=' and math.max(1, math.min(1000, math.floor(1048576 / size_of(first)))) or 200
  wanted = math.min(excess, wanted)
  local seen = #redis.call('XRANGE', key, '-', '(' .. guard, 'COUNT', wanted)
  if seen < wanted then held = why end
  if how == '~' or seen == 0 then return end
  if seen < wanted then
    removed = removed + redis.call('XTRIM', key, 'MINID', '=', guard)
  else
    removed = removed + redis.call('XTRIM', key, 'MAXLEN', '=', string.format('%.0f', excess + keep - wanted))
    if excess > wanted then more = 1 end
  end
end
local function trim_by(at, guard, why)
  local count, age, bytes = limits[at], limits[at + 1], limits[at + 2]
  if bytes then
    local fit = entries_in(bytes)
    if not count or fit < count then count = fit end
  end
  if age then trim_by_age(age, guard, why) end
  if count then trim_by_count(count, guard, why) end
end

if group_guard and (not archive_guard or before(group_guard, archive_guard)) then
  trim_by(1, group_guard, 'groups')
  trim_by(4, archive_guard, 'archive')
else
  trim_by(1, archive_guard, 'archive')
end
return {removed, more, held}
