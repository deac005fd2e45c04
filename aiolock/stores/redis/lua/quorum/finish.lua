-- quorum/finish: leaves a done marker: the work of this waiter is done. Until it ends no waiter gets a vote, and
-- the waiters for that work are notified. The marker replaces the vote, as a vote with a reserved owner, so there are
-- never both: if the vote belongs to another waiter, the marker is refused.
--
-- KEYS  1 votes  2 queue  3 last number  4 quorum config
-- ARGV  1 waiter  2 fence of the grant that did it  3 for how long (ms; 0: only answer whether this fence is known)
--       4 when it ends at the latest (ms), 0: no such time  5 prefix of the clients' channels  6 not after (µs)
-- returns  1 the marker is there  0 it is not
--@include quorum/names
local CHANNELS = ARGV[5]
--@include clock
--@include late
--@include keep
--@include dismiss
--@include quorum/first_vote
--@include quorum/new_vote_step
--@include quorum/reap_votes
--@include quorum/with_rests

local too_late = late(ARGV[6])
if too_late then
  return too_late
end
local waiter, fence, remembered, latest = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local step, vote, score = new_vote_step(), first_vote()
local owner, number, known
if vote then
  owner, number = vote:match(VOTE)
  known = score > NOW and vote:sub(1, #DONE) == DONE
end
if remembered == 0 then
  return known and number == fence and 1 or 0
elseif vote and vote:byte() == SHARED then
  vote, score = reap_votes(step)
  if vote then
    return with_rests(0, step.rest)
  end
elseif vote and owner ~= waiter then
  if score > NOW and owner:match(CLIENT) ~= RESERVED then
    return 0
  elseif score <= NOW then
    vote, score = reap_votes(step) -- the name may be closed for a while now
  end
end
local ends = NOW + remembered
ends = latest > 0 and math.min(ends, latest) or ends
if ends <= NOW then
  return with_rests(known and 1 or 0, step.rest)
end
redis.call('ZREM', QUEUE, waiter) -- allowed at maxmemory: after it all others are
if vote then
  if vote:match(CLIENT) == RESERVED then
    ends = math.max(ends, math.floor(score))
  end
  redis.call('ZREM', VOTES, vote)
end
if known and number - fence > 0 then
  fence = number
end
redis.call('ZADD', VOTES, ends, DONE .. '1:' .. fence .. ':0:' .. string.format('%.0f', NOW))
keep(ends - NOW + KEPT)
local reaped = step.rest
dismiss(step, '-inf')
return with_rests(1, step.rest, reaped)
