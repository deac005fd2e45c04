-- anchored(work): what `work` returns, two values at most. Meanwhile the key of the holders does not vanish, even if the last
-- holder is removed before another is added. In a slot of a cluster that is being moved, a key that vanishes
-- cannot come back: it is the other node's then, and the script would end half-way, without a holder.
--@include allow_writes
local function anchored(work)
  allow_writes()
  redis.call('ZADD', HOLDERS, COUNTERS, ANCHOR)
  local reply, rest = work()
  redis.call('ZREM', HOLDERS, ANCHOR)
  return reply, rest
end
