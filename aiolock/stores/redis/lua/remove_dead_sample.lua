-- remove_dead_sample(ticket, asker): now and then, a newcomer with this ticket, which is in the queue by now, removes
-- the waiters of dead clients from a part of the queue: `looks_for_dead` of the state machine says when. Otherwise the
-- queue of a lock that is held for long would grow with each client that dies. Returns whether there were any.
--@include remove_dead
local function remove_dead_sample(ticket, asker)
  if ticket % LOOKERS ~= 0 or ticket - redis.call('ZRANGE', QUEUE, 0, 0, 'WITHSCORES')[2] < STANDS_STILL then
    return false
  end
  return remove_dead(asker, math.floor(ticket / LOOKERS), CHECKS)
end
