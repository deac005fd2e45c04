-- first_alive(step): the first waiter in the queue whose client is alive, and its ticket; dead waiters before it are
-- removed. If they are many, the others are left to another call: then it returns nil, and `step.rest` is set.
--@include listens
local function first_alive(step)
  local first = redis.call('ZRANGE', QUEUE, 0, 0, 'WITHSCORES')
  while first[1] do
    local flags, client = first[1]:match(FLAGS_CLIENT)
    if client and listens(client, flags, step.asker) then
      return first[1], first[2]
    elseif step.dead == PART then
      step.rest = {'a'}
      return
    end
    step.dead = step.dead + 1
    redis.call('ZREM', QUEUE, first[1])
    first = redis.call('ZRANGE', QUEUE, 0, 0, 'WITHSCORES')
  end
end
