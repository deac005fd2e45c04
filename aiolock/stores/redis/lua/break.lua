-- break: the lock is taken from these grants, their clients are told, and the next gets it.
--
-- KEYS  1 holders  2 queue  3 fence
-- ARGV  1 prefix of the clients' channels  2… the fences of the grants
-- returns  how many of them held it

local condemned = {}
for i = 2, #ARGV do
  condemned[ARGV[i]] = true
end

local asker -- none of those who wait
--@include clock
--@include mint
--@include shared
--@include close
local broken = 0
local grants = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', FIRST - 1, 'WITHSCORES')
for i = 1, #grants, 2 do
  local member, claim = grants[i], grants[i + 1] % 1 == UNCONFIRMED
  local client, fence = member:match('^%a+%d+[^:]*:([^:]+):') or member, member:match('%d+$')
  if condemned[fence] and client ~= '-' then
    drop(member)
    broken = broken + 1
    floor = math.max(floor, tonumber(fence))
    redis.pcall('PUBLISH', ARGV[1] .. client, 'l ' .. member .. ' broken ' .. KEYS[1])
    close(ARGV[1], member, now, claim)
  end
end
if broken > 0 then
  --@include advance
  advance(ARGV[1])
end
return broken
