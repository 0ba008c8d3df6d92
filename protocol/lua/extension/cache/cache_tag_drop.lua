#!lua flags=allow-oom
-- cache_tag_drop (extension): drops the rows that were put with a tag, some at a time, and tells the tables that listen. From the first
-- call on nothing is written under the tag that was known before it. The rows of that moment are set apart at once, so that what is
-- put meanwhile is neither waited for nor missed; rows that another call has set apart and not dropped go first.
-- KEYS[1] rows eccx:{T}:tag:<tag>     KEYS[2] rows set apart eccx:{T}:tagdrop:<tag>     KEYS[3] last drop eccx:{T}:tagfloor:<tag>
-- KEYS[4] number of drops eccx:{T}:tagdrops     KEYS[5] base of the rows ecc:{T}:, and of the channel coh
-- ARGV[1] version, a branded id, minted for this drop     ARGV[2] 1 the first call, 0 a further one
-- ARGV[3] 1 the rows are still to be set apart, 0 they have been: what the call before answered; 1 in the first one
-- ARGV[4] rows in one call, 1 to 500     ARGV[5] how long in ms the drop is remembered
-- Replies: [rows left, 1 rows are still to be set apart or 0, rows deleted, id...]: further calls are needed while rows are left or to
--   be set apart. The ids are those told.
-- Refusals: ERR version must be 14 bytes; ERR rows must be 1 to 500; ERR the time must be a positive integer of ms
local rows, apart, floor, drops, base = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local version, most = ARGV[1], tonumber(ARGV[4])
if #version ~= 14 then return redis.error_reply('ERR version must be 14 bytes') end
if not most or most ~= math.floor(most) or most < 1 or most > 500 then
  return redis.error_reply('ERR rows must be 1 to 500')
end
if not string.find(ARGV[5], '^[1-9][0-9]*$') or #ARGV[5] > 15 then
  return redis.error_reply('ERR the time must be a positive integer of ms')
end

local function newer(a, b)  -- by the last eleven bytes
  for i = 4, 14 do
    local one, other = string.byte(a, i), string.byte(b, i) or 0
    if one ~= other then return one > other end
  end
  return false
end
local function successor(v)
  local digits = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'
  for i = 14, 4, -1 do
    local at = string.find(digits, string.sub(v, i, i), 1, true)
    if not at then return v end
    if at ~= 62 then
      return string.sub(v, 1, i - 1) .. string.sub(digits, at + 1, at + 1) .. string.rep('0', 14 - i)
    end
  end
  return v
end

if ARGV[2] == '1' then
  local last, number = redis.call('GET', floor) or '', redis.call('INCR', drops)
  local highest = version
  if #last >= 14 and newer(last, version) then highest = string.sub(last, 1, 14) end
  redis.call('SET', floor, highest .. ':' .. number, 'PX', ARGV[5])
end
local wanted = ARGV[3] == '1'
if wanted and redis.call('EXISTS', apart) == 0 then
  if redis.call('EXISTS', rows) == 1 then redis.call('RENAME', rows, apart) end
  wanted = false
end
local taken, deleted, answer = redis.call('ZPOPMIN', apart, most), 0, {0, 0, 0}
for i = 1, #taken, 2 do
  local id = taken[i]
  local row, told = base .. id, version
  local stands = redis.pcall('GETRANGE', row, 0, 13)
  if type(stands) == 'string' then
    -- A version of a clock that is ahead: the message must be newer still, or the row stays in L1.
    if #stands == 14 and string.find(stands, '^[A-Z][A-Z][A-Z][0-9A-Za-z]+$') and not newer(version, stands) then
      told = successor(stands)
    end
    deleted = deleted + redis.call('DEL', row)
  end
  redis.call('PUBLISH', base .. 'coh', id .. ':' .. told)
  answer[#answer + 1] = id
end
answer[1], answer[2], answer[3] = redis.call('ZCARD', apart), wanted and 1 or 0, deleted
return answer
