#!lua flags=allow-oom
-- coherence_drop: deletes the row of a cache table when it is older than a version, or no frame. For writers that invalidate
-- without placing a value.
-- KEYS[1] row ecc:{T}:<id>
-- ARGV[1] version, a branded id of any namespace
-- Replies: 1 deleted; 0 absent, or at least as new.
-- Refusals: ERR version must be 14 bytes
local row, version = KEYS[1], ARGV[1]
if #version ~= 14 then return redis.error_reply('ERR version must be 14 bytes') end

local frame = redis.call('GET', row)
if not frame then return 0 end
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
if stored and age < 1 then return 0 end
return redis.call('DEL', row)
