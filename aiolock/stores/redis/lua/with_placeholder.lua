-- with_placeholder(work): calls `work`, and returns what it returns, two values at most. A placeholder keeps the
-- key of the holders meanwhile, even if the last holder is removed before another is added. In a slot of a cluster
-- that is being moved, a key that vanishes cannot be created again: it belongs to the other node then, and the
-- script would stop half-way, without a holder.
--@include allow_writes
local function with_placeholder(work)
  allow_writes()
  redis.call('ZADD', HOLDERS, COUNTERS, PLACEHOLDER)
  local reply, rest = work()
  redis.call('ZREM', HOLDERS, PLACEHOLDER)
  return reply, rest
end
