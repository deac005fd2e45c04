-- hand_vote(asker, asking, with_reply, proposal): hands the vote, which is free, to the first in the queue, for its
-- claim; if that waiter shares, the waiters behind it that share get votes as well.
--   asker       the client that is answered now
--   asking      its waiter that is answered: if it is first, it gets no push
--   with_reply  a push to the asker goes with the reply, and so arrives sooner
--   proposal    the number that the asker proposes, if it does: see `cast`
-- Returns the number that `asking` got and the claim, else nil; and the push with the reply.
--@include quorum/silent
--@include quorum/first_of
--@include quorum/cast
--@include tell
--@include quorum/hand_shared
local function hand_vote(asker, asking, with_reply, proposal)
  if redis.call('EXISTS', LINE) == 0 or silent() then
    return
  end
  local waiter, ticket = first_of(asker)
  if not waiter then
    return
  elseif waiter:byte() == SHARED then
    return hand_shared(asker, asking, proposal)
  end
  redis.call('ZREM', LINE, waiter)
  local claim, client = waiter:match('^%a+(%d+)[^:]*:([^:]+):')
  local number = cast(waiter, ticket, claim, '0', nil, nil, proposal)
  if waiter == asking then
    return number, claim
  end
  local push = 'g ' .. waiter .. ' ' .. number .. ' ' .. claim .. ' ' .. STAMP .. ' ' .. VOTES
  if with_reply and client == asker then
    return nil, nil, push
  end
  tell(waiter, client, push)
end
