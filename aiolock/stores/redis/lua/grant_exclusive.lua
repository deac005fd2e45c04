-- grant_exclusive(waiter, lease, mark, floor): makes it the only holder; returns its fence. `mark`:
-- UNCONFIRMED where the lease is a claim, else 0.
--@include next_fence
--@include outlives
local function grant_exclusive(waiter, lease, mark, floor)
  local fence = next_fence(floor)
  redis.call('ZADD', HOLDERS, NOW + lease + mark, waiter .. ':' .. fence)
  redis.call('PEXPIRE', HOLDERS, lease + KEPT + outlives(waiter))
  return fence
end
