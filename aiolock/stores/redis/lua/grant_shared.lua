-- grant_shared(step, waiter, lease, mark): makes it one of several holders; returns its fence.
-- The fence is also written under the waiter itself, for when it asks again among many holders.
--@include next_fence
--@include closes_for
--@include keep
--@include count_permits
--@include take_tokens
local function grant_shared(step, waiter, lease, mark)
  if waiter:find(TOKENS) then
    return take_tokens(step, waiter)
  end
  local fence = next_fence(step.floor)
  redis.call('ZADD', HOLDERS, NOW + lease + mark, waiter .. ':' .. fence, fence, waiter)
  keep(lease + KEPT + closes_for(waiter), 1000)
  count_permits(step, waiter, 1)
  return fence
end
