#!lua flags=allow-oom
-- queue_pause: no job of the queue is claimed until queue_resume. Running jobs, admission, promote and reap go on.
-- KEYS[1] meta
-- ARGV: none
-- Replies: 1.
redis.call('HSET', KEYS[1], 'paused', '1')
return 1
