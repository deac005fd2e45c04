-- anchored(work): what `work` returns; meanwhile the holders do not vanish, though the last of them goes
-- before another comes. In a slot of a cluster that is being moved, a key that vanishes cannot come back:
-- it is the other node's then, and the script would end in its middle, with nobody holding the lock.
--@include allow_writes
local function anchored(work)
  allow_writes()
  redis.call('ZADD', HOLDERS, COUNTERS, ANCHOR)
  local reply = work()
  redis.call('ZREM', HOLDERS, ANCHOR)
  return reply
end
