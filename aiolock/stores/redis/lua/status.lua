-- status: who holds and who waits, at one moment. Writes nothing.
--
-- KEYS  1 holders  2 queue
-- returns  {now (µs), {grant, lease end (ms), …}, {waiter, ticket, …}, the limit, -1 for none}

--@include clock
local FIRST = 1e15 -- see `shared`
local from = '(' .. string.format('%.0f', now)
local limit = redis.call('ZSCORE', KEYS[1], 'limit')
return {
  tonumber(stamp),
  redis.call('ZRANGEBYSCORE', KEYS[1], from, FIRST - 1, 'WITHSCORES'),
  redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES'),
  limit and limit - FIRST or -1,
}
