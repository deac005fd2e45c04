-- count_permits(step, waiter, sign): counts the permits of this waiter, or grant, as taken (1) or free (-1), or its
-- number with the rule `=`. Does nothing for any other waiter.
--@include count_held
local function count_permits(step, waiter, sign)
  local permits = waiter:match(PERMITS)
  if permits then
    redis.call('ZINCRBY', HOLDERS, sign * permits, 'used')
    step.used = step.used and step.used + sign * permits
    if waiter:find('%', 1, true) then
      count_held(waiter, sign * permits)
    end
  end
end
