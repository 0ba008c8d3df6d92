#!lua flags=no-writes
-- log_read (extension): a page of the queue's log, and in the same step what tells a reader whether something was dropped behind its
-- cursor: as nothing is ever taken out of the middle, the entries that stand are the last `length` of all that were `added`.
-- KEYS[1] log                 KEYS[2] logging        KEYS[3] meta
-- ARGV[1] first entry id, `-`, or `(` and an id       ARGV[2] last entry id or `+`      ARGV[3] most entries, 1 to 10000
-- Replies: [added, length, id of the first entry or empty, highest id ever or empty, [[id, [name, value, ...]], ...], 1 if it is on,
--   most, age (0: none), 1 if claims are logged, entries that could not be written]
-- Refusals: a key of another type; ERR count must be 1 to 10000; those of XRANGE for an id that is none
local entries, logging = KEYS[1], KEYS[2]
local count = tonumber(ARGV[3])
if not count or not (count >= 1) or count > 10000 or count % 1 ~= 0 then
  return redis.error_reply('ERR count must be 1 to 10000')
end
local page = redis.call('XRANGE', entries, ARGV[1], ARGV[2], 'COUNT', count)
local facts = {}
if redis.call('EXISTS', entries) == 1 then
  local info = redis.call('XINFO', 'STREAM', entries)
  for i = 1, #info, 2 do facts[info[i]] = info[i + 1] end
end
local first = facts['first-entry'] and facts['first-entry'][1] or ''
local settings = redis.call('HMGET', logging, 'most', 'age', 'lost')
return {
  facts['entries-added'] or 0, facts['length'] or 0, first, facts['last-generated-id'] or '', page,
  redis.call('EXISTS', logging), math.floor(tonumber(settings[1]) or 0), math.floor(tonumber(settings[2]) or 0),
  redis.call('HEXISTS', KEYS[3], 'log_claims'), math.floor(tonumber(settings[3]) or 0)
}
