-- wait_for_count(waiter, ticket, number, waits): `vote` for a waiter for a count. It blocks no other waiter: if the
-- count is reached it has a vote, otherwise it is in the queue and gets a push, see `post`. Returns the reply.
--@include remove_dead_sample
local function wait_for_count(waiter, ticket, number, waits)
  local tombstone = redis.call('ZSCORE', VOTES, '!' .. waiter)
  if tombstone and tombstone - COUNTERS > NOW then
    return {0, tonumber(STAMP)}
  end
  local count = redis.call('ZSCORE', VOTES, 'count')
  if count and count - COUNTERS >= number then
    redis.call('ZREM', QUEUE, waiter)
    return {1, number, COUNTED, tonumber(STAMP)}
  elseif waits then
    local is_new = redis.call('ZADD', QUEUE, ticket, waiter) == 1
    redis.call('PEXPIRE', QUEUE, QUEUE_LASTS)
    if is_new then
      remove_dead_sample(ticket, waiter:match(CLIENT))
    end
  end
  return {2, KEEP_ALIVE, waits and 1 or 0, tonumber(STAMP)}
end
