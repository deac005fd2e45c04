-- quorum/go_on: goes on with what another call has left, see `with_rests`.
--
-- KEYS  1 votes  2 queue  3 last number  4 quorum config
-- ARGV  1 prefix of the clients' channels  2… what was left
-- returns  0
--@include quorum/names
local CHANNELS = ARGV[1]
--@include clock
--@include allow_writes
--@include count_up_to
--@include dismiss
--@include push
--@include remove_stuck
--@include quorum/new_vote_step
--@include quorum/count_reached
--@include quorum/inquire_shared
--@include quorum/reap_votes
--@include quorum/vote_next
--@include quorum/with_rests

local work, behind = ARGV[2], ARGV[3]
local step = new_vote_step()
allow_writes()
if work == 'o' then
  dismiss(step, behind)
elseif work == 'c' then
  local count = redis.call('ZSCORE', VOTES, 'count')
  step.rest = count and count_reached(count - COUNTERS, behind)
elseif work == 'i' then
  local vote, waiter, ticket = ARGV[4], ARGV[5], ARGV[6]
  if redis.call('ZSCORE', QUEUE, waiter) then
    inquire_shared(step, waiter, ticket, behind, count_up_to(vote, behind))
  end
else
  if work == 's' then
    local ended = {}
    for i = 4, #ARGV do
      ended[#ended + 1] = ARGV[i]
    end
    -- Some of them may have come back before they were removed: they ask once more.
    for client, vote in pairs(remove_stuck(step, ended, behind)) do
      local waiter, number = vote:match(VOTE)
      push(waiter, client, 'l ' .. waiter .. ':' .. number .. ' expired ' .. VOTES)
    end
  end
  local vote = not step.rest and reap_votes(step)
  if not vote or vote:byte() == SHARED then
    vote_next(step, vote)
  end
end
return with_rests(0, step.rest, step.inquiry)
