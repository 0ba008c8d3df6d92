-- update_progress: stores a progress text in the row and announces it on the queue's events channel.
-- KEYS[1] row of the job
-- ARGV[1] progress            ARGV[2] job id         ARGV[3] base emq:{q}:
-- ARGV[4] optional: the event as it is published; empty: none is
-- Replies: 1 stored, and published unless asked not to; -1 no such job, nothing is published.
local row = KEYS[1]
local message = ARGV[4] or cjson.encode({event = 'progress', job = ARGV[2], progress = ARGV[1]})

if redis.call('EXISTS', row) == 0 then return -1 end
redis.call('HSET', row, 'progress', ARGV[1])
if message ~= '' then redis.call('PUBLISH', ARGV[3] .. 'events', message) end
return 1
