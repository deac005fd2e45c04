-- release_shared(waiter, upto, entered, was_in_line): `release`, if the votes are out to waiters that share. Returns
-- the reply.
--@include quorum/silent
--@include quorum/present_vote
--@include quorum/vote_of
--@include quorum/shut
--@include quorum/hand_shared
--@include quorum/hand_vote
local function release_shared(waiter, upto, entered, was_in_line)
  local client = waiter:match(CLIENT)
  local vote, score = vote_of(waiter .. ':')
  local _, number, granted
  if vote then
    _, number, _, granted = vote:match(VOTE)
  end
  if not number or upto ~= '-1' and number - upto > 0 then
    if was_in_line then
      hand_shared(client) -- it may have blocked others that share
    end
    return was_in_line and 2 or not number and silent() and 3 or 0
  end
  redis.call('ZREM', VOTES, vote)
  local lost = entered == -2 and NOW or nil
  if entered ~= -1 then
    shut(waiter, number, granted, lost, score % 1 == UNCONFIRMED, not lost and entered)
  end
  if present_vote() then
    hand_shared(client)
    return 1
  end
  local _, _, push = hand_vote(client, nil, true)
  return push or 1
end
