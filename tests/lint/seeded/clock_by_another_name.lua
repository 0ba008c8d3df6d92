#!lua flags=allow-oom
-- clock_by_another_name: a seeded violation.
-- KEYS[1] row of the job   KEYS[2] pending
-- ARGV[1] job id   ARGV[2] base emq:{q}:
-- Replies: 1.
local row, pending = KEYS[1], KEYS[2]
local id, p = ARGV[1], ARGV[2]
redis.call('HSET', row, 'state', 'pending')
redis.call('ZADD', pending, 0, id)
local wake = p .. 'wake'
local call = redis.call
local now = call('TIME')
redis.call('ZADD', p .. 'schedule', now[1] * 1000, id)
return 1
-- seeded: clock
-- registry: {"name": "clock_by_another_name", "path": "lua/canonical/queue/clock_by_another_name.lua", "origin": "canonical", "keys": ["job", "pending"], "argv": [{"name": "id"}, {"name": "base"}], "replies": ["1"], "refusals": [], "reads_clock": true, "at_maxmemory": "runs", "writes": true}
