-- is_alike(step, number): whether all holders with the rule `=` have this number, 1 or MANY; there may be none. The sum
-- of their numbers tells: of 1s it is less than MANY, and of MANYs a multiple of it.
--@include keep
local function is_alike(step, number)
  if not step.limit then
    local used = redis.call('ZSCORE', HOLDERS, 'used')
    if not used then
      redis.call('ZADD', HOLDERS, COUNTERS, 'used') -- from which `count_permits` counts
      keep(KEPT)
    end
    step.used, step.limit = used and used - COUNTERS or 0, math.huge
  end
  if number == '1' then
    return step.used < MANY - 1
  end
  return step.used % MANY == 0
end
