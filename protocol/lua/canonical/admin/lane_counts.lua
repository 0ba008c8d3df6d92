#!lua flags=no-writes
-- lane_counts: how many jobs wait in each of some lanes.
-- KEYS[1] base emq:{q}:
-- ARGV[1] base emq:{q}:       ARGV[2..] groups
-- Replies: the size of each lane, in order.
local depths = {}
for i = 2, #ARGV do depths[i - 1] = redis.call('ZCARD', ARGV[1] .. 'g:' .. ARGV[i] .. ':pending') end
return depths
