-- cache_load_end (extension): the holder of the right to load a row has loaded. Gives the right back, tells those who wait, and
-- writes what was loaded as cache_put does; all of it only if the right is still the caller's, so that what comes late, or after an
-- invalidation, which takes the right away, is not written.
-- KEYS[1] row ecc:{T}:<id>     KEYS[2] lease eccx:{T}:load:<id>     KEYS[3] channel eccx:{T}:loads
-- ARGV[1] token of the caller     ARGV[2] what is published
-- ARGV[3] version, a branded id, empty: nothing is written
-- ARGV[4] time to live in ms; empty: the row has been written before, and is deleted when the right is lost and it has that version
-- ARGV[5] value
-- Replies: 1 done, or done by an earlier call that was sent twice; 0 the right was lost; the newer frame that stands there.
-- Refusals: ERR version must be 14 bytes; ERR ttl must be a positive integer of ms; WRONGTYPE
local row, lease, channel, version = KEYS[1], KEYS[2], KEYS[3], ARGV[3]
local knows, writes = version ~= '', ARGV[4] ~= ''
if knows and #version ~= 14 then return redis.error_reply('ERR version must be 14 bytes') end
if writes and (not knows or not string.find(ARGV[4], '^[1-9][0-9]*$') or #ARGV[4] > 15) then
  return redis.error_reply('ERR ttl must be a positive integer of ms')
end

local has = redis.call('GET', lease) == ARGV[1]
local newer = nil
if knows then
  local frame = redis.call('GETRANGE', row, 0, 13)
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
  if not has then
    if not stored or age ~= 0 then return 0 end
    if writes then return 1 end
    redis.call('DEL', row)
    return 0
  end
  if stored and age < 0 then
    newer = redis.call('GET', row)
  elseif writes then
    redis.call('SET', row, version .. ARGV[5], 'PX', ARGV[4])
  end
end
if not has then return 0 end
redis.call('DEL', lease)
redis.call('PUBLISH', channel, ARGV[2])
return newer or 1
