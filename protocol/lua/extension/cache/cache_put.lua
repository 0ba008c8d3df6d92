-- cache_put (extension): writes a row of a cache table unless a newer one stands there. What it writes is the canonical frame.
-- KEYS[1] row ecc:{T}:<id>
-- ARGV[1] version, a branded id of any namespace     ARGV[2] value     ARGV[3] time to live in ms
-- Replies: 1 written where there was none (or no frame); 2 written over an older or equal one; the newer frame that stands there.
-- Refusals: ERR version must be 14 bytes; ERR ttl must be a positive integer of ms
local row, version, value = KEYS[1], ARGV[1], ARGV[2]
if #version ~= 14 then return redis.error_reply('ERR version must be 14 bytes') end
if not string.find(ARGV[3], '^[1-9][0-9]*$') or #ARGV[3] > 15 then
  return redis.error_reply('ERR ttl must be a positive integer of ms')
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
redis.call('SET', row, version .. value, 'PX', ARGV[3])
return stored and 2 or 1
