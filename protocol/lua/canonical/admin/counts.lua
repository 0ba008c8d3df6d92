#!lua flags=no-writes
-- counts: sizes of state sets and values of the metrics, in one look.
-- KEYS[1] base emq:{q}:       KEYS[2..] the sets asked for
-- ARGV[1..] metric names: completed, failed
-- Replies: the size of each set in order, then each metric's count, 0 when absent.
local replies = {}
for i = 2, #KEYS do replies[i - 1] = redis.call('ZCARD', KEYS[i]) end
for _, metric in ipairs(ARGV) do
  replies[#replies + 1] = tonumber(redis.call('HGET', KEYS[1] .. 'metrics:' .. metric, 'count')) or 0
end
return replies
