#!lua flags=allow-oom
-- clock_twice: a seeded violation.
-- KEYS[1] row of the job   KEYS[2] pending
-- ARGV[1] job id   ARGV[2] base emq:{q}:
-- Replies: 1.
local row, pending = KEYS[1], KEYS[2]
local id, p = ARGV[1], ARGV[2]
redis.call('HSET', row, 'state', 'pending')
redis.call('ZADD', pending, 0, id)
local wake = p .. 'wake'
local a = redis.call('TIME')
local b = redis.call('TIME')
redis.call('ZADD', p .. 'schedule', b[1] - a[1], id)
return 1
-- seeded: clock
-- registry: {"name": "clock_twice", "path": "lua/canonical/queue/clock_twice.lua", "origin": "canonical", "keys": ["job", "pending"], "argv": [{"name": "id"}, {"name": "base"}], "replies": ["1"], "refusals": [], "reads_clock": true, "at_maxmemory": "runs", "writes": true}
