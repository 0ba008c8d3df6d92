-- Expects p, call, and at, the place in ARGV where the settlements begin. Reads and checks all of them, and looks at the sets
-- they will write, so that nothing is refused once something is written. Sets total and, for each settlement, ids, places (in
-- ARGV), keys (of its row), rows (fields of it); in_active; parked, how many workers wait to be woken; and logging, whether
-- the queue's log is on.
local prefix, active, try = p .. 'job:', p .. 'active', redis.pcall
local sizes = {d = 3, D = 5, r = 7, k = 5, w = 4, h = 3}
local ids, places, keys, rows, total, argv, arguments = {}, {}, {}, {}, 0, ARGV, #ARGV
local schedules, dies, returns = false, false, false
while at <= arguments do
  local kind = argv[at + 2]
  local size = sizes[kind]
  if not size or at + size - 1 > arguments then return redis.error_reply('ERR a settlement is malformed') end
  local sound = true
  if kind == 'r' then
    local wait = tonumber(argv[at + 4])
    sound = wait and wait == wait and tonumber(argv[at + 5]) and tonumber(argv[at + 6])
    schedules, dies = true, true
  elseif kind == 'D' or kind == 'k' then
    sound = tonumber(argv[at + 4])
    dies = dies or kind == 'k'
  elseif kind == 'w' then
    local wait = tonumber(argv[at + 3])
    sound = wait and wait == wait
    schedules, dies = true, true
  elseif kind == 'h' then
    returns = true
  end
  if not sound then return redis.error_reply('ERR a settlement is malformed') end
  total = total + 1
  ids[total], places[total], keys[total] = argv[at], at, prefix .. argv[at]
  at = at + size
end
if total > 1000 then return redis.error_reply('ERR more than 1000 settlements') end
if schedules then call('ZCARD', p .. 'schedule') end
if dies then call('ZCARD', p .. 'dead') end
if returns then call('ZCARD', p .. 'pending') end

-- A row that is no hash is none.
local function read_row(i)
  local kind = argv[places[i] + 2]
  if kind == 'd' or kind == 'D' then
    return try('HMGET', keys[i], 'attempts', 'group', 'parent', 'keep')
  end
  return try('HMGET', keys[i], 'attempts', 'group', 'parent', 'keep', 'state', 'handbacks', 'stalled',
    'max_attempts', 'delays')
end
-- Which of them are in active. A small set is one list that the server walks for each member: it is read as a whole then.
local in_active = {}
if total > 4 and call('ZCARD', active) <= 128 then
  local members = call('ZRANGE', active, 0, 127)
  for i = 1, #members do in_active[members[i]] = true end
elseif total == 0 then
  call('ZCARD', active)
else
  local scores = call('ZMSCORE', active, unpack(ids, 1, math.min(total, 1000)))
  for i = 1, total do in_active[ids[i]] = scores[i] end
end
local known = total > 0 and call('EXISTS', p .. 'parked', p .. 'logging') or 0   -- neither as a rule: one look for both
local parked = known > 0 and call('ZCARD', p .. 'parked') or 0
local logging = known > (parked > 0 and 1 or 0)
local laned, linked, alone = false, false, false
for i = 1, total do
  local fields = read_row(i)
  rows[i] = fields
  if fields[2] or fields[3] or not in_active[ids[i]] then
    local g, left = fields[2], fields[1] and not in_active[ids[i]]
    laned, linked, alone = laned or g, linked or fields[3], alone or left
    if g and (left or fields[3] or argv[places[i] + 2] == 'h') then call('ZCARD', p .. 'g:' .. g .. ':pending') end
  end
end
if alone or linked then
  call('ZCARD', p .. 'pending')
  call('ZCARD', p .. 'schedule')
  call('ZCARD', p .. 'dead')
  if laned then
    call('HLEN', p .. 'gactive')
    call('HLEN', p .. 'glimit')
    call('SCARD', p .. 'paused')
  end
end
if linked then call('LLEN', p .. 'flow:outbox') end
if laned or linked then call('LLEN', p .. 'ring') end
if laned or linked or parked > 0 then call('LLEN', p .. 'wake') end
