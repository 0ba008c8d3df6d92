-- cache_put_tagged (extension): as cache_put, and notes the row under its tags, so that cache_tag_drop finds it. Not when one of the
-- tags was dropped since the value was known.
-- KEYS[1] row ecc:{T}:<id>     KEYS[2] number of drops eccx:{T}:tagdrops
-- KEYS[3] base of the tags' keys eccx:{T}: (of each its rows, tag:<tag>, and its last drop, tagfloor:<tag>)
-- ARGV[1] version, a branded id of any namespace     ARGV[2] value     ARGV[3] time to live in ms     ARGV[4] id
-- ARGV[5] how long in ms a process may hold the row from now on, at least the time to live
-- ARGV[6] the number of drops before the value was read; empty: not known, the version alone is compared
-- ARGV[7] version of the row that was to be replaced: when it is gone, nothing is written; empty: whatever stands there
-- ARGV[8..] tags, 1 to 16
-- Replies: 1 written where there was none (or no frame); 2 written over an older or equal one; 0 nothing written, a tag was dropped
--   meanwhile or the row to be replaced is gone; the newer frame that stands there.
-- Refusals: ERR version must be 14 bytes; ERR ttl must be a positive integer of ms; ERR tags must be 1 to 16; a key of another type,
--   before anything is written
local row, base, version, value, id = KEYS[1], KEYS[3], ARGV[1], ARGV[2], ARGV[4]
if #version ~= 14 then return redis.error_reply('ERR version must be 14 bytes') end
for i = 3, 5, 2 do
  if not string.find(ARGV[i], '^[1-9][0-9]*$') or #ARGV[i] > 15 then
    return redis.error_reply('ERR ttl must be a positive integer of ms')
  end
end
if #ARGV < 8 or #ARGV > 23 then return redis.error_reply('ERR tags must be 1 to 16') end

local hold, known = tonumber(ARGV[5]), tonumber(ARGV[6])
-- Fewer drops than before: the database was emptied in between, and what was dropped then is not known.
if known and known > (tonumber(redis.call('GET', KEYS[2]) or '') or 0) then return 0 end
for k = 8, #ARGV do
  local floor = redis.call('GET', base .. 'tagfloor:' .. ARGV[k])
  if floor then
    local older = true
    for i = 4, 14 do
      local ours, last = string.byte(version, i), string.byte(floor, i) or 0
      if ours ~= last then
        older = ours < last
        break
      end
    end
    local at = tonumber(string.match(floor, '^.-:(%d+)$') or '')
    if older or (known and at and at > known) then return 0 end
  end
end
local frame = redis.call('GET', row) or ''
-- [frame_age]
-- Expects frame (the stored bytes) and version (14 bytes). stored: the frame's version, nil when there is none (shorter than 14
-- bytes, or no branded id). age: how the given version compares with it by the last eleven bytes: 1 newer, 0 equal, -1 older.
local stored, age = string.sub(frame, 1, 14), 0
if #stored < 14 or not string.find(stored, '^[A-Z][A-Z][A-Z][0-9A-Za-z]+$') then
  stored = nil
else
  local most, over = 'AzL8n0Y58m7', 0
  for i = 4, 14 do
    local has = string.byte(stored, i)
    local ours, bound = string.byte(version, i), string.byte(most, i - 3)
    if age == 0 and ours ~= has then age = ours > has and 1 or -1 end
    if over == 0 and has ~= bound then over = has > bound and 1 or -1 end
  end
  if over == 1 then stored = nil end
end
-- [end]
if stored and age < 0 then return frame end
if ARGV[7] ~= '' and stored ~= ARGV[7] then return 0 end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- Each put takes out what two puts of before have left, so that a tag holds few rows that are no more. They are read before the first
-- write, which tells a key of another type too.
local gone = {}
for k = 8, #ARGV do
  gone[k] = redis.call('ZRANGE', base .. 'tag:' .. ARGV[k], '-inf', '(' .. now, 'BYSCORE', 'LIMIT', 0, 2)
end
redis.call('SET', row, version .. value, 'PX', ARGV[3])
for k = 8, #ARGV do
  local rows = base .. 'tag:' .. ARGV[k]
  if #gone[k] > 0 then redis.call('ZREM', rows, unpack(gone[k])) end
  redis.call('ZADD', rows, 'GT', now + hold, id)
  if redis.call('PTTL', rows) < hold then redis.call('PEXPIRE', rows, ARGV[5]) end
end
return stored and 2 or 1
