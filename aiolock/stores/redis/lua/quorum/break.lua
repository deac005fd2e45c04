-- quorum/break: takes the vote from this waiter, notifies its client, and votes for the next waiter.
--
-- KEYS  1 votes  2 queue  3 last number  4 quorum config
-- ARGV  1 prefix of the clients' channels  2 client and number of the waiter, as its text ends: ':<client>:<seq>'
-- returns  1 it had the vote  0 it had not
--@include quorum/names
local CHANNELS = ARGV[1]
--@include clock
--@include quorum/first_vote
--@include quorum/end_vote
--@include quorum/vote_next_shared
--@include quorum/vote_next

local votes = redis.call('ZRANGEBYSCORE', VOTES, '-inf', '(' .. COUNTERS, 'WITHSCORES')
for i = 1, #votes, 2 do
  if votes[i]:match(VOTE):sub(-#ARGV[2]) == ARGV[2] then
    end_vote(votes[i], tonumber(votes[i + 1]), 'broken', NOW)
    local left = first_vote()
    if not left then
      vote_next()
    elseif left:byte() == SHARED then
      vote_next_shared()
    end
    return 1
  end
end
return 0
