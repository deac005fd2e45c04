-- rank(score): how many holders come before this score; with '(' before it, also how many have it.
local function rank(score)
  local first = redis.call('ZRANGEBYSCORE', HOLDERS, score, '+inf', 'LIMIT', 0, 1)[1]
  return first and redis.call('ZRANK', HOLDERS, first) or redis.call('ZCARD', HOLDERS)
end
