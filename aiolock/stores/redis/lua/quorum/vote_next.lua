-- vote_next(asker, asking, with_reply, proposal): gives the vote, which is free, to the first waiter in the queue, for
-- its claim; if that waiter shares, the waiters behind it that share get votes as well.
--   asker       the client that is answered now
--   asking      its waiter that is answered: if it is first, it gets no push
--   with_reply  a push to the asker goes with the reply, and so arrives sooner
--   proposal    the number that the asker proposes, if it does: see `cast_vote`
-- Returns the number that `asking` got and the claim, else nil; and the push with the reply.
--@include quorum/not_voting
--@include quorum/first_alive
--@include quorum/cast_vote
--@include push
--@include quorum/vote_next_shared
local function vote_next(asker, asking, with_reply, proposal)
  if redis.call('EXISTS', QUEUE) == 0 or not_voting() then
    return
  end
  local waiter, ticket = first_alive(asker)
  if not waiter then
    return
  elseif waiter:byte() == SHARED then
    return vote_next_shared(asker, asking, proposal)
  end
  redis.call('ZREM', QUEUE, waiter)
  local claim, client = waiter:match('^%a+(%d+)[^:]*:([^:]+):')
  local number = cast_vote(waiter, ticket, claim, '0', nil, nil, proposal)
  if waiter == asking then
    return number, claim
  end
  local message = 'g ' .. waiter .. ' ' .. number .. ' ' .. claim .. ' ' .. STAMP .. ' ' .. VOTES
  if with_reply and client == asker then
    return nil, nil, message
  end
  push(waiter, client, message)
end
