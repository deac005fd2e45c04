-- insert_in_order(waiter): moves a newcomer from the tail of the queue to its place behind the last of its priority:
-- it has a priority, or came in the same microsecond as another, or after the clock was set back. The client of the
-- waiter that is then behind it is notified. Returns its ticket.
--@include push_order_unknown
local function insert_in_order(waiter)
  redis.call('ZREM', QUEUE, waiter)
  local ticket = STAMP + PRIORITY * (waiter:match(PRIORITY_OF) or 0)
  local below = string.format('(%.0f', ticket + PRIORITY / 2)
  local before = redis.call('ZRANGE', QUEUE, below, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
  ticket = math.max(ticket, tonumber(before or 0) + 1)
  redis.call('ZADD', QUEUE, string.format('%.0f', ticket), waiter)
  redis.call('PEXPIRE', QUEUE, QUEUE_LASTS) -- it may have been the only one
  push_order_unknown(waiter)
  return ticket
end
