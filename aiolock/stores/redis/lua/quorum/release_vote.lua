-- release_vote(waiter, upto, highest, entered, copies): `release` for any state of the waiter, with or without others
-- in the queue. Returns the reply.
--@include clock
--@include leave_tombstone
--@include quorum/new_vote_step
--@include quorum/learn
--@include quorum/not_voting
--@include quorum/first_vote
--@include quorum/close_after_vote
--@include quorum/vote_next
--@include quorum/release_shared
--@include quorum/with_rests
local function release_vote(waiter, upto, highest, entered, copies)
  -- First a write that is allowed at maxmemory: after it all others are.
  local was_queued = redis.call('ZREM', QUEUE, waiter) == 1
  local vote, score = first_vote()
  local number, granted
  if vote and vote:sub(1, #waiter + 1) == waiter .. ':' then
    number, granted = vote:match('^(%d+):%-?%d+:(%d+)$', #waiter + 2) -- as VOTE, but quicker
  end
  if highest ~= '0' and highest ~= number then
    learn(highest, 0, vote and vote:byte() == SHARED)
  end
  if copies ~= '0' then
    leave_tombstone(waiter, math.ceil(copies / 1000))
  end
  if vote and vote:byte() == SHARED then
    return release_shared(waiter, upto, entered, was_queued)
  elseif not number or upto ~= '-1' and number - upto > 0 then
    return was_queued and 2 or not number and not_voting() and 3 or 0
  end
  redis.call('ZREM', VOTES, vote)
  local lost = entered == -2 and NOW or nil
  if entered ~= -1 and waiter:find(HAS_TERMS)
      and close_after_vote(waiter, number, granted, lost, score % 1 == UNCONFIRMED, not lost and entered) then
    return 1
  elseif redis.call('EXISTS', QUEUE) == 0 then
    return 1 -- `vote_next` finds the same, but costs more
  end
  local step = new_vote_step(waiter:match(CLIENT))
  local _, _, message = vote_next(step, false, nil, true)
  return with_rests(message or 1, step.rest)
end
