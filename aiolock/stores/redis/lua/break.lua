-- break: the lock is taken from these grants, their clients are told, and the next gets it.
--
-- KEYS  1 holders  2 queue  3 fence
-- ARGV  1 prefix of the clients' channels  2… the fences of the grants
-- returns  how many of them held it

local condemned = {}
for i = 2, #ARGV do
  condemned[ARGV[i]] = true
end

--@include clock
--@include mint
--@include close
local broken, closed = 0, 0
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local client, fence = member:match(':([^:]+):%d+:(%d+)$')
  if condemned[fence] and client ~= '-' then
    redis.call('ZREM', KEYS[1], member)
    broken = broken + 1
    floor = math.max(floor, tonumber(fence))
    closed = math.max(closed, close(member, now))
    redis.pcall('PUBLISH', ARGV[1] .. client, 'l ' .. member .. ' broken ' .. KEYS[1])
  end
end
if broken > 0 and closed == 0 then
  --@include advance
  advance(ARGV[1], redis.call('ZPOPMIN', KEYS[2])[1])
end
return broken
