#!lua flags=allow-oom
-- head_missing: a seeded violation that says nothing of what it takes.
redis.call('DEL', 'emq:{q}:wake')
return 1
-- seeded: head
-- registry: {"name": "head_missing", "path": "lua/canonical/queue/head_missing.lua", "origin": "canonical", "keys": [], "argv": [], "replies": ["1"], "refusals": [], "reads_clock": false, "at_maxmemory": "runs", "writes": true}
