-- Expects fields, run_names, first and last (names and values ARGV[first..last], checked), and now when `expire` is among them: they
-- go into fields, a duration until expiry as the instant it ends.
local size = #fields
for i = first, last, 2 do
  local name, value = ARGV[i], ARGV[i + 1]
  if name == 'expire' then value = string.format('%.0f', math.min(now + value, 9007199254740991)) end
  fields[size + 1] = run_names[name]
  fields[size + 2] = value
  size = size + 2
end
