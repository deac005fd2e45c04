-- break: ends these grants, tells their clients, and grants the lock to the next.
--
-- KEYS  1 holders  2 queue  3 fence
-- ARGV  1 prefix of the clients' channels  2… the fences of the grants
-- returns  how many of them held it
--@include names
local CHANNELS = ARGV[1]
--@include clock
--@include new_step
--@include anchored
--@include end_grant
--@include keep_floor
--@include advance

local condemned = {}
for i = 2, #ARGV do
  condemned[ARGV[i]] = true
end
local grants = redis.call('ZRANGEBYSCORE', HOLDERS, '-inf', COUNTERS - 1, 'WITHSCORES')
return anchored(function()
  local step, broken = new_step(), 0
  for i = 1, #grants, 2 do
    local grant, claim = grants[i], grants[i + 1] % 1 == UNCONFIRMED
    if condemned[grant:match(FENCE_OF)] and grant:match(CLIENT) ~= NOBODY then
      end_grant(step, grant, 'broken', NOW, claim)
      broken = broken + 1
    end
  end
  if broken > 0 then
    keep_floor(step)
    advance(step)
  end
  return broken
end)
