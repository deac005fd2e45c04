-- reap(step): ends the grants whose lease has ended. Their clients are dead or stuck, so their waiters leave
-- the queue too (so each such client costs one claim, not one for each waiter). A push tells them, in case
-- they still listen: then they come back at their old places. If a lease was not to be renewed (f), its end
-- means nothing; but the claim of a pushed grant must be confirmed all the same.
--@include end_grant
--@include keep_floor
local function reap(step)
  local ended = redis.call('ZRANGEBYSCORE', HOLDERS, '-inf', NOW, 'WITHSCORES')
  local stuck
  for i = 1, #ended, 2 do
    local grant, ends = ended[i], tonumber(ended[i + 1])
    local claim = ends % 1 == UNCONFIRMED
    local client = end_grant(step, grant, 'expired', math.floor(ends), claim)
    if claim or not (grant:match(FLAGS_CLIENT) or ''):find('f', 1, true) then
      stuck = stuck or {}
      stuck[client] = true
    end
  end
  keep_floor(step)
  if stuck then
    for _, waiter in ipairs(redis.call('ZRANGE', QUEUE, 0, -1)) do
      if stuck[waiter:match(CLIENT) or waiter] then
        redis.call('ZREM', QUEUE, waiter)
      end
    end
  end
end
