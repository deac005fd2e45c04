-- read_permits(step, declared, known): sets `step.used` and `step.limit`, once; if they are forgotten, to
-- the number that this waiter declares. `known`: their two scores, if those were read already.
--@include keep
local function read_permits(step, declared, known)
  if step.limit then
    return
  end
  known = known or redis.call('ZMSCORE', HOLDERS, 'used', 'limit')
  if known[2] then
    step.used, step.limit = known[1] - COUNTERS, known[2] - COUNTERS
  else
    step.used, step.limit = 0, tonumber(declared)
    redis.call('ZADD', HOLDERS, COUNTERS, 'used', COUNTERS + declared, 'limit')
    keep(KEPT)
  end
end
