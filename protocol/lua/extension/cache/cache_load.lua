-- cache_load (extension): takes the right to load a row of a cache table, for one process at a time. Not when the row has come
-- meanwhile: then it is to be read. Said twice by its holder it is the same.
-- KEYS[1] row ecc:{T}:<id>     KEYS[2] lease eccx:{T}:load:<id>
-- ARGV[1] token of the caller     ARGV[2] the lease in ms
-- ARGV[3] version of the row that is to be replaced; empty: none, whatever row stands there is to be read
-- Replies: 1 the caller loads; 0 there is a row to read; the token of who loads.
-- Refusals: ERR token must be 32 bytes; ERR lease must be a positive integer of ms; WRONGTYPE
local row, lease, token = KEYS[1], KEYS[2], ARGV[1]
if #token ~= 32 then return redis.error_reply('ERR token must be 32 bytes') end
if not string.find(ARGV[2], '^[1-9][0-9]*$') or #ARGV[2] > 15 then
  return redis.error_reply('ERR lease must be a positive integer of ms')
end

local frame, version = redis.call('GETRANGE', row, 0, 13), 'AAA00000000000'  -- compared with nothing here
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
if stored and stored ~= ARGV[3] then return 0 end
local held = redis.call('GET', lease)
if held and held ~= token then return held end
redis.call('SET', lease, token, 'PX', ARGV[2])
return 1
