-- give_up(what, ends): leaves a tombstone, so that copies of a command that come until `ends` (ms) find that
-- it was given up. Tombstones whose time is over are removed, not too many at once.
--@include allow_writes
--@include keep
local function give_up(what, ends)
  allow_writes()
  redis.call('ZADD', HOLDERS, COUNTERS + ends, '!' .. what)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', HOLDERS, TOMBSTONES, COUNTERS + NOW, 'LIMIT', 0, PART)) do
    if old ~= '!' .. what then
      redis.call('ZREM', HOLDERS, old)
    end
  end
  keep(math.max(ends - NOW, 1000))
end
