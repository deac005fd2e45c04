-- leave_rest(step, counted, passed_over, work): leaves the rest of `advance` to another call, unless there is a rest
-- already, which includes this one (see `with_rest`). `passed_over`: if `counted`, how many waiters were passed over.
-- `work`: what is left, if not as usual.
local function leave_rest(step, counted, passed_over, work)
  if step.rest then
    return
  elseif not counted then
    step.rest = {work or 'a'}
    return
  end
  local last = passed_over > 0 and redis.call('ZRANGE', QUEUE, passed_over - 1, passed_over - 1, 'WITHSCORES')[2]
  step.rest = {'c', last or '-inf'}
end
