-- request: asks the holders to release the lock when they can. Changes nothing.
--
-- KEYS  1 holders
-- ARGV  1 prefix of the clients' channels  2 not after (µs)
-- returns  how many were asked
--@include names
local CHANNELS = ARGV[1]
--@include clock
--@include late
--@include tell

local too_late = late(ARGV[2])
if too_late then
  return too_late
end
local told, from = 0, '(' .. string.format('%.0f', NOW)
for _, grant in ipairs(redis.call('ZRANGEBYSCORE', HOLDERS, from, COUNTERS - 1)) do
  local client = grant:match(CLIENT) or NOBODY
  local push = 'r ' .. grant .. ' ' .. HOLDERS
  local heard = client == NOBODY and 0 or tell(grant, client, push)
  if type(heard) ~= 'number' then
    return heard -- the error
  elseif heard > 0 then
    told = told + 1
  end
end
return told
