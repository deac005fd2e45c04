-- others_wait(a): whether another account of this priority has waiters.
local function others_wait(a)
  local from = a.priority * OF_PRIORITY
  local first = redis.pcall('ZRANGE', SHARES, from, '(' .. from + OF_PRIORITY, 'BYSCORE', 'LIMIT', 0, 2)
  return first[1] and first[1] ~= a.member or first[2] and first[2] ~= a.member
end
