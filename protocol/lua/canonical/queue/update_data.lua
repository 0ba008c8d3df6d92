-- update_data: replaces the payload of a job in any state. A worker that already runs it keeps what it was handed.
-- KEYS[1] row of the job
-- ARGV[1] payload
-- Replies: 1 replaced; -1 no such job.
local row = KEYS[1]

if redis.call('EXISTS', row) == 0 then return -1 end
redis.call('HSET', row, 'payload', ARGV[1])
return 1
