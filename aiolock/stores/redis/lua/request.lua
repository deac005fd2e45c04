-- request: whoever holds the lock is asked to let go, when they can. Changes nothing.
--
-- KEYS  1 holders
-- ARGV  1 prefix of the clients' channels  2 not after (µs)
-- returns  how many were told

--@include clock
--@include late
local FIRST = 1e15 -- see `shared`
local told, from = 0, '(' .. string.format('%.0f', now)
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], from, FIRST - 1)) do
  local client = member:match('^%a+%d+[^:]*:([^:]+):') or '-'
  local push = 'r ' .. member .. ' ' .. KEYS[1]
  if client ~= '-' and redis.call('PUBLISH', ARGV[1] .. client, push) > 0 then
    told = told + 1
  end
end
return told
