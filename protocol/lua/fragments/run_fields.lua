-- Expects fields, first and last (names and values ARGV[first..last], checked) and now when `expire` is among them: they go
-- into fields, a duration until expiry as the instant it ends.
for i = first, last, 2 do
  local name, value = ARGV[i], ARGV[i + 1]
  if name == 'expire' then
    name, value = 'expires_at', string.format('%.0f', math.min(now + value, 9007199254740991))
  end
  fields[#fields + 1] = name
  fields[#fields + 1] = value
end
