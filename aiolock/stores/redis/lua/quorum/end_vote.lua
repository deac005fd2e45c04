-- end_vote(vote, score, reason, lost): a vote is taken away, at `lost` (ms), and its client is told why.
-- Returns the client, and whether its waiter is not known to have been inside.
--@include tell
--@include quorum/shut
local function end_vote(vote, score, reason, lost)
  local waiter, number, _, granted = vote:match(VOTE)
  local client, unsure = waiter:match(CLIENT), score % 1 == UNCONFIRMED
  redis.call('ZREM', VOTES, vote)
  if client ~= NOBODY then
    tell(waiter, client, 'l ' .. waiter .. ':' .. number .. ' ' .. reason .. ' ' .. VOTES)
    shut(waiter, number, granted, lost, unsure, nil)
  end
  return client, unsure
end
