-- release_shared(waiter, upto, entered, was_queued): `release`, if the votes are out to waiters that share. Returns
-- the reply.
--@include quorum/not_voting
--@include quorum/first_vote
--@include quorum/vote_of
--@include quorum/close_after_vote
--@include quorum/vote_next_shared
--@include quorum/vote_next
local function release_shared(waiter, upto, entered, was_queued)
  local client = waiter:match(CLIENT)
  local vote, score = vote_of(waiter .. ':')
  local _, number, granted
  if vote then
    _, number, _, granted = vote:match(VOTE)
  end
  if not number or upto ~= '-1' and number - upto > 0 then
    if was_queued then
      vote_next_shared(client) -- it may have blocked others that share
    end
    return was_queued and 2 or not number and not_voting() and 3 or 0
  end
  redis.call('ZREM', VOTES, vote)
  local lost = entered == -2 and NOW or nil
  if entered ~= -1 then
    close_after_vote(waiter, number, granted, lost, score % 1 == UNCONFIRMED, not lost and entered)
  end
  if first_vote() then
    vote_next_shared(client)
    return 1
  end
  local _, _, message = vote_next(client, nil, true)
  return message or 1
end
