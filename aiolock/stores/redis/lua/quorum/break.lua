-- quorum/break: takes the vote from this waiter, notifies its client, and votes for the next waiter.
--
-- KEYS  1 votes  2 queue  3 last number  4 quorum config
-- ARGV  1 prefix of the clients' channels  2 client and number of the waiter, as its text ends: ':<client>:<seq>'
-- returns  1 it had the vote  0 it had not
--@include quorum/names
local CHANNELS = ARGV[1]
--@include clock
--@include quorum/new_vote_step
--@include quorum/vote_left
--@include quorum/end_vote
--@include quorum/vote_next
--@include quorum/with_rests

local ends_so = ARGV[2]
for _, vote in ipairs(redis.call('ZRANGEBYSCORE', VOTES, '-inf', '(' .. COUNTERS)) do
  if vote:find(ends_so, 1, true) and vote:match(VOTE):sub(-#ends_so) == ends_so then
    end_vote(vote, tonumber(redis.call('ZSCORE', VOTES, vote)), 'broken', NOW)
    local step, left = new_vote_step(), vote_left()
    if not left then
      vote_next(step)
    elseif left:byte() == SHARED then
      step.rest = {'a'} -- to find the vote among many may have taken long enough
    end
    return with_rests(1, step.rest)
  end
end
return 0
