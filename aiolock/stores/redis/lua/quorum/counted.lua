-- counted(waiter, ticket, number, waits): `vote` for a waiter for a count, which blocks no other waiter: it has the
-- count once that is reached, and else stands in line for a push. Returns the reply.
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
    redis.call('ZADD', LINE, ticket, waiter)
    redis.call('PEXPIRE', LINE, QUEUE_LASTS)
  end
  return {2, KEEP_ALIVE, waits and 1 or 0, tonumber(STAMP)}
end
