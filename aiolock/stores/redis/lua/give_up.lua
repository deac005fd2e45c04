-- give_up(what, ends): copies of it that come until then (ms) are to find that it was given up: a
-- tombstone. Those before it that have ended go.
--@include keep
local function give_up(what, ends)
  redis.call('ZREM', HOLDERS, '!' .. what) -- at maxmemory it is allowed, and after it so is ZADD
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', HOLDERS, TOMBSTONES, COUNTERS + NOW)) do
    redis.call('ZREM', HOLDERS, old)
  end
  redis.call('ZADD', HOLDERS, COUNTERS + ends, '!' .. what)
  keep(math.max(ends - NOW, 1000))
end
