#!lua flags=allow-oom
-- node_lease (extension): leases one of the 1024 node ids of the minter to one owner. A lapsed lease is given to another owner only
-- after a grace on top, for clocks that differ and ids that were minted late. Ids never used go first, then the longest lapsed.
-- An owner that already has one gets it again, so a repeated call after a lost reply takes no second id.
-- KEYS[1] {emq}:nodes
-- ARGV[1] owner, unique for each minter, not empty
-- ARGV[2] lease in ms         ARGV[3] grace in ms    ARGV[4] node id asked for; empty or absent: any
-- Replies: [node id, end of the lease, now], both Unix ms of the server's clock.
-- Refusals: EMQNODE held (by another owner, or lapsed within the grace); EMQNODE none free; ERR with what is wrong
local nodes = KEYS[1]
local owner = ARGV[1]
local lease, grace, asked = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] or ''
if owner == '' then return redis.error_reply('ERR owner must not be empty') end
if not lease or not (lease > 0) or not grace or not (grace >= 0) then
  return redis.error_reply('ERR lease and grace must be numbers of ms')
end
if asked ~= '' then
  local node = tonumber(asked)
  if not node or node < 0 or node > 1023 or node % 1 ~= 0 then return redis.error_reply('ERR node id must be in 0..1023') end
  asked = string.format('%d', node)
end

-- [clock]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- [end]
local function read(record)
  local ends, holder = string.match(record, '^(%d+):(.*)$')
  return tonumber(ends) or 0, holder or ''
end

local node
if asked ~= '' then
  local record = redis.call('HGET', nodes, asked)
  if record then
    local ends, holder = read(record)
    if holder ~= owner and now < ends + grace then return redis.error_reply('EMQNODE held') end
  end
  node = asked
else
  local records, earliest = {}, nil
  local all = redis.call('HGETALL', nodes)
  for i = 1, #all, 2 do
    local ends, holder = read(all[i + 1])
    records[all[i]] = true
    if holder == owner then node = all[i] end
    if now >= ends + grace and (not earliest or ends < earliest.ends) then earliest = {node = all[i], ends = ends} end
  end
  for candidate = 0, 1023 do
    if node then break end
    if not records[tostring(candidate)] then node = tostring(candidate) end
  end
  node = node or earliest and earliest.node
  if not node then return redis.error_reply('EMQNODE none free') end
end
local ends = math.floor(now + lease)
redis.call('HSET', nodes, node, string.format('%d:', ends) .. owner)
return {tonumber(node), ends, now}
