#!lua flags=allow-oom
-- archive_mark (extension): moves the archive's watermark on, for the holder of the lease and from where it believes the watermark to be.
-- So neither an archiver that was overtaken nor one that writes to other files can make records count as archived that are not.
-- KEYS[1] archive             KEYS[2] stream:archived
-- ARGV[1] owner               ARGV[2] fence, as archive_lease gave it
-- ARGV[3] watermark as it is, empty for none             ARGV[4] watermark as it shall be: an EVT id, not before it
-- Replies: [1, watermark now]; [0, watermark now] it is another, nothing written; [-1, ``] the lease was lost, nothing written
-- Refusals: ERR an argument of archive_mark is malformed
local archive, archived, from, to = KEYS[1], KEYS[2], ARGV[3] or '', ARGV[4] or ''
local function forward()
  for i = 1, 14 do
    local x, y = string.byte(from, i), string.byte(to, i)
    if x ~= y then return x < y end
  end
  return true
end
if not tonumber(ARGV[2] or '') or not string.match(to, '^EVT%w%w%w%w%w%w%w%w%w%w%w$') or (from ~= '' and (#from ~= 14 or not forward())) then
  return redis.error_reply('ERR an argument of archive_mark is malformed')
end
local row = redis.call('HMGET', archive, 'owner', 'fence')
if row[1] ~= ARGV[1] or row[2] ~= ARGV[2] then return {-1, ''} end
local current = redis.call('GET', archived) or ''
if current == to then return {1, current} end
if current ~= from then return {0, current} end
redis.call('SET', archived, to)
return {1, to}
