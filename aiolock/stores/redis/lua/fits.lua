-- fits(step, waiter, queued): whether it may enter beside the holders. `queued`: 1 if it stands in the
-- queue, else nil.
--   *n  while n permits are free       &n  once n stand in the queue, all together
--   ^n  once the count is n            |n  once n tokens are there
--   =n  beside others that share, of which none has `=` with another n
--   no rule: alone, or beside others that share
--@include read_permits
--@include is_alike
--@include remove_dead
--@include tokens_due
local function fits(step, waiter, queued)
  local rule, number, declared = waiter:match(RULE_NUMBER_DECLARED)
  if rule == '*' then
    read_permits(step, declared)
    return step.used + number <= step.limit
  elseif rule == '^' then
    local count = redis.call('ZSCORE', HOLDERS, 'count')
    return count and count - COUNTERS >= tonumber(number)
  elseif rule == '&' then
    if step.passing > 0 then
      step.passing = step.passing - 1
      return true
    end
    local others = number - 1
    local enough = others + (queued or 0) -- in the queue
    if redis.call('ZCARD', QUEUE) >= enough then
      remove_dead(step.asker)
    end
    step.passing = redis.call('ZCARD', QUEUE) >= enough and others or 0
    return step.passing == others
  elseif rule == '=' and not is_alike(step, number) then
    return false
  end
  if rule == '|' then
    return tokens_due(step, tonumber(number), declared, 0) <= tonumber(STAMP)
  end
  local first = redis.call('ZRANGE', HOLDERS, 0, 0, 'WITHSCORES')
  if not first[1] or tonumber(first[2]) >= COUNTERS then
    return true -- there is no holder
  end
  return waiter:byte() == SHARED and first[1]:byte() == SHARED
end
