-- break: ends these grants, tells their clients, and grants the lock to the next.
--
-- KEYS  1 holders  2 queue  3 fence  4 line  5 shares
-- ARGV  1 prefix of the clients' channels  2… the fences of the grants
-- returns  how many of them held it
--@include names
--@include shares/index
local CHANNELS = ARGV[1]
--@include clock
--@include new_step
--@include with_placeholder
--@include end_grant
--@include raise_fence
--@include advance
--@include with_rest

-- The holders are found by their fences: those that share, or the only one.
local first, grants = redis.call('ZRANGEBYSCORE', HOLDERS, '-inf', COUNTERS - 1, 'LIMIT', 0, 1)[1], {}
for i = 2, #ARGV do
  local fence = ARGV[i]
  local waiter = redis.call('ZRANGEBYSCORE', HOLDERS, fence, fence)[1]
  local grant = waiter and waiter .. ':' .. fence or first and first:match(FENCE_OF) == fence and first
  if grant and grant:match(CLIENT) ~= RESERVED then
    grants[#grants + 1] = grant
  end
end
local reply = with_placeholder(function()
  local step, broken = new_step(), 0
  for _, grant in ipairs(grants) do
    local ends = redis.call('ZSCORE', HOLDERS, grant)
    if ends then
      end_grant(step, grant, 'broken', NOW, ends % 1 == UNCONFIRMED)
      broken = broken + 1
    end
  end
  if broken > 0 then
    raise_fence(step)
    advance(step)
  end
  return with_rest(broken, step.rest)
end)
return reply
