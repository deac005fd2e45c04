-- enqueue(waiter, client, ticket, most): gives it a place at the tail (ticket 0), or its old place again (> 0).
-- Returns its ticket; 1 if it had lost that place, else 0; its place, if known without a further command
-- (1, or 2 for any that is further back); and, for a newcomer, the waiter directly before it. If the queue is
-- full: nil, and how many wait; of its share, if it has one.
--@include remove_dead
--@include remove_dead_sample
--@include insert_in_order
--@include push_order_unknown
--@include shares/join
--@include shares/refuse
local function enqueue(waiter, client, ticket, most)
  local known
  if ticket > 0 or most > 0 then
    known = redis.call('ZSCORE', QUEUE, waiter)
  end
  if ticket == 0 and not known then
    if SHARES then
      local waiting = most > 0 and waiter:find(SHARE_WEIGHT) and refuse(waiter, client, most)
      if waiting then
        return nil, waiting
      end
      most = waiter:find(SHARE_WEIGHT) and 0 or most
    end
    if most > 0 and redis.call('ZCARD', QUEUE) >= most then
      remove_dead(client, STAMP, CHECKS_IF_FULL)
      local waiting = redis.call('ZCARD', QUEUE)
      if waiting >= most then
        return nil, waiting
      end
    end
    if redis.call('ZADD', QUEUE, 'NX', STAMP, waiter) == 1 then
      redis.call('PEXPIRE', QUEUE, QUEUE_LASTS)
      local last = redis.call('ZRANGE', QUEUE, -2, -1)
      ticket = tonumber(STAMP)
      if last[#last] ~= waiter or waiter:find('!', 1, true) then
        ticket = insert_in_order(waiter)
        last = redis.call('ZRANGE', QUEUE, -2, -1)
      end
      if SHARES then
        join(waiter, ticket)
      end
      if remove_dead_sample(ticket, client) then
        last = redis.call('ZRANGE', QUEUE, -2, -1)
      end
      if last[#last] ~= waiter then
        return ticket, 0
      end
      return ticket, 0, #last, #last == 2 and last[1] or nil
    end
    known = redis.call('ZSCORE', QUEUE, waiter) -- a newcomer whose question was sent twice
  elseif not known then
    redis.call('ZADD', QUEUE, string.format('%.0f', ticket), waiter)
    push_order_unknown(waiter)
  end
  redis.call('PEXPIRE', QUEUE, QUEUE_LASTS)
  if SHARES then
    join(waiter, known or ticket, true)
  end
  return known and tonumber(known) or ticket, known and 0 or 1
end
