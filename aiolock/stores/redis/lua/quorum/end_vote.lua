-- end_vote(vote, score, reason, lost): takes a vote away that was lost at `lost` (ms), and pushes the reason.
-- Returns the client, and whether it is unknown if its waiter was inside.
--@include push
--@include quorum/close_after_vote
local function end_vote(vote, score, reason, lost)
  local waiter, number, _, granted = vote:match(VOTE)
  local client, unsure = waiter:match(CLIENT), score % 1 == UNCONFIRMED
  redis.call('ZREM', VOTES, vote, '@' .. vote)
  if client ~= RESERVED then
    push(waiter, client, 'l ' .. waiter .. ':' .. number .. ' ' .. reason .. ' ' .. VOTES)
    close_after_vote(waiter, number, granted, lost, unsure, nil)
  end
  return client, unsure
end
