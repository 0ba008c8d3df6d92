#!lua flags=no-writes
-- ended (extension): how jobs ended that somebody waits for: their rows and what is kept of them, in one look, so that no end falls
-- between the two.
-- KEYS[1] base emq:{q}:       ARGV[1..] up to 300 job ids
-- Replies: a flat list, three a job in order: the row's state or nil, its last_error or nil, result:<id> or nil. No state: the job
--   has ended or never was; `dead`: it has ended; any other: it has not.
-- Refusals: ERR ended takes at most 300 ids
local p = KEYS[1]
if #ARGV > 300 then return redis.error_reply('ERR ended takes at most 300 ids') end
local reply = {}
for i = 1, #ARGV do
  local row = redis.call('HMGET', p .. 'job:' .. ARGV[i], 'state', 'last_error')
  reply[3 * i - 2] = row[1]
  reply[3 * i - 1] = row[2]
  reply[3 * i] = redis.call('GET', p .. 'result:' .. ARGV[i])
end
return reply
