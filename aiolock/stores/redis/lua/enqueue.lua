-- enqueue(waiter, ticket, most): a place at the tail (ticket 0), or the old place again (> 0).
-- Returns its ticket; whether it was displaced, and has that place no more (1, else 0); its place where
-- that is known without asking, else nil; and whether others may fit now, for dead ones have left or it
-- came before some of them. Where the queue is full: nil, how many wait, nil, and the same.
--@include remove_dead
local function enqueue(waiter, ticket, most)
  local known, place, others_may_fit
  if ticket > 0 or most > 0 then
    known = redis.call('ZSCORE', QUEUE, waiter)
  end
  local displaced = ticket > 0 and not known and 1 or 0
  if ticket == 0 and not known then
    if most > 0 then
      local waiting = redis.call('ZCARD', QUEUE)
      if waiting >= most then
        others_may_fit = remove_dead(waiter:match(CLIENT))
        waiting = redis.call('ZCARD', QUEUE)
      end
      if waiting >= most then
        return nil, waiting, nil, others_may_fit
      end
    end
    local tail = redis.call('ZRANGE', QUEUE, -1, -1, 'WITHSCORES')[2]
    local ahead
    ticket = STAMP + PRIORITY * (waiter:match(PRIORITY_OF) or 0)
    if tail and tonumber(tail) >= ticket then
      -- Two that arrive in one microsecond, or after the clock was set back, keep their order.
      local below = string.format('(%.0f', ticket + PRIORITY / 2)
      local before = redis.call('ZRANGE', QUEUE, below, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
      ticket = math.max(ticket, tonumber(before or 0) + 1)
      ahead = ticket <= tonumber(tail)
    end
    others_may_fit = others_may_fit or ahead
    if redis.call('ZADD', QUEUE, 'NX', string.format('%.0f', ticket), waiter) == 1 then
      place = not ahead and redis.call('ZCARD', QUEUE) or nil
    else -- a newcomer whose question was sent twice
      known = redis.call('ZSCORE', QUEUE, waiter)
    end
  elseif not known then
    redis.call('ZADD', QUEUE, string.format('%.0f', ticket), waiter)
  end
  redis.call('PEXPIRE', QUEUE, QUEUE_LASTS)
  return known and tonumber(known) or ticket, displaced, place, others_may_fit
end
