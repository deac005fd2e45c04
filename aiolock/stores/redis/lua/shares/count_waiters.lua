-- count_waiters(account): how many wait of this account, and how many of others are before them in LINE.
local function count_waiters(account)
  local low, high = '[' .. account .. ':', '(' .. account .. ';'
  local first = redis.pcall('ZRANGE', LINE, low, high, 'BYLEX', 'LIMIT', 0, 1)[1]
  if not first then
    return 0, 0
  end
  local last = redis.pcall('ZRANGE', LINE, high, low, 'BYLEX', 'REV', 'LIMIT', 0, 1)[1]
  local before = redis.pcall('ZRANK', LINE, first)
  return redis.pcall('ZRANK', LINE, last) + 1 - before, before
end
