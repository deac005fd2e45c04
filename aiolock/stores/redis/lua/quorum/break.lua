-- quorum/break: the vote is taken from this waiter, its client is told, and the next has it.
--
-- KEYS  1 votes  2 line  3 last number  4 marker
-- ARGV  1 prefix of the clients' channels  2 client and number of the waiter, as its text ends: ':<client>:<seq>'
-- returns  1 it had the vote  0 it had not
--@include quorum/names
local CHANNELS = ARGV[1]
--@include clock
--@include quorum/present_vote
--@include quorum/end_vote
--@include quorum/hand_vote

local vote, score = present_vote()
if not vote or vote:match(VOTE):sub(-#ARGV[2]) ~= ARGV[2] then
  return 0
end
end_vote(vote, score, 'broken', NOW)
if not present_vote() then
  hand_vote()
end
return 1
