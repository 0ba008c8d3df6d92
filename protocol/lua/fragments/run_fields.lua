-- Expects fields, run_names, first and last (names and values ARGV[first..last], checked), and now when `expire` is among them: they
-- go into fields, a duration until expiry as the instant it ends.
for i = first, last, 2 do
  local value = ARGV[i + 1]
  if ARGV[i] == 'expire' then value = string.format('%.0f', math.min(now + value, 9007199254740991)) end
  fields[#fields + 1] = run_names[ARGV[i]]
  fields[#fields + 1] = value
end
