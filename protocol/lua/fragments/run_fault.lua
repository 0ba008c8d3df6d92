-- Expects nothing; run_fault(first, last): whether something is wrong with the names and values ARGV[first..last] of how a job is run.
local function run_fault(first, last)
  for i = first, last, 2 do
    local name, value = ARGV[i], ARGV[i + 1] or ''
    if name == 'backoff' then
      if value == '' or #value > 64 then return true end
    elseif name == 'traceparent' then
      if #value ~= 55 then return true end
    elseif name ~= 'max_attempts' and name ~= 'timeout' and name ~= 'keep' and name ~= 'expire' and name ~= 'expires_at' then
      return true
    elseif not string.find(value, '^[1-9][0-9]*$') or tonumber(value) > 9007199254740991 then
      return true
    end
  end
  return false
end
