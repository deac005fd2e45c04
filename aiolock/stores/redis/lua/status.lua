-- status: who holds and who waits, at one moment. Writes nothing.
--
-- KEYS  1 holders  2 queue
-- returns  {now (µs), {grant, lease end (ms), …}, {waiter, ticket, …}}

--@include clock
return {
  tonumber(stamp),
  redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now), '+inf', 'WITHSCORES'),
  redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES'),
}
