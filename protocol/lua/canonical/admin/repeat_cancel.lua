#!lua flags=allow-oom
-- repeat_cancel: ends a registration. Jobs it has admitted stay.
-- KEYS[1] repeat              KEYS[2] repeat:<name>
-- ARGV[1] name
-- Replies: 1 cancelled; 0 there was none of that name; a record that was left over is deleted all the same.
local removed = redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
return removed
