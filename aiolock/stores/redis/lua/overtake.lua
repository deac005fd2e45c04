-- overtake(waiter): moves a newcomer that does not belong at the tail of the queue: it has a priority, or
-- came in the same microsecond as another, or after the clock was set back. It goes behind the last of its
-- priority, and the waiter behind it is notified. Returns its ticket.
--@include void
local function overtake(waiter)
  redis.call('ZREM', QUEUE, waiter)
  local ticket = STAMP + PRIORITY * (waiter:match(PRIORITY_OF) or 0)
  local below = string.format('(%.0f', ticket + PRIORITY / 2)
  local before = redis.call('ZRANGE', QUEUE, below, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
  ticket = math.max(ticket, tonumber(before or 0) + 1)
  redis.call('ZADD', QUEUE, string.format('%.0f', ticket), waiter)
  redis.call('PEXPIRE', QUEUE, QUEUE_LASTS) -- it may have been the only one
  void(waiter)
  return ticket
end
