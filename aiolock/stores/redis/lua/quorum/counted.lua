-- counted(waiter, ticket, number, waits): `vote` for a waiter for a count, which blocks no other waiter: it has the
-- count once that is reached, and else waits in the queue for a push. Returns the reply.
--@include look_for_dead
local function counted(waiter, ticket, number, waits)
  local given_up = redis.call('ZSCORE', VOTES, '!' .. waiter)
  if given_up and given_up - COUNTERS > NOW then
    return {0, tonumber(STAMP)}
  end
  local count = redis.call('ZSCORE', VOTES, 'count')
  if count and count - COUNTERS >= number then
    redis.call('ZREM', LINE, waiter)
    return {1, number, COUNTED, tonumber(STAMP)}
  elseif waits then
    local is_new = redis.call('ZADD', LINE, ticket, waiter) == 1
    redis.call('PEXPIRE', LINE, QUEUE_LASTS)
    if is_new then
      look_for_dead(ticket, waiter:match(CLIENT))
    end
  end
  return {2, KEEP_ALIVE, waits and 1 or 0, tonumber(STAMP)}
end
