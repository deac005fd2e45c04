-- count_permits(step, waiter, sign): counts the permits of this waiter, or grant, as taken (1) or free (-1).
-- Does nothing for a waiter of anything but a semaphore.
local function count_permits(step, waiter, sign)
  local permits = waiter:match(PERMITS)
  if permits then
    redis.call('ZINCRBY', HOLDERS, sign * permits, 'used')
    step.used = step.used and step.used + sign * permits
  end
end
