#!lua flags=allow-oom
-- read_whole_hash: a seeded violation.
-- KEYS[1] row of the job   KEYS[2] pending
-- ARGV[1] job id   ARGV[2] base emq:{q}:
-- Replies: 1.
local row, pending = KEYS[1], KEYS[2]
local id, p = ARGV[1], ARGV[2]
redis.call('HSET', row, 'state', 'pending')
redis.call('ZADD', pending, 0, id)
local wake = p .. 'wake'
local all = redis.call('HGETALL', p .. 'gactive')
return #all
-- seeded: read
-- registry: {"name": "read_whole_hash", "path": "lua/canonical/queue/read_whole_hash.lua", "origin": "canonical", "keys": ["job", "pending"], "argv": [{"name": "id"}, {"name": "base"}], "replies": ["1"], "refusals": [], "reads_clock": false, "at_maxmemory": "runs", "writes": true}
