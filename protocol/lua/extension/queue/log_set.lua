#!lua flags=allow-oom
-- log_set (extension): turns the queue's log of what becomes of its jobs on or off. What every script of this folder does to a job is then
-- one entry there, written in the same step. Turned off, it is kept for a week.
-- KEYS[1] logging             KEYS[2] log            KEYS[3] meta
-- ARGV[1] `on`, `off`, or `forget`: off, and the log is deleted
-- with `on`: ARGV[2] most entries, about          ARGV[3] ms after which an entry may go, 0: never     ARGV[4] `1`: claims are logged too
-- Replies: 1 it was on before; 0 it was not. Turning it on or off writes an entry too, `opened` or `closed`; setting it anew does not.
-- Refusals: a key of another type; ERR mode of log_set must be on, off or forget; ERR most must be a positive integer; ERR age must be 0
--   or more ms
local logging, entries, meta = KEYS[1], KEYS[2], KEYS[3]
local mode, most, age = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if mode ~= 'on' and mode ~= 'off' and mode ~= 'forget' then
  return redis.error_reply('ERR mode of log_set must be on, off or forget')
end
if mode == 'on' then
  if not most or not (most >= 1) or most > 9007199254740991 or most % 1 ~= 0 then
    return redis.error_reply('ERR most must be a positive integer')
  end
  if not age or not (age >= 0) or age > 9007199254740991 or age % 1 ~= 0 then
    return redis.error_reply('ERR age must be 0 or more ms')
  end
end
if mode ~= 'forget' then redis.call('XLEN', entries) end
redis.call('HLEN', meta)
local was_on = redis.call('HLEN', logging) > 0

if mode == 'on' then
  redis.call('HSET', logging, 'most', string.format('%.0f', most))
  if age >= 1 then
    redis.call('HSET', logging, 'age', string.format('%.0f', age))
  else
    redis.call('HDEL', logging, 'age')
  end
  if ARGV[4] == '1' then
    redis.call('HSET', meta, 'log_claims', '1')
  else
    redis.call('HDEL', meta, 'log_claims')
  end
  redis.call('PERSIST', entries)
  if not was_on then redis.call('XADD', entries, '*', 'event', 'opened') end
  redis.call('XTRIM', entries, 'MAXLEN', '~', string.format('%.0f', most))
  return was_on and 1 or 0
end
redis.call('DEL', logging)
redis.call('HDEL', meta, 'log_claims')
if mode == 'forget' then
  redis.call('DEL', entries)
elseif was_on then
  redis.call('XADD', entries, '*', 'event', 'closed')
  redis.call('PEXPIRE', entries, 604800000)
end
return was_on and 1 or 0
