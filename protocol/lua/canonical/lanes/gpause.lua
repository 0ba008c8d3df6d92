#!lua flags=allow-oom
-- gpause: takes a lane out of service. Its jobs in flight go on, its admissions wait.
-- KEYS[1] paused              KEYS[2] ring
-- ARGV[1] group
-- Replies: 1, also for a lane that is paused or does not exist.
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('LREM', KEYS[2], 0, ARGV[1])
return 1
