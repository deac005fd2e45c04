-- hand_shared(asker, asking, proposal): votes for the first waiters in the queue, while they share, beside others that
-- share. Returns the same as `hand_vote`, but no push with the reply: there may be several.
--@include quorum/silent
--@include quorum/first_of
--@include quorum/cast
--@include tell
local function hand_shared(asker, asking, proposal)
  local number, lease
  while redis.call('EXISTS', LINE) == 1 and not silent() do
    local waiter, ticket = first_of(asker)
    if not waiter or waiter:byte() ~= SHARED then
      break
    end
    redis.call('ZREM', LINE, waiter)
    local claim, client = waiter:match('^%a+(%d+)[^:]*:([^:]+):')
    local cast_now = cast(waiter, ticket, claim, '0', nil, nil, proposal)
    if waiter == asking then
      number, lease = cast_now, claim
    else
      tell(waiter, client, 'g ' .. waiter .. ' ' .. cast_now .. ' ' .. claim .. ' ' .. STAMP .. ' ' .. VOTES)
    end
  end
  return number, lease
end
