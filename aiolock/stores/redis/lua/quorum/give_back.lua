-- give_back(waiter, upto, highest, entered, copies): `release` for any state of the waiter, with or without others
-- in the queue. Returns the reply.
--@include clock
--@include give_up
--@include quorum/learn
--@include quorum/silent
--@include quorum/present_vote
--@include quorum/shut
--@include quorum/hand_vote
--@include quorum/release_shared
local function give_back(waiter, upto, highest, entered, copies)
  -- First a write that is allowed at maxmemory: after it all others are.
  local was_in_line = redis.call('ZREM', LINE, waiter) == 1
  local vote, score = present_vote()
  local number, granted
  if vote and vote:sub(1, #waiter + 1) == waiter .. ':' then
    number, granted = vote:match('^(%d+):%-?%d+:(%d+)$', #waiter + 2) -- as VOTE, but quicker
  end
  if highest ~= '0' and highest ~= number then
    learn(highest, 0)
  end
  if copies ~= '0' then
    give_up(waiter, math.ceil(copies / 1000))
  end
  if vote and vote:byte() == SHARED then
    return release_shared(waiter, upto, entered, was_in_line)
  elseif not number or upto ~= '-1' and number - upto > 0 then
    return was_in_line and 2 or not number and silent() and 3 or 0
  end
  redis.call('ZREM', VOTES, vote)
  local lost = entered == -2 and NOW or nil
  if entered ~= -1 and waiter:find(HAS_TERMS)
      and shut(waiter, number, granted, lost, score % 1 == UNCONFIRMED, not lost and entered) then
    return 1
  elseif redis.call('EXISTS', LINE) == 0 then
    return 1 -- `hand_vote` finds the same, but costs more
  end
  local _, _, push = hand_vote(waiter:match(CLIENT), nil, true)
  return push or 1
end
