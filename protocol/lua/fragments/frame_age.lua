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
