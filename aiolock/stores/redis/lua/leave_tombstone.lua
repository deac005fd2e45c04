-- leave_tombstone(what, ends): records that this was given up, or done, so that copies of its command that arrive
-- until `ends` (ms) have no effect. Tombstones whose time is over are removed, not too many in one call.
--@include allow_writes
--@include keep
local function leave_tombstone(what, ends)
  allow_writes()
  redis.call('ZADD', HOLDERS, COUNTERS + ends, '!' .. what)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', HOLDERS, TOMBSTONES, COUNTERS + NOW, 'LIMIT', 0, PART)) do
    if old ~= '!' .. what then
      redis.call('ZREM', HOLDERS, old)
    end
  end
  keep(math.max(ends - NOW, 1000))
end
