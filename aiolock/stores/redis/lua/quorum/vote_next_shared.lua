-- vote_next_shared(asker, asking, proposal): votes for the first waiters in the queue while they share, beside votes
-- that are shared. Its parameters and what it returns are those of `vote_next`; but no push goes with the reply, as
-- there may be several.
--@include quorum/not_voting
--@include quorum/first_alive
--@include quorum/cast_vote
--@include push
local function vote_next_shared(asker, asking, proposal)
  local number, lease
  while redis.call('EXISTS', QUEUE) == 1 and not not_voting() do
    local waiter, ticket = first_alive(asker)
    if not waiter or waiter:byte() ~= SHARED then
      break
    end
    redis.call('ZREM', QUEUE, waiter)
    local claim, client = waiter:match('^%a+(%d+)[^:]*:([^:]+):')
    local its_number = cast_vote(waiter, ticket, claim, '0', nil, nil, proposal)
    if waiter == asking then
      number, lease = its_number, claim
    else
      push(waiter, client, 'g ' .. waiter .. ' ' .. its_number .. ' ' .. claim .. ' ' .. STAMP .. ' ' .. VOTES)
    end
  end
  return number, lease
end
