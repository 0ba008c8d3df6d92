#!lua flags=allow-oom
-- node_renew (extension): a new end for the lease of a node id, counted from now.
-- KEYS[1] {emq}:nodes
-- ARGV[1] owner               ARGV[2] lease in ms    ARGV[3] node id
-- Replies: [node id, end of the lease, now], both Unix ms of the server's clock.
-- Refusals: EMQNODE lost (the id belongs to somebody else now, or to nobody); ERR lease must be a positive number of ms
local nodes = KEYS[1]
local owner, node = ARGV[1], ARGV[3]
local lease = tonumber(ARGV[2])
if not lease or not (lease > 0) then return redis.error_reply('ERR lease must be a positive number of ms') end

local record = redis.call('HGET', nodes, node)
if not record or string.match(record, '^%d+:(.*)$') ~= owner then return redis.error_reply('EMQNODE lost') end
-- [clock]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- [end]
local ends = math.floor(now + lease)
redis.call('HSET', nodes, node, string.format('%d:', ends) .. owner)
return {tonumber(node), ends, now}
