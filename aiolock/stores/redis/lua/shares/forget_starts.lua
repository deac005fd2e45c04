-- forget_starts(a): nobody of this priority waits any more, and so no account is ahead of another.
local function forget_starts(a)
  local account, from = a.account, a.priority * STARTS - LOWEST
  if a.member then
    redis.pcall('ZREM', SHARES, a.member, 's' .. account, 't' .. account, 'w' .. account)
  end
  redis.pcall('ZREM', SHARES, 'v' .. a.priority, 'n' .. a.priority)
  redis.pcall('ZREMRANGEBYSCORE', SHARES, from, '(' .. from + STARTS)
end
