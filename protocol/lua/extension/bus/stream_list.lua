-- stream_list (extension): writes names of streams into the list of a queue, from which readers of a pattern learn of new ones. A name stands once,
-- numbered in the order of coming.
-- KEYS[1] streams, zset: name of a stream, scored by its number from 1
-- ARGV[1..] names, 1 to 1000
-- Replies: how many were new
-- Refusals: ERR a name of stream_list is malformed; WRONGTYPE
local added = 0
if #ARGV < 1 or #ARGV > 1000 then return redis.error_reply('ERR a name of stream_list is malformed') end
for _, name in ipairs(ARGV) do
  if name == '' or #name > 255 then return redis.error_reply('ERR a name of stream_list is malformed') end
end
for _, name in ipairs(ARGV) do
  if not redis.call('ZSCORE', KEYS[1], name) then
    local last = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')
    redis.call('ZADD', KEYS[1], (tonumber(last[2] or '0')) + 1, name)
    added = added + 1
  end
end
return added
