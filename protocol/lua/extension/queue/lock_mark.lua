-- lock_mark: marks jobs as held by a worker, so that remove_job refuses them. The marker expires by itself; it is not the lease. Where
-- the server can expire the fields of a hash the row's field `lock` is written too; elsewhere it would never go away.
-- KEYS[1] active
-- ARGV[1] base emq:{q}:       ARGV[2] time to live of the markers in ms
-- ARGV[3..] job id, token; again and again
-- Replies: how many were marked: those whose row exists.
-- Refusals: ERR a token is missing; ERR time to live must be a positive integer
local p, ttl = ARGV[1], tonumber(ARGV[2])
if #ARGV % 2 ~= 0 then return redis.error_reply('ERR a token is missing') end
if not ttl or not (ttl >= 1) or ttl % 1 ~= 0 then
  return redis.error_reply('ERR time to live must be a positive integer')
end

local marked, fields_expire = 0, true
for i = 3, #ARGV, 2 do
  local row = p .. 'job:' .. ARGV[i]
  if redis.call('EXISTS', row) == 1 then
    redis.call('SET', row .. ':lock', ARGV[i + 1], 'PX', ARGV[2])
    if fields_expire then
      local answer = redis.pcall('HPEXPIRE', row, ARGV[2], 'FIELDS', 1, 'lock')
      fields_expire = not answer.err
      if fields_expire then
        redis.call('HSET', row, 'lock', ARGV[i + 1])
        redis.call('HPEXPIRE', row, ARGV[2], 'FIELDS', 1, 'lock')
      end
    end
    marked = marked + 1
  end
end
return marked
