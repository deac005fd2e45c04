-- give_up(what, ends): copies of it that come until then (ms) are to find that it was given up: a
-- tombstone. Those before it that have ended go.
--@include allow_writes
--@include keep
local function give_up(what, ends)
  allow_writes()
  redis.call('ZADD', HOLDERS, COUNTERS + ends, '!' .. what)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', HOLDERS, TOMBSTONES, COUNTERS + NOW)) do
    if old ~= '!' .. what then
      redis.call('ZREM', HOLDERS, old)
    end
  end
  keep(math.max(ends - NOW, 1000))
end
