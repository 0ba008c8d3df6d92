#!lua flags=allow-oom
-- park (extension): the last look of a worker before it blocks on wake, in one step with saying that it will. Nothing claimable
-- means: pending and ring are empty, or the queue is paused or at meta.concurrency. Then the worker is noted in parked, and wake
-- tokens that are left over are dropped, so that the block does block. Before its next claim a worker takes itself out with a
-- plain ZREM of its name; one that does not is forgotten after two beats. A worker that serves one of the two only is noted as soon as
-- that one is empty; tokens stay then as long as the other is not, for whoever serves it.
-- KEYS[1] pending             KEYS[2] ring           KEYS[3] schedule    KEYS[4] active          KEYS[5] parked
-- KEYS[6] wake                KEYS[7] meta
-- ARGV[1] name of the worker  ARGV[2] beat in ms: how long it will block at most
-- ARGV[3] optional: `f` it serves pending only, `l` lanes only; absent or empty: both
-- Replies: [1 if a job is claimable now, else 0; ms until the earliest scheduled job is due, 0 if it is, -1 if there is none;
--   ms until the earliest lease lapses, 0 if it has, -1 if there is none]
-- Refusals: ERR beat must be a positive number of ms; ERR serves must be f or l
local pending, ring, schedule, active, parked, wake, meta = unpack(KEYS)
local name = ARGV[1]
local beat = tonumber(ARGV[2])
if not beat or not (beat > 0) then return redis.error_reply('ERR beat must be a positive number of ms') end
local serves = ARGV[3] or ''
if serves ~= '' and serves ~= 'f' and serves ~= 'l' then return redis.error_reply('ERR serves must be f or l') end

-- [clock]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- [end]
local function until_first(set)
  local first = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')
  return first[2] and math.max(0, math.ceil(tonumber(first[2]) - now)) or -1
end

local gate = redis.call('HMGET', meta, 'paused', 'concurrency')
local ceiling = tonumber(gate[2]) or 0
local open = not gate[1] and not (ceiling > 0 and redis.call('ZCARD', active) >= ceiling)
local work = open and redis.call('EXISTS', pending, ring) > 0
local claimable = work
if work and serves ~= '' then claimable = redis.call('EXISTS', serves == 'f' and pending or ring) > 0 end
if claimable then
  redis.call('ZREM', parked, name)
else
  local gone = redis.call('ZRANGEBYSCORE', parked, '-inf', now, 'LIMIT', 0, 100)
  if #gone > 0 then redis.call('ZREM', parked, unpack(gone)) end
  redis.call('ZADD', parked, now + 2 * beat, name)
  if redis.call('PTTL', parked) < 2 * beat then redis.call('PEXPIRE', parked, math.ceil(4 * beat)) end
  if not work then redis.call('DEL', wake) end
end
return {claimable and 1 or 0, until_first(schedule), until_first(active)}
