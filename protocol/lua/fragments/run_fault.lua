-- Expects a local run_names. Sets it to the names of how a job is run, each with its field of the row, and makes run_fault(first, last):
-- whether something is wrong with the names and values ARGV[first..last], and whether `expire` is among them.
run_names = {
  max_attempts = 'max_attempts', backoff = 'backoff', timeout = 'timeout', keep = 'keep', traceparent = 'traceparent',
  expire = 'expires_at', expires_at = 'expires_at'
}
local function run_fault(first, last)
  local expires = false
  for i = first, last, 2 do
    local name, value = ARGV[i], ARGV[i + 1] or ''
    if not run_names[name] then return true end
    if name == 'backoff' then
      if value == '' or #value > 64 then return true end
    elseif name == 'traceparent' then
      if #value ~= 55 then return true end
    elseif not string.find(value, '^[1-9][0-9]*$') or (#value > 15 and tonumber(value) > 9007199254740991) then
      return true
    elseif name == 'expire' then
      expires = true
    end
  end
  return false, expires
end
