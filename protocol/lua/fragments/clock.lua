-- Expects nothing: now is the server's clock in ms. A test registry replaces the text redis.call('TIME').
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
