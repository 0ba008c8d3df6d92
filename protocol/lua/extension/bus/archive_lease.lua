#!lua flags=allow-oom
-- archive_lease (extension): one archiver of a stream at a time. Each time that the lease changes hands the fence is raised: what the former
-- holder still wants to mark is then refused. The holder renews by asking again.
-- KEYS[1] archive
-- ARGV[1] owner, unique for each archiver, not empty     ARGV[2] lease in ms; 0 gives it back
-- Replies: [1, fence] held now (or given back); [0, ms left] another's
-- Refusals: ERR an argument of archive_lease is malformed
local archive, owner, lease = KEYS[1], ARGV[1] or '', tonumber(ARGV[2] or '')
if owner == '' or not lease or not (lease >= 0) or lease > 31536000000 then
  return redis.error_reply('ERR an argument of archive_lease is malformed')
end

-- [clock]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- [end]
local row = redis.call('HMGET', archive, 'owner', 'until', 'fence')
local ends, fence = tonumber(row[2]) or 0, tonumber(row[3]) or 0
if row[1] ~= owner then
  if lease == 0 then return {1, fence} end
  -- A clock that was set back would keep a dead holder for as long: no lease ends later than its own length from now.
  if ends > now and ends <= now + math.max(lease, 3600000) then return {0, math.ceil(ends - now)} end
  fence = fence + 1
end
redis.call('HSET', archive, 'owner', owner, 'until', string.format('%.0f', now + lease), 'fence', string.format('%.0f', fence))
return {1, fence}
