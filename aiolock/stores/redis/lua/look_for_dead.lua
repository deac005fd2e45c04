-- look_for_dead(ticket, asker): a newcomer with this ticket, which stands in the queue, removes the waiters of
-- dead clients: now and then, as `looks_for_dead` of the state machine says. Returns whether there were any.
--@include remove_dead
local function look_for_dead(ticket, asker)
  if ticket % LOOKERS ~= 0 or ticket - redis.call('ZRANGE', QUEUE, 0, 0, 'WITHSCORES')[2] < STANDS_STILL then
    return false
  end
  return remove_dead(asker, math.floor(ticket / LOOKERS), CHECKS)
end
