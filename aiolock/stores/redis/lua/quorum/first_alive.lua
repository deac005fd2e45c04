-- first_alive(asker): the first waiter in the queue whose client is alive, and its ticket; dead waiters before it are
-- removed.
--@include listens
local function first_alive(asker)
  local first = redis.call('ZRANGE', QUEUE, 0, 0, 'WITHSCORES')
  while first[1] do
    local flags, client = first[1]:match(FLAGS_CLIENT)
    if client and listens(client, flags, asker) then
      return first[1], first[2]
    end
    redis.call('ZREM', QUEUE, first[1])
    first = redis.call('ZRANGE', QUEUE, 0, 0, 'WITHSCORES')
  end
end
