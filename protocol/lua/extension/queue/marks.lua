#!lua flags=no-writes
-- marks (extension): which of these jobs shall end, by the mark that `cancel` leaves in the row. A worker asks for what it holds
-- whenever it may have missed what was published.
-- KEYS[1] active
-- ARGV[1..] job ids, at most 1000
-- Replies: [ids that carry the mark], in the order given.
-- Refusals: ERR at most 1000 ids
local p = string.sub(KEYS[1], 1, -7)

if #ARGV > 1000 then return redis.error_reply('ERR at most 1000 ids') end
local marked = {}
for _, id in ipairs(ARGV) do
  if redis.call('HEXISTS', p .. 'job:' .. id, 'cancel') == 1 then marked[#marked + 1] = id end
end
return marked
