-- expiries(waiter, lease): for how long (ms) to keep the votes, with a new one for this waiter, and the last number.
--@include closes_for
local function expiries(waiter, lease)
  local kept, remembered = lease + KEPT + closes_for(waiter), lease + REMEMBERED
  if waiter:byte() == SHARED then -- beside it there may be votes with longer leases
    kept = math.max(kept, redis.call('PTTL', VOTES))
    remembered = math.max(remembered, redis.call('PTTL', LAST))
  end
  return kept, remembered
end
