-- Expects nothing: a variadic command on any number of arguments, 1000 at a time (an even number, so pairs stay together).
local function bites(command, key, list)
  for first = 1, #list, 1000 do
    redis.call(command, key, unpack(list, first, math.min(first + 999, #list)))
  end
end
