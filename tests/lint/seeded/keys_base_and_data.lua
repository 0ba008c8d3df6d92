#!lua flags=allow-oom
-- keys_base_and_data: a seeded violation.
-- KEYS[1] row of the job   KEYS[2] pending
-- ARGV[1] job id   ARGV[2] base emq:{q}:
-- Replies: 1.
local row, pending = KEYS[1], KEYS[2]
local id, p = ARGV[1], ARGV[2]
redis.call('HSET', row, 'state', 'pending')
redis.call('ZADD', pending, 0, id)
local wake = p .. 'wake'
redis.call('DEL', p .. id)
return 1
-- seeded: keys
-- registry: {"name": "keys_base_and_data", "path": "lua/canonical/queue/keys_base_and_data.lua", "origin": "canonical", "keys": ["job", "pending"], "argv": [{"name": "id"}, {"name": "base"}], "replies": ["1"], "refusals": [], "reads_clock": false, "at_maxmemory": "runs", "writes": true}
