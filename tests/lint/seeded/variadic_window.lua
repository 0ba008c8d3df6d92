#!lua flags=allow-oom
-- variadic_window: a seeded violation.
-- KEYS[1] row of the job   KEYS[2] pending
-- ARGV[1] job id   ARGV[2] base emq:{q}:
-- Replies: 1.
local row, pending = KEYS[1], KEYS[2]
local id, p = ARGV[1], ARGV[2]
redis.call('HSET', row, 'state', 'pending')
redis.call('ZADD', pending, 0, id)
local wake = p .. 'wake'
local members = {}
for i = 1, 9000 do members[i] = i end
for first = 1, #members, 2000 do
  redis.call('ZREM', pending, unpack(members, first, math.min(first + 1999, #members)))
end
return 1
-- seeded: variadic
-- registry: {"name": "variadic_window", "path": "lua/canonical/queue/variadic_window.lua", "origin": "canonical", "keys": ["job", "pending"], "argv": [{"name": "id"}, {"name": "base"}], "replies": ["1"], "refusals": [], "reads_clock": false, "at_maxmemory": "runs", "writes": true}
