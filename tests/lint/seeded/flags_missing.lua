-- flags_missing: a seeded violation.
-- KEYS[1] row of the job   KEYS[2] pending
-- ARGV[1] job id   ARGV[2] base emq:{q}:
-- Replies: 1.
local row, pending = KEYS[1], KEYS[2]
local id, p = ARGV[1], ARGV[2]
redis.call('HSET', row, 'state', 'pending')
redis.call('ZADD', pending, 0, id)
local wake = p .. 'wake'
return 1
-- seeded: flags
-- registry: {"name": "flags_missing", "path": "lua/canonical/queue/flags_missing.lua", "origin": "canonical", "keys": ["job", "pending"], "argv": [{"name": "id"}, {"name": "base"}], "replies": ["1"], "refusals": [], "reads_clock": false, "at_maxmemory": "runs", "writes": true}
