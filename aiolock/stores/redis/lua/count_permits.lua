-- count_permits(step, waiter, sign): the permits of this waiter, or grant, are taken (1) or free (-1).
-- Does nothing for what is no semaphore's.
local function count_permits(step, waiter, sign)
  local permits = waiter:match(PERMITS)
  if permits then
    redis.call('ZINCRBY', HOLDERS, sign * permits, 'used')
    step.used = step.used and step.used + sign * permits
  end
end
