#!lua flags=allow-oom
-- refusal_never_made: a seeded violation.
-- KEYS[1] row of the job   KEYS[2] pending
-- ARGV[1] job id   ARGV[2] base emq:{q}:
-- Replies: 1.
local row, pending = KEYS[1], KEYS[2]
local id, p = ARGV[1], ARGV[2]
redis.call('HSET', row, 'state', 'pending')
redis.call('ZADD', pending, 0, id)
local wake = p .. 'wake'
return 1
-- seeded: refusal
-- registry: {"name": "refusal_never_made", "path": "lua/canonical/queue/refusal_never_made.lua", "origin": "canonical", "keys": ["job", "pending"], "argv": [{"name": "id"}, {"name": "base"}], "replies": ["1"], "refusals": ["EMQSTATE not dead"], "reads_clock": false, "at_maxmemory": "runs", "writes": true}
