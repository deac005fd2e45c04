-- release_shared(waiter, upto, entered, was_queued): `release`, if the votes are out to waiters that share. Returns
-- the reply.
--@include quorum/new_vote_step
--@include quorum/not_voting
--@include quorum/vote_left
--@include quorum/vote_of
--@include quorum/close_after_vote
--@include quorum/vote_next
--@include quorum/with_rests
local function release_shared(waiter, upto, entered, was_queued)
  local step = new_vote_step(waiter:match(CLIENT))
  local vote, score = vote_of(waiter .. ':')
  local _, number, granted
  if vote then
    _, number, _, granted = vote:match(VOTE)
  end
  if not number or upto ~= '-1' and number - upto > 0 then
    if was_queued then
      vote_next(step, true) -- it may have blocked others that share
    end
    return with_rests(was_queued and 2 or not number and not_voting() and 3 or 0, step.rest)
  end
  redis.call('ZREM', VOTES, vote, '@' .. vote)
  local lost = entered == -2 and NOW or nil
  if entered ~= -1 then
    close_after_vote(waiter, number, granted, lost, score % 1 == UNCONFIRMED, not lost and entered)
  end
  local _, _, message = vote_next(step, vote_left(), nil, true)
  return with_rests(message or 1, step.rest)
end
