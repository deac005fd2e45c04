-- vote_next(step, shared, asking, with_reply, proposal): votes for the first waiter in the queue, for its claim; if it
-- shares, also for the waiters behind it while they share. After many votes, `step.rest` says that another call goes
-- on; and none is given as long as other work has to be done first, see `reap_votes`.
--   shared      votes are out that are shared: then only for waiters that share; else no vote is out
--   asking      the waiter that is answered now: if it gets a vote, it gets no push
--   with_reply  a push to the client that is answered goes with the reply, and so arrives sooner
--   proposal    the number that this client proposes, if it does: see `cast_vote`
-- Returns the number that `asking` got and the claim, else nil; and the push with the reply.
--@include quorum/not_voting
--@include quorum/first_alive
--@include quorum/cast_vote
--@include push
local function vote_next(step, shared, asking, with_reply, proposal)
  if step.rest or redis.call('EXISTS', QUEUE) == 0 or not_voting() then
    return
  end
  local number, lease
  local votes, waiter, ticket = 0, first_alive(step)
  while waiter do
    local shares = waiter:byte() == SHARED
    if shared and not shares then
      break
    elseif votes >= GRANTS and waiter ~= asking then
      step.rest = {'a'}
      break
    end
    redis.call('ZREM', QUEUE, waiter)
    local claim, client = waiter:match('^%a+(%d+)[^:]*:([^:]+):')
    local its_number = cast_vote(waiter, ticket, claim, '0', nil, nil, proposal)
    if waiter == asking then
      number, lease = its_number, claim
    else
      local message = 'g ' .. waiter .. ' ' .. its_number .. ' ' .. claim .. ' ' .. STAMP .. ' ' .. VOTES
      if with_reply and not shares and client == step.asker then
        return nil, nil, message
      end
      push(waiter, client, message)
    end
    if not shares then
      break
    end
    shared, votes = true, votes + 1
    waiter, ticket = first_alive(step)
  end
  return number, lease
end
