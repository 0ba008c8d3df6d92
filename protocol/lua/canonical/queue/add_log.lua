-- add_log: appends a line to a job's log.
-- KEYS[1] row of the job      KEYS[2] its logs list
-- ARGV[1] line                ARGV[2] how many of the newest lines are kept; empty or absent: all
-- Replies: how many lines there are now; -1 no such job.
-- Refusals: ERR keep must be a positive integer or empty
local row, logs = KEYS[1], KEYS[2]
local keep
if ARGV[2] and ARGV[2] ~= '' then
  keep = tonumber(ARGV[2])
  if not keep or not (keep >= 1) or keep % 1 ~= 0 then
    return redis.error_reply('ERR keep must be a positive integer or empty')
  end
end

if redis.call('EXISTS', row) == 0 then return -1 end
local count = redis.call('RPUSH', logs, ARGV[1])
if keep and keep < count then
  redis.call('LTRIM', logs, -keep, -1)
  return keep
end
return count
