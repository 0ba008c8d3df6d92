#!lua flags=allow-oom
-- node_release (extension): ends the lease of a node id now. The record stays, without an owner: the grace of the next node_lease
-- counts from here, so that no two owners mint with one id in the same instant.
-- KEYS[1] {emq}:nodes
-- ARGV[1] owner               ARGV[2] node id
-- Replies: 1 released; 0 the id is not this owner's.
local nodes = KEYS[1]
local owner, node = ARGV[1], ARGV[2]

local record = redis.call('HGET', nodes, node)
if owner == '' or not record or string.match(record, '^%d+:(.*)$') ~= owner then return 0 end
-- [clock]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- [end]
redis.call('HSET', nodes, node, string.format('%d:', now))
return 1
