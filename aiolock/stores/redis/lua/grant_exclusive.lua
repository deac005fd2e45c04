-- grant_exclusive(waiter, lease, mark, floor, kept): makes it the only holder; returns its fence.
--   mark  UNCONFIRMED if the lease is a claim, else 0
--   kept  for how long to keep the holders (ms); nil: as its terms demand
--@include next_fence
--@include closes_for
local function grant_exclusive(waiter, lease, mark, floor, kept)
  local fence = next_fence(floor)
  redis.call('ZADD', HOLDERS, NOW + lease + mark, waiter .. ':' .. fence)
  redis.call('PEXPIRE', HOLDERS, kept or lease + KEPT + closes_for(waiter))
  return fence
end
