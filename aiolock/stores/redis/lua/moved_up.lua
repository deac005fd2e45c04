-- moved_up(step, waiter): this waiter has left the queue without an entry. If it was one of a rate limit, those in the
-- queue come earlier than they were told: see `tell_first`.
--@include keep
local function moved_up(step, waiter)
  if waiter:find(TOKENS) then
    local last = redis.pcall('ZRANGE', QUEUE, -1, -1, 'WITHSCORES')[2]
    step.moved_up = true
    if last then
      redis.call('ZADD', HOLDERS, string.format('%.0f', COUNTERS + last), 'outdated')
      keep(KEPT)
    end
    if step.bucket then
      step.bucket.outdated = tonumber(last or step.bucket.outdated)
    end
  end
end
