-- differs(step, declared, known): the number that the server knows, if this waiter declares another; else
-- nil. `known`: the scores of used, limit and declared, if those were read already.
--@include read_permits
local function differs(step, declared, known)
  known = known or redis.call('ZMSCORE', HOLDERS, 'used', 'limit', 'declared')
  read_permits(step, declared, known)
  local before = known[3] and known[3] - COUNTERS
  if step.limit ~= tonumber(declared) and before ~= tonumber(declared) then
    return step.limit
  end
end
